"""The package passes a strict type checker, and so do the programs in python/README.md, checked as somebody else's program would be."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("mypy", reason="mypy is not installed")

PYTHON = pathlib.Path(__file__).resolve().parents[1]
CONFIG = """
[mypy]
strict = True
python_version = 3.10
[mypy-croupier.*]
follow_imports = silent
[mypy-grpc.*,google.*,sglang.*,torch.*,transformers.*,vllm.*]
ignore_missing_imports = True
"""
# The names that the page's programs use without defining them.
AROUND = """
import asyncio
import json
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
eos: int
tokenizer: Any
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
# Expressions from the page's prose.
SAID = """
def said(stream: croupier.Stream, text: croupier.Sequence, params: croupier.SamplingParams) -> None:
    croupier.SamplingParams(temperature=0.7, logprobs=croupier.LogprobsParams(top_n=5))
    croupier.SamplingParams(engine_order="vllm", logit_bias={5: 2.0}, logprobs={"top_n": 5})
    croupier.SamplingParams(engine_order=croupier.EngineOrder.VLLM, logit_bias=[croupier.LogitBias(token_id=5, bias=2.0)])
    stream.open(params, seed=7)
    stream.open(text.params, prompt=text.prompt, output=text.tokens, sampler_state=text.state)
    stream.open(report=croupier.ReportParams(entropy=True, why_not_token_ids=[42]))
    stream.open(grammar={}, allowed_token_ids=None)
    stream.open(grammar=croupier.GrammarParams(json_schema={"type": "object"}, start_token_ids=[5]))
    croupier.GrammarParams(json_schema=True), croupier.GrammarParams(json_schema="{}"), croupier.GrammarParams(regex="[ab]", lark=None)
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
        logprobs: list[float] = [work.tokens[0].logprob for work in error.result.work if work.tokens]
    except croupier.OpenError as error:
        paths: list[list[int]] = [each.accepted_path for each in error.verified if each]
        refused: int = len(error.result.open)
        drafted: list[int] = [len(draft.token_ids) for draft in error.drafts]
        at_fault: str | None = error.failures[text.id].field
    except croupier.CroupierError as error:
        is_full: bool = error.code == "RESOURCE_EXHAUSTED" and error.reason == "TOO_MANY_STREAMS"
async def waiting() -> None:
    async with croupier.aio.connect(server, 100, max_rows=5) as stream:
        tokens: list[int] = await stream.sample(logits, texts)
"""
# The types that a program gets. `Any` would not be an exact type.
GETS = """
from typing_extensions import assert_type
from croupier import aio, pb
from croupier.integrations import huggingface, vllm
class Torchs:
    is_floating_point: bool
def gets(rank: croupier.Rank, given: dict[str, Any], wanted: croupier.SamplingFields, mask: np.ndarray[Any, np.dtype[np.int32]]) -> None:
    stream = croupier.connect(server, 5, default_params=croupier.SamplingParams(seed=1))
    assert_type(stream, croupier.Stream)
    with stream as entered:
        assert_type(entered, croupier.Stream)
    for dtype in np.float16, np.dtype(np.float32), logits.dtype, "bfloat16", torch.bfloat16, Torchs():
        croupier.connect(server, 5, dtype=dtype)
    text = stream.open(temperature=0.7, logprobs={"top_n": 5}, prompt=[1, 2])
    assert_type(text, croupier.Sequence)
    assert_type(stream.open(given, **given), croupier.Sequence)
    assert_type(stream.open(**wanted), croupier.Sequence)
    croupier.SamplingParams(temperature=np.float32(0.7), top_k=np.int64(5), stop_token_ids=[np.int64(5)], bad_words=[[np.int64(5)]])
    stream.open(temperature=logits[0, 0], top_k=mask[0], seed=np.uint64(7), logit_bias={5: np.float32(2)}, logprobs=croupier.LogprobsParams(top_n=mask[0]))
    stream.open(engine_order=pb.ENGINE_ORDER_VLLM, logprobs=pb.LogprobsParams(top_n=5))
    assert_type(stream.open(grammar=pb.GrammarParams(regex="[ab]")).params.grammar.regex, str)
    assert_type(text.params, pb.SamplingParams)
    assert_type(text.state, pb.SamplerState | None)
    assert_type(stream.sequences, dict[int, croupier.Sequence])
    assert_type(stream.sample([[0.5]], [text], token_masks=[mask, None]), list[int])
    assert_type(stream.sample((stream.rows(1), stream.top_n(logits, 5)), [text]), list[int])
    assert_type(stream.masked([text], mask), list[pb.Work])
    result = stream.step(logits, [text, pb.Work(sequence_id=text.id, sample=pb.SampleWork())])
    assert_type(result, pb.StepResult)
    assert_type([token.token_id for work in result.work for token in work.tokens], list[int])
    assert_type(result.work[0].tokens[0].logprob, float)
    assert_type(stream.result(), pb.StepResult)
    assert_type(pb.RowStatus.Name(result.work[0].status), str)
    assert_type(pb.FinishReason.Value("FINISH_REASON_EOS"), int)
    assert_type(croupier.SamplingParams(top_k=5).to_pb(), pb.SamplingParams)
    assert_type(croupier.attach(stream.shard_token, 1), croupier.Rank)
    assert_type(rank.send(logits), int)
    assert_type(rank.tokens(1), list[list[int]])
    assert_type(croupier.server_info(server, tls_ca="ca.crt", answer_within=5), pb.GetServerInfoResponse)
    speculation = croupier.Speculation(stream)
    assert_type(speculation.stream, croupier.Stream)
    drafts = speculation.chain([text], lambda pairs: logits)
    assert_type(drafts, list[croupier.Draft])
    assert_type(drafts[0].work(), pb.Work)
    for ids, probabilities in ([[5]], [[1.0]]), (mask, logits):
        assert_type(croupier.Draft(text, np.array([5]), parents=np.array([-1])).token_ids, list[int])
        croupier.Draft(text, [5], distribution=croupier.SparseDistribution(ids, probabilities))
    speculation.tree([text], lambda pairs: logits, [-1], token_masks=lambda pairs: [mask, None], traceparent="x", deadline_ms=50)
    verified = speculation.verify(drafts, logits, token_masks=[mask, None], traceparent="x", deadline_ms=50)
    assert_type(verified, list[croupier.Verified])
    assert_type(verified[0].result, pb.WorkResult)
    assert_type(vllm.CroupierLogitsProcessor.address, str | None)
    assert_type(huggingface.sampling_params(model, 5), pb.SamplingParams)
async def gets_later(text: croupier.Sequence) -> None:
    async with aio.connect(server, 5) as stream:
        assert_type(stream, aio.Stream)
        assert_type(stream.open(top_k=5), croupier.Sequence)
        assert_type(await stream.sample(logits, [text]), list[int])
        assert_type(await stream.step(logits, [text]), pb.StepResult)
        async def model(pairs: list[tuple[croupier.Sequence, list[int]]]) -> np.ndarray[Any, np.dtype[np.float32]]:
            return logits
        speculation = croupier.AsyncSpeculation(stream)
        async def masks(pairs: list[tuple[croupier.Sequence, list[int]]]) -> list[Any]:
            return [None for _ in pairs]
        await speculation.chain([text], model, token_masks=lambda pairs: logits)
        drafts = await speculation.tree([text], model, [-1, -1], token_masks=masks)
        assert_type(drafts, list[croupier.Draft])
        assert_type(await speculation.verify(drafts, logits), list[croupier.Verified])
    assert_type(await aio.server_info(server), pb.GetServerInfoResponse)
    async with aio.attach(token, 1) as rank:
        assert_type(rank, aio.Rank)
        assert_type(await rank.rows(5), croupier.Rows)
"""
# With these streams, each line of `WRONG` is a mistake.
STREAMS = """
stream: croupier.Stream
waiting: croupier.aio.Stream
"""
WRONG = """
croupier.connect(server, 5, max_row=5)
croupier.connect(server, 5, max_rows="5")
croupier.aio.connect(server, 5, tls_sa="x")
croupier.connect(server, 5, dtype=16)
croupier.connect(server, 5, dtype=int)
croupier.attach(token, 1, adress=server)
croupier.SamplingParams(engine_order=5.0)
croupier.connect(server, 5, default_params=[5])
stream.open(temprature=0.7)
stream.open(temperature="warm")
stream.open(top_k=5.0)
croupier.SamplingParams(stop_token_ids=["5"])
stream.open(sampler_state=5)
stream.sample(texts, logits)
stream.sample(logits, texts).append("text")
stream.step(logits, [5])
stream.step(logits, texts).work[0].tokens[0].token_id + "text"
stream.top_n(logits, "5")
waiting.sample(logits, texts).append(5)
croupier.Speculation(waiting)
asyncio.run(waiting)
croupier.Speculation(stream).verify(texts, logits)
croupier.Speculation(stream).chain(texts, model, token_masks=logits)
croupier.pb.Work(sequence=5)
croupier.pb.RowStatus.Name("ROW_STATUS_OK")
croupier.GrammarParams(json_schema=5)
croupier.GrammarParams(json_schema=[{}])
croupier.GrammarParams(regex=["a"])
stream.open(grammar="[ab]")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all tests, so that mypy reads numpy once."""
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


def test_a_program_gets_exact_types(folder):
    assert checked(folder, AROUND + GETS) == []


def test_mistakes_are_seen(folder):
    found = checked(folder, AROUND + STREAMS + WRONG)
    lines = (AROUND + STREAMS + WRONG).splitlines()
    assert [lines[int(line.split(":")[1]) - 1] for line in found] == WRONG.strip().splitlines(), found


@pytest.mark.skipif(tuple(map(int, np.__version__.split(".")[:2])) < (2, 2), reason="this numpy has types for less")
def test_the_package_passes(folder):
    command = [sys.executable, "-m", "mypy", f"--cache-dir={folder}"]
    done = subprocess.run(command, cwd=PYTHON, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
