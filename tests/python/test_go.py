"""The worker in Go does what examples/README.md says about it."""

import os
import shutil
import subprocess
import sys
import time

import pytest
from conftest import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("go"), reason="there is no go, the worker in Go is NOT run")

SOURCES = ["main.go", "go.mod", "go.sum"]
LETTERS = 200


def go(folder, *args, **more):
    """The output of a `go` command, with its own tools and the protobuf compiler that comes with grpcio-tools."""
    tools = folder.parent / "bin"
    path = os.pathsep.join([str(tools), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "GOBIN": str(tools)}
    done = subprocess.run(["go", *args], cwd=folder, env=environment, capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    """The worker, built in a copy of its folder, as the page says."""
    root = tmp_path_factory.mktemp("go")
    folder = root / "examples" / "go"
    folder.mkdir(parents=True)
    (root / "proto").symlink_to(ROOT / "proto")
    for name in SOURCES:
        shutil.copy(ROOT / "examples" / "go" / name, folder)
    protoc = folder.parent / "bin" / "protoc"
    protoc.parent.mkdir()
    protoc.write_text(f'#!/bin/sh\nexec {sys.executable} -m grpc_tools.protoc "$@"\n', encoding="utf-8")
    protoc.chmod(0o755)
    try:
        go(folder, "install", "tool")
    except AssertionError as failed:
        pytest.skip(f"this go cannot install the tools of the schema, the worker in Go is NOT run: {failed}")
    go(folder, "generate")
    go(folder, "vet", "./...")
    assert go(folder, "fmt", "main.go") == "", "gofmt changes it"
    go(folder, "build", "-o", "worker", ".")
    return folder / "worker"


def texts(output):
    lines = output.splitlines()
    assert len(lines) == 3 and all(len(line) == LETTERS for line in lines), output
    return lines


def test_its_texts_are_the_same_over_either_socket_and_behind_a_server_that_was_killed(worker, own_server):
    server = own_server()
    runs = [subprocess.run([worker, at], capture_output=True, text=True, timeout=60) for at in (server.tcp, server.uds)]
    expected = texts(runs[0].stdout)
    assert texts(runs[1].stdout) == expected and len(set(expected)) == 3
    for _ in range(3):
        running = subprocess.Popen([worker, server.tcp], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # Its 50 steps and more take 50 ms each. On a busy machine the kill may come before the first or after the last.
        time.sleep(1)
        server.kill()
        server.start()
        output, log = running.communicate(timeout=120)
        assert texts(output) == expected
        if "opening another stream" in log:
            break
    else:
        pytest.fail(f"it never lost a stream: {log}")


def test_it_ends_where_another_stream_would_not_do(worker, own_server, tmp_path):
    token = tmp_path / "token"
    token.write_text("t" * 32, encoding="utf-8")
    server = own_server("--auth-token-file", str(token))
    ended = subprocess.run([worker, server.tcp], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "Unauthenticated" in ended.stderr, ended
