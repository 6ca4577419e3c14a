"""A server that its system gives no more threads goes on: what needs one waits for one that is there, or is refused and told why."""

import contextlib
import functools
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile
import time

import numpy as np
import pytest

import croupier
from grammar_vocabulary import END, SCHEMA, VOCAB, model, started

#: Nobody's, and no other run's, so that only what is started here counts. The superuser has no limit.
USER = 50_000 + os.getpid() % 10_000
#: Threads and processes of that user.
MOST = 64
#: Longer than what a thread that serves others reads by the way.
LONG = 200_000


@pytest.fixture
def folder():
    """Where that user may read, and has the binary."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="croupier-threads-"))
    path.chmod(0o755)
    shutil.copy(os.environ["CROUPIER_BIN"], path / "croupier")
    yield path
    shutil.rmtree(path)


def as_user():
    """In a process that is about to be another program. The limit comes first: it is looked at with the user's number of processes."""
    resource.setrlimit(resource.RLIMIT_NPROC, (MOST, MOST))
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)


@pytest.fixture
def server(serve, folder, monkeypatch):
    if os.geteuid():
        pytest.skip("only the superuser can start a server as another user, of whom nothing else runs")
    monkeypatch.setenv("CROUPIER_BIN", str(folder / "croupier"))
    flags = ("--io-threads=2", "--threads=1", "--max-history-tokens=1000000")
    return started(lambda *own: serve(*flags, *own, stderr=subprocess.PIPE, preexec_fn=as_user), folder)


def asleep():
    """A process of that user; none if it may have no more. Not by `as_user`: a fork of a process with gRPC in it has further threads for a
    while, which count."""
    limits = ["prlimit", f"--nproc={MOST}", "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    process = subprocess.Popen([*limits, "sleep", "600"], stderr=subprocess.DEVNULL)
    name = pathlib.Path(f"/proc/{process.pid}/comm")
    while process.poll() is None:
        if name.read_text() == "sleep\n":
            return process
        time.sleep(0.001)
    return None


@contextlib.contextmanager
def no_threads_left():
    """That user has as many processes as it may."""
    others = []
    try:
        while len(others) < MOST and (other := asleep()):
            others.append(other)
        assert 0 < len(others) < MOST
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def drawn(stream, count=4, **params):
    texts = [stream.open(seed=seed, **params) for seed in range(count)]
    return [stream.sample(np.stack([model(text.tokens) for text in texts]), texts) for _ in range(2)]


def test_a_server_without_further_threads_goes_on(server):
    # Nothing that takes a thread, which would be there for a while.
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END], data_path="inline") as stream:
        expected = drawn(stream)
    with contextlib.ExitStack() as ended:
        with no_threads_left():
            connect = functools.partial(croupier.connect, server.uds, VOCAB, eos_token_ids=[END], data_path="shared_memory")
            streams = [ended.enter_context(connect()) for _ in range(4)]
            for stream in streams:
                assert drawn(stream, prompt=[5] * LONG, max_tokens=10)
                # It takes a thread of its own to compile one.
                with pytest.raises(croupier.OpenError, match="has no thread"):
                    drawn(stream, 1, grammar={"json_schema": SCHEMA})
                assert drawn(stream) == expected
        assert drawn(streams[0], 1, grammar={"json_schema": SCHEMA})
    server.process.terminate()
    _, log = server.process.communicate(timeout=60)
    assert server.process.returncode == 0 and b"panicked" not in log, log.decode()
