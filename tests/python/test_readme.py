"""The snippets of README.md and docs/clients.md do what these pages say. Only the server's address is replaced."""

import json
import os
import re
import subprocess
import sys

import pytest
from conftest import GRPC_TOOLS, ROOT

DEFAULT_ADDRESS = "127.0.0.1:50051"


def block(page, language, word):
    """The only block of this language on a page that contains `word`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [b for b in re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S) if word in b]
    assert len(found) == 1, f"{page} has {len(found)} {language} blocks with {word}"
    return found[0]


def run(command, **more):
    """The output of a command in the root of the repository, with this Python as `python`."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def elsewhere(text, server):
    assert text.count(DEFAULT_ADDRESS) >= 1, f"{DEFAULT_ADDRESS} is not in:\n{text}"
    return text.replace(DEFAULT_ADDRESS, server.tcp)


def test_the_python_snippet_prints_what_is_shown(server):
    # The packages are installed already, in the versions that the tests require.
    page = "docs/clients.md"
    setup = [line for line in block(page, "sh", "grpc_tools.protoc").splitlines() if not line.startswith("pip install ")]
    run(["bash", "-ec", "\n".join(setup)])
    # The second snippet also handles errors.
    for word in ["def model", "def opened"]:
        snippet = block(page, "python", word)
        assert run(["python", "-"], input=elsewhere(snippet, server)) == block(page, "text", "[")


@pytest.mark.skipif(not GRPC_TOOLS, reason="GRPC_TOOLS names no folder with grpcurl, README's line is NOT run")
def test_the_grpcurl_line_answers_what_is_shown(server):
    line = elsewhere(block("README.md", "sh", "grpcurl -plaintext"), server)
    answer = run(["bash", "-ec", line.replace("grpcurl", f"{GRPC_TOOLS}/grpcurl", 1)])
    assert json.loads(answer) == json.loads(block("README.md", "json", "rows"))
