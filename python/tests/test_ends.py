"""Streams that nobody ends: those that the garbage collector finds in any thread, those in a forked process, and those that are left when
the interpreter exits."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest

import croupier
from croupier import _call
from interrupting import Points, each_point, in_time  # noqa: F401
from test_client import VOCAB, logits
from test_leaving import SHARDS, stop


@pytest.mark.parametrize("of", ["stream", "rank"])
def test_one_that_a_thread_of_grpc_s_collects_ends(server, monkeypatch, in_time, of):  # noqa: F811
    """A gRPC thread processes the end of its call, and closing the connection waits for that thread."""
    zero = croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS)
    ring = [croupier.connect(server.uds, VOCAB) if of == "stream" else croupier.attach(zero.shard_token, 1)]
    threads, collected, handle = ring[0]._hang_up.peek()[2][3], threading.Event(), grpc._channel._handle_event

    def collects(*about):
        if threading.current_thread() in threads and not collected.is_set():
            gc.collect()
            collected.set()
        return handle(*about)

    ring.append(ring)
    gc.disable()
    try:
        monkeypatch.setattr(grpc._channel, "_handle_event", collects)
        # Write something, so that one of gRPC's threads has work.
        if of == "stream":
            ring[0].submit(logits(1, 0), [ring[0].open(seed=1)])
        else:
            ring[0].send(logits(1, 0)[SHARDS[0]:])
        del ring
        assert collected.wait(10), "closing waits for the thread that it is in"
    finally:
        gc.enable()
    give_up = time.monotonic() + 10
    while any(thread.is_alive() for thread in threads) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not any(thread.is_alive() for thread in threads)
    zero.end()


def test_a_fork_connects_though_a_thread_of_its_parent_was_connecting(server):
    with _call._DIALLING:
        child = os.fork()
        if not child:
            code = 1
            try:
                with croupier.connect(server.uds, VOCAB) as stream:
                    code = 0 if stream.sample(logits(1, 0), [stream.open(seed=1)]) else 1
            finally:
                os._exit(code)
        give_up = time.monotonic() + 30
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < give_up:
            time.sleep(0.01)
        if not ended[0]:
            os.kill(child, 9)
            os.waitpid(child, 0)
    assert ended == (child, 0)


@pytest.mark.parametrize("of", ["stream", "rank"])
def test_one_ends_where_no_thread_begins_any_more(server, monkeypatch, of):
    """As in an `atexit` function, from Python 3.12 on."""
    zero = croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS)
    one = zero if of == "stream" else croupier.attach(zero.shard_token, 1)
    threads = one._hang_up.peek()[2][3]

    def refuses(*_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(threading, "_start_new_thread", refuses)
        # From Python 3.13 on.
        patch.setattr(threading, "_start_joinable_thread", refuses, raising=False)
        one.end()
    assert threads and not any(thread.is_alive() for thread in threads)
    zero.end()


PROGRAM = """
import asyncio, atexit, sys
import croupier
address, vocab, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
logits = [[0.0] * vocab]

async def leaves():
    stream = croupier.aio.connect(address, vocab)
    await stream.__aenter__()
    await stream.submit(logits, [stream.open(seed=1)])

if kind == "asyncio":
    asyncio.run(leaves())
else:
    stream = croupier.connect(address, vocab)
    stream.submit(logits, [stream.open(seed=1)])
    if kind == "atexit":
        atexit.register(stream.end)
    if kind == "ring":
        ring = [stream]
        ring.append(ring)
        del ring, stream
"""


@pytest.mark.parametrize("kind", ["sync", "asyncio", "atexit", "ring"])
def test_a_program_that_ends_no_stream_ends_without_a_warning(server, kind):
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "always", "-c", PROGRAM, server.uds, str(VOCAB), kind], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("of", ["stream", "rank"])
def test_one_of_another_event_loop_is_told(server, in_time, of):  # noqa: F811
    """As in tests that have a loop each and share a stream. The stream's own loop has ended: gRPC's calls would raise an obscure error,
    or wait for ever."""
    zero = croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS)
    one = croupier.aio.connect(server.uds, VOCAB) if of == "stream" else croupier.aio.attach(zero.shard_token, 1)
    text = zero.open(seed=1)
    calls = {"stream": (lambda: one.sample(logits(1, 0), [text]), lambda: one.submit(logits(1, 0), [text]), lambda: one.result(), lambda: one.give_up()),
             "rank": (lambda: one.send(logits(1, 0)[SHARDS[0]:]), lambda: one.rows(1), lambda: one.tokens(1), lambda: one.wait())}[of]

    async def elsewhere():
        for call in calls:
            with pytest.raises(croupier.CroupierError, match=f"the {of} was connected in another event loop"):
                await call()
        for _ in range(2):
            await one.end()
        for call in calls[:2]:
            with pytest.raises(croupier.CroupierError, match=f"the {of} was ended"):
                await call()

    asyncio.run(one.__aenter__())
    before = server.regions()
    asyncio.run(elsewhere())
    if of == "stream":
        give_up = time.monotonic() + 10
        while server.regions() == before and time.monotonic() < give_up:
            time.sleep(0.01)
        assert server.regions() == before - 1, "what it had is free"
    zero.end()


def test_asyncio_s_that_are_not_connected_yet_are_told(server):
    async def run():
        stream = croupier.aio.connect(server.uds, VOCAB, vocab_shards=SHARDS)
        with pytest.raises(croupier.CroupierError, match="the stream is not connected yet"):
            stream.shard_token
        async with stream:
            rank = croupier.aio.attach(stream.shard_token, 1)
            for call in (lambda: rank.tokens(1)), rank.wait, (lambda: rank.rows(1)):
                with pytest.raises(croupier.CroupierError, match="the rank is not attached: use it in"):
                    await call()

    asyncio.run(run())


@pytest.mark.parametrize("path", ["inline", "shared_memory"])
def test_a_step_whose_stream_another_thread_ends_says_so(server, in_time, path):  # noqa: F811
    """The stream is ended at each point of the step."""
    rows = np.stack([logits(text, 0) for text in range(3)])

    def attempt(points):
        # There is room for two rows, so the step is sent as two messages.
        stream = croupier.connect(server.uds, VOCAB, data_path=path, max_rows=2, slots=1)
        texts, said = [stream.open(seed=text) for text in range(3)], []

        def ends():
            other = threading.Thread(target=stream.end)
            other.start()
            other.join()

        def call():
            try:
                stream.sample(rows, texts)
            except croupier.CroupierError as error:
                said.append(str(error))

        points.does = ends
        points.call(call)
        assert points.left > 0 or said in ([], ["the stream was ended; connect a new one"])
        with pytest.raises(croupier.CroupierError, match="the stream was ended"):
            stream.end()
            stream.sample(rows, texts)

    each_point(attempt, 50, every=3)


@pytest.mark.parametrize("by", ["another thread", "a handler"])
@pytest.mark.parametrize("path", ["inline", "shared_memory"])
def test_a_rank_that_waits_may_be_ended(server, in_time, path, by):  # noqa: F811
    """gRPC has an error for two readers of one call, and asks for it to be reported."""
    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream:
        rank, told = croupier.attach(stream.shard_token, 1, data_path=path), []
        rank.send(logits(1, 0)[SHARDS[0]:])

        def ends(*_):
            try:
                rank.end()
            except BaseException as error:
                told.append(error)

        before = signal.signal(signal.SIGUSR1, ends)
        try:
            later = threading.Timer(0.3, ends if by == "another thread" else lambda: os.kill(os.getpid(), signal.SIGUSR1))
            later.start()
            with pytest.raises(croupier.CroupierError, match="^the rank was ended; attach again$"):
                rank.wait()
            later.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert told == []


@pytest.mark.parametrize("by", ["another thread", "a handler"])
@pytest.mark.parametrize("of", ["stream", "rank"])
def test_one_that_is_being_ended_may_be_ended(server, in_time, of, by):  # noqa: F811
    zero, told = croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS), []
    one = zero if of == "stream" else croupier.attach(zero.shard_token, 1)

    def ends(*_):
        try:
            one.end()
        except BaseException as error:
            told.append(error)

    before = signal.signal(signal.SIGUSR1, ends)
    try:
        # The first end waits for the server to answer.
        stop(server)
        later = threading.Timer(0.3, ends if by == "another thread" else lambda: os.kill(os.getpid(), signal.SIGUSR1))
        later.start()
        ends()
        later.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
        server.process.send_signal(signal.SIGCONT)
    assert told == []
    zero.end()


@pytest.mark.parametrize("of", ["stream", "rank"])
def test_two_threads_may_end_one_at_once(server, in_time, monkeypatch, of):  # noqa: F811
    """The second one begins at each of the first points of the first one."""
    monkeypatch.setattr(_call, "PART_WITHIN", 0.3)
    told = []

    def ends(one):
        try:
            one.end()
        except BaseException as error:
            told.append(error)

    for count in range(1, 7):
        zero = croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS)
        one, points = zero if of == "stream" else croupier.attach(zero.shard_token, 1), Points(count)
        other = threading.Thread(target=ends, args=[one])
        points.does = lambda: (other.start(), time.sleep(0.1))
        stop(server)
        points.call(lambda: ends(one))
        server.process.send_signal(signal.SIGCONT)
        assert points.left == 0
        other.join()
        assert told == []
        zero.end()


@pytest.mark.parametrize("is_there", [True, False], ids=["does not answer", "is not there"])
@pytest.mark.parametrize("kind", ["sync", "asyncio", "asyncio, at first"])
def test_a_stream_that_waits_for_its_server_may_be_ended(server, in_time, kind, is_there):  # noqa: F811
    async def run():
        stream = (croupier if kind == "sync" else croupier.aio).connect(server.uds, VOCAB, reconnect_within=600)
        if kind == "asyncio":
            await stream.__aenter__()
        text = stream.open(seed=1)
        server.kill()
        if is_there:
            server.start()
            stop(server)
        else:
            os.unlink(server.path)
        waits = {"sync": lambda: asyncio.to_thread(stream.sample, logits(1, 0), [text]), "asyncio": lambda: stream.sample(logits(1, 0), [text]),
                 "asyncio, at first": lambda: stream.__aenter__()}[kind]
        waiting = asyncio.ensure_future(waits())
        await asyncio.sleep(0.5)
        await asyncio.to_thread(stream.end) if kind == "sync" else await stream.end()
        with pytest.raises(croupier.CroupierError, match="^the stream was ended; connect a new one$"):
            await waiting
        server.process.send_signal(signal.SIGCONT)

    asyncio.run(run())


def test_answers_are_for_one_thread_at_a_time(server, in_time):  # noqa: F811
    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream, croupier.attach(stream.shard_token, 1) as rank:
        text, told = stream.open(seed=1), []
        rank.send(logits(1, 0)[SHARDS[0]:])
        waiting = threading.Thread(target=lambda: told.append(rank.wait()))
        waiting.start()
        while rank._turn.is_free():
            time.sleep(0.01)
        with pytest.raises(croupier.CroupierError, match="another thread is in the middle of a wait; only one thread at a time may use a rank"):
            rank.wait()
        stream.sample(logits(1, 0)[: SHARDS[0]], [text])
        waiting.join()
        assert told == [[]]


@pytest.mark.parametrize("leaves", ["freed", "ended in another loop"])
def test_asyncio_s_that_nobody_ends_end_where_their_loop_runs(serve, leaves):
    """gRPC itself keeps a call for as long as its loop runs."""
    server = serve("--max-streams=3")

    async def run():
        for at in range(12):
            stream = croupier.aio.connect(server.uds, VOCAB, reconnect_within=5)
            await stream.__aenter__()
            await stream.sample(logits(1, at)[None], [stream.open(seed=at)])
            if leaves != "freed":
                await asyncio.to_thread(asyncio.run, stream.end())
            del stream
            gc.collect()

    asyncio.run(run())


def test_asyncio_s_rank_that_nobody_ends_ends_where_its_loop_runs(server):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB, vocab_shards=SHARDS) as zero:
            for _ in range(5):
                # Only one call at a time may attach a rank.
                rank = await attached(zero)
                del rank
                gc.collect()

    async def attached(zero):
        give_up = time.monotonic() + 10
        while True:
            rank = croupier.aio.attach(zero.shard_token, 1)
            try:
                return await rank.__aenter__()
            except croupier.CroupierError as error:
                assert "already attached" in str(error) and time.monotonic() < give_up
                await asyncio.sleep(0.01)

    asyncio.run(run())


# What still has the stream when the interpreter lets go of the last objects.
HOLDERS = {
    "generator": """
def tokens():
    with croupier.connect(sys.argv[1], int(sys.argv[2])) as stream:
        text = stream.open(seed=1)
        while True:
            yield stream.sample(numpy.zeros((1, int(sys.argv[2])), "f4"), [text])[0]
held = tokens()
next(held)
""",
    "finalizer": """
class Held:
    def __init__(self):
        self.stream = croupier.connect(sys.argv[1], int(sys.argv[2]))
    def __del__(self):
        self.stream.end()
held = Held()
""",
}


@pytest.mark.parametrize("how", ["end", "exception"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_program_ends_though_something_still_has_the_stream(server, holder, how):
    program = "import sys, croupier, numpy\n" + HOLDERS[holder] + ("raise SystemExit(7)\n" if how == "exception" else "")
    command = [sys.executable, "-c", program, server.uds, str(VOCAB)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7 if how == "exception" else 0, "")
