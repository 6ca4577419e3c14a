"""What python/README.md shows passes a strict type checker, as a program of somebody else's would be checked."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")

PYTHON = pathlib.Path(__file__).resolve().parents[1]
CONFIG = """
[mypy]
strict = True
python_version = 3.10
[mypy-croupier.*]
follow_imports = silent
[mypy-grpc.*,google.*,torch.*]
ignore_missing_imports = True
"""
# What the programs of the page take from around them.
AROUND = """
from collections.abc import Sequence
from typing import Any
import croupier
import numpy as np
import torch
prompts: list[list[int]]
model: Any
server: str
token: str
vocab_size: int
r: int
count: int
texts: list[croupier.Sequence]
logits: np.ndarray[Any, np.dtype[np.float32]]
hidden: Any
lm_head: Any
ids: list[int]
def broadcast(token: str) -> None: ...
def keep(text: croupier.Sequence, path: list[int]) -> None: ...
def target_logits(drafts: list[croupier.Draft]) -> Any: ...
def draft_model(pairs: list[tuple[croupier.Sequence, list[int]]]) -> Any: ...
"""
# What stands in its sentences.
SAID = """
def said(stream: croupier.Stream, text: croupier.Sequence, params: croupier.SamplingParams) -> None:
    croupier.SamplingParams(temperature=0.7, logprobs=croupier.LogprobsParams(top_n=5))
    croupier.SamplingParams(engine_order="vllm", logit_bias={5: 2.0}, logprobs={"top_n": 5})
    croupier.SamplingParams(engine_order=croupier.EngineOrder.VLLM, logit_bias=[croupier.LogitBias(token_id=5, bias=2.0)])
    stream.open(params, seed=7)
    stream.open(text.params, prompt=text.prompt, output=text.tokens, sampler_state=text.state)
    stream.open(report=croupier.ReportParams(entropy=True, why_not_token_ids=[42]))
    croupier.connect("croupier.inference.svc:50051", 5, tls_ca="ca.crt", tls_cert="tls.crt", tls_key="tls.key", auth_token=token)
    croupier.attach(token, 1, auth_token=lambda: "x", address=server)
    stream.sample(stream.top_n(logits, 64), texts, deadline_ms=50, traceparent="x")
    rows = stream.rows(1)
    rows.array[0] = 1.5
    for draft in croupier.Speculation(stream).chain(texts, draft_model, at_most=4):
        lengths: int = len(draft.token_ids)
    try:
        tokens: list[int] = stream.sample(logits, texts)
    except croupier.RowError as error:
        status: str = error.failures[text.id].status
async def waiting() -> None:
    async with croupier.aio.connect(server, 100, max_rows=5) as stream:
        tokens: list[int] = await stream.sample(logits, texts)
"""
WRONG = """
croupier.connect(server, 5, max_row=5)
croupier.connect(server, 5, max_rows="5")
croupier.aio.connect(server, 5, tls_sa="x")
croupier.attach(token, 1, adress=server)
croupier.SamplingParams(engine_order=5.0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all, so that mypy reads numpy once."""
    return tmp_path_factory.mktemp("types")


def checked(folder, program):
    (folder / "mypy.ini").write_text(CONFIG)
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--config-file=mypy.ini", f"--cache-dir={folder}", "--no-error-summary", "program.py"]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "MYPYPATH": str(PYTHON)}, capture_output=True, text=True)
    return [line for line in (done.stdout + done.stderr).splitlines() if ": note: " not in line]


def test_programs_and_sentences_pass(folder):
    page = (PYTHON / "README.md").read_text(encoding="utf-8")
    programs = re.findall(r"^( *)```python\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    assert len(programs) >= 4
    blocks = []
    for number, (indent, program) in enumerate(programs):
        lines = [line.removeprefix(indent) for line in program.splitlines() if not line.removeprefix(indent).startswith("import ")]
        blocks.append(f"def program_{number}() -> None:\n" + "\n".join("    " + line for line in lines))
    assert checked(folder, "\n".join([AROUND, *blocks, SAID])) == []


def test_unknown_options_are_seen(folder):
    found = checked(folder, AROUND + WRONG)
    assert len(found) == len(WRONG.strip().splitlines()), found
