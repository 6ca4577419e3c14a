"""A server that gets no more threads from the system continues. Work that needs a thread waits for an existing one, or is refused with the
reason."""

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

#: A user that nobody else uses, not even another run, so that only processes started here count. The superuser has no limit.
USER = 50_000 + os.getpid() % 10_000
#: The limit of threads and processes of that user.
MOST = 64
#: Longer than a prompt that a serving thread processes itself.
LONG = 200_000


@pytest.fixture
def folder():
    """A folder that this user may read, with the binary in it."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="croupier-threads-"))
    path.chmod(0o755)
    shutil.copy(os.environ["CROUPIER_BIN"], path / "croupier")
    yield path
    shutil.rmtree(path)


def as_user():
    """Runs in a process before it executes another program. The limit is set first, because it is checked with the user's number of
    processes."""
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
    """Starts a process as that user, or returns None if the user may have no more. This does not use `as_user`: a fork of a process with
    gRPC has further threads for a while, and they count."""
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
    """Within this context, the user has as many processes as allowed."""
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
    # Nothing here may need a thread, because the thread would exist for a while.
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END], data_path="inline") as stream:
        expected = drawn(stream)
    with contextlib.ExitStack() as ended:
        with no_threads_left():
            connect = functools.partial(croupier.connect, server.uds, VOCAB, eos_token_ids=[END], data_path="shared_memory")
            streams = [ended.enter_context(connect()) for _ in range(4)]
            for stream in streams:
                assert drawn(stream, prompt=[5] * LONG, max_tokens=10)
                # Compiling a grammar needs a separate thread.
                with pytest.raises(croupier.OpenError, match="has no thread"):
                    drawn(stream, 1, grammar={"json_schema": SCHEMA})
                assert drawn(stream) == expected
        assert drawn(streams[0], 1, grammar={"json_schema": SCHEMA})
    server.process.terminate()
    _, log = server.process.communicate(timeout=60)
    assert server.process.returncode == 0 and b"panicked" not in log, log.decode()
