"""The worker in Node does what examples/README.md says about it."""

import shutil
import subprocess
import time

import pytest
from conftest import ROOT

pytestmark = pytest.mark.skipif(
    not (shutil.which("node") and shutil.which("npm")), reason="there is no node or no npm, the worker in Node is NOT run"
)

SOURCES = ["worker.mjs", "package.json", "package-lock.json"]
LETTERS = 200


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    """The command of the worker, in a copy of its folder, with its packages installed as the page says."""
    root = tmp_path_factory.mktemp("node")
    folder = root / "examples" / "node"
    folder.mkdir(parents=True)
    (root / "proto").symlink_to(ROOT / "proto")
    for name in SOURCES:
        shutil.copy(ROOT / "examples" / "node" / name, folder)
    installed = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund", "--engine-strict"], cwd=folder, capture_output=True, text=True
    )
    assert "EUSAGE" not in installed.stderr, installed.stderr  # package-lock.json is not that of package.json.
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install the packages of the worker in Node, it is NOT run: {installed.stderr}")
    return ["node", str(folder / "worker.mjs")]


def texts(output):
    lines = output.splitlines()
    assert len(lines) == 3 and all(len(line) == LETTERS for line in lines), output
    return lines


def test_its_texts_are_the_same_over_either_socket_and_behind_a_server_that_was_killed(worker, own_server):
    server = own_server()
    runs = [subprocess.run([*worker, at], capture_output=True, text=True, timeout=60) for at in (server.tcp, server.uds)]
    expected = texts(runs[0].stdout)
    assert texts(runs[1].stdout) == expected and len(set(expected)) == 3
    for _ in range(3):
        running = subprocess.Popen([*worker, server.tcp], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # Its 50 steps and more take 50 ms each. On a busy machine the kill may come before the first or after the last.
        time.sleep(1.5)
        server.kill()
        server.start()
        output, log = running.communicate(timeout=120)
        assert texts(output) == expected, log
        if "opening another stream" in log:
            break
    else:
        pytest.fail(f"it never lost a stream: {log}")


def test_it_ends_where_another_stream_would_not_do(worker, own_server, tmp_path):
    token = tmp_path / "token"
    token.write_text("t" * 32, encoding="utf-8")
    server = own_server("--auth-token-file", str(token))
    ended = subprocess.run([*worker, server.tcp], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "UNAUTHENTICATED" in ended.stderr, ended
