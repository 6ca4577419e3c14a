"""Effects on others of a stream or a rank that is left in the middle of a call, ended by another thread or task, forked, or connected
concurrently."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import croupier
from croupier import _regions
from test_client import VOCAB, logits
from test_waiting import stop

SHARDS = [400, 600]


def test_a_rank_whose_wait_was_cancelled_goes_on(server):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream:
            text = stream.open(seed=1)
            async with croupier.aio.attach(stream.shard_token, 1) as rank:
                for position in range(3):
                    await rank.send(logits(1, position)[400:])
                    for _ in range(3):
                        with pytest.raises(asyncio.TimeoutError):
                            await asyncio.wait_for(rank.wait(), 0.05)
                    await stream.sample(logits(1, position)[:400], [text])
                    assert await rank.wait() == []
        with pytest.raises(croupier.CroupierError, match="the rank was ended"):
            await rank.rows(1)

    asyncio.run(run())


@pytest.mark.parametrize("path", ["inline", "shared_memory"])
def test_a_cancelled_step_that_is_given_up_is_the_stream_s_last_no_more(server, path):
    def rows(position):
        return np.stack([logits(1, position), logits(2, position)])

    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(seed=1), stream.open(seed=2)]
        expected = [stream.sample(rows(position), texts) for position in range(5)]

    async def run():
        async with croupier.aio.connect(server.uds, VOCAB, data_path=path) as stream:
            texts = [stream.open(seed=1), stream.open(seed=2)]
            got = [await stream.sample(rows(0), texts)]
            # Nothing is in flight, so there is nothing to give up.
            await stream.give_up()
            got.append(await stream.sample(rows(1), texts))
            stop(server)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(stream.sample(rows(2), texts), 0.2)
            server.process.send_signal(signal.SIGCONT)
            with pytest.raises(croupier.CroupierError, match=r"or call give_up\(\)"):
                await stream.sample(rows(2), texts)
            await stream.give_up()
            assert [text.tokens for text in texts] == [list(tokens) for tokens in zip(*got)]
            for position in range(2, 5):
                got.append(await stream.sample(rows(position), texts))
            return got

    assert asyncio.run(run()) == expected


def test_a_server_that_does_not_answer_a_rank_is_told(server):
    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream:
        token = stream.shard_token

        async def attach():
            async with croupier.aio.attach(token, 1, attach_within=0.3):
                pass

        stop(server)
        for kind in lambda: croupier.attach(token, 1, attach_within=0.3), lambda: asyncio.run(attach()):
            with pytest.raises(croupier.CroupierError, match="the server did not answer within 0.3 s"):
                kind()
        with pytest.raises(ValueError, match="attach_within is -1, must be a number of seconds, at least 0"):
            croupier.attach(token, 1, attach_within=-1)
        server.process.send_signal(signal.SIGCONT)
        with croupier.attach(token, 1) as rank:
            rank.send(logits(1, 0)[400:])
            assert stream.sample(logits(1, 0)[:400], [stream.open(seed=1)])


def test_a_rank_that_was_ended_says_so(server):
    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream:
        with croupier.attach(stream.shard_token, 1) as rank:
            rank.send(logits(1, 0)[400:])
        for late in lambda: rank.send(logits(1, 1)[400:]), rank.wait, lambda: rank.rows(1):
            with pytest.raises(croupier.CroupierError, match="the rank was ended"):
                late()


def test_another_task_s_end_is_no_cancellation(server):
    async def run():
        stream = croupier.aio.connect(server.uds, VOCAB)
        await stream.__aenter__()
        stop(server)
        task = asyncio.create_task(stream.sample(logits(1, 0), [stream.open(seed=1)]))
        await asyncio.sleep(0.2)
        await stream.end()
        with pytest.raises(croupier.CroupierError, match="the stream was ended"):
            await task
        assert not task.cancelled()

    asyncio.run(run())


def test_a_reconnect_that_is_cancelled_leaves_the_next_one_alone(server, monkeypatch):
    lease, slow = _regions.lease, threading.Event()

    def slowly(*about):
        if slow.is_set():
            slow.clear()
            time.sleep(0.7)
        return lease(*about)

    monkeypatch.setattr(_regions, "lease", slowly)

    async def run():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            text = stream.open(seed=1)
            await stream.sample(logits(1, 0), [text])
            with pytest.raises(croupier.CroupierError, match="kind"):
                await stream.step(logits(1, 1), [croupier.pb.Work(sequence_id=text.id)])
            slow.set()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(stream.sample(logits(1, 1), [text]), 0.3)
            await stream.sample(logits(1, 1), [text])
            await asyncio.sleep(1)
            assert stream.data_path == "shared_memory", stream.data_path_reason
            await stream.sample(logits(1, 2), [text])

    asyncio.run(run())


@pytest.mark.parametrize("ends", ["end", "exit"])
def test_a_fork_ends_and_its_parent_goes_on(server, ends):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=1)
        stream.sample(logits(1, 0), [text])
        child = os.fork()
        if not child:
            # Whatever happens here, pytest must not continue in the child too.
            code = 1
            try:
                if ends == "end":
                    stream.end()
                else:
                    with pytest.raises(croupier.CroupierError, match="belongs to the parent process of this fork"):
                        stream.sample(logits(1, 0), [text])
                    stream._hang_up()
                code = 0
            finally:
                os._exit(code)
        give_up = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < give_up:
            time.sleep(0.01)
        assert ended == (child, 0)
        assert len(stream.sample(logits(1, 1), [text])) == 1


_FORKS = """
import asyncio, os, sys
import croupier
from test_client import logits
from test_leaving import SHARDS, VOCAB

async def run(target, of):
    async with croupier.aio.connect(target, VOCAB, vocab_shards=SHARDS) as stream:
        async with croupier.aio.attach(stream.shard_token, 1) as rank:
            text = stream.open(seed=1)
            child = os.fork()
            if not child:
                # It waits for nothing, and has no loop.
                ended = False
                try:
                    (stream if of == "stream" else rank).end().send(None)
                except StopIteration:
                    ended = True
                finally:
                    os._exit(0 if ended else 1)
            assert os.waitpid(child, 0) == (child, 0)
            await rank.send(logits(1, 0)[400:])
            assert len(await stream.sample(logits(1, 0)[:400], [text])) == 1
            assert await rank.wait() == []

asyncio.run(run(*sys.argv[1:]))
"""


@pytest.mark.parametrize("of", ["stream", "rank"])
def test_a_fork_ends_and_its_parent_goes_on_with_asyncio(server, of):
    """In a process without gRPC's own handlers of forks: with them any child of a program that uses its asyncio may crash, whatever it does."""
    path = os.pathsep.join([os.path.dirname(__file__), os.path.dirname(os.path.dirname(croupier.__file__))])
    ran = subprocess.run([sys.executable, "-c", _FORKS, server.uds, of], check=False, capture_output=True, text=True, timeout=60,
                         env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0", "PYTHONPATH": path})
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_streams_that_connect_at_once_end_at_once(server):
    streams = []
    threads = [threading.Thread(target=lambda: streams.append(croupier.connect(server.uds, VOCAB))) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    waited = [set(stream._hang_up.peek()[2][3]) for stream in streams]
    assert all(waited), "each has threads of gRPC's"
    assert sum(map(len, waited)) == len(set.union(*waited)), "and none has another's"
    [stream.end() for stream in streams]


def test_any_patience_is_taken(server):
    for patience in (float("inf"), 1e12):
        with croupier.connect(server.uds, VOCAB, reconnect_within=patience) as stream:
            assert len(stream.sample(logits(1, 0), [stream.open(seed=1)])) == 1


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_rank_that_waits_for_tokens_sees_that_the_server_is_gone(server, kind):
    async def run():
        with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS, reconnect_within=0.1) as stream:
            rank = (croupier if kind == "sync" else croupier.aio).attach(stream.shard_token, 1)
            if kind == "asyncio":
                await rank.__aenter__()
            do = lambda thing: thing if kind == "sync" else asyncio.ensure_future(thing)
            sent = do(rank.send(logits(1, 0)[400:]))
            step = sent if kind == "sync" else await sent
            threading.Timer(0.3, server.kill).start()
            begun = time.monotonic()
            with pytest.raises(croupier.CroupierError, match="UNAVAILABLE"):
                tokens = rank.tokens(step, timeout=60)
                tokens if kind == "sync" else await tokens
            assert time.monotonic() - begun < 30
            if kind == "sync":
                rank.end()
            else:
                await rank.end()

    asyncio.run(run())


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("wrong", [[np.nan], [np.inf], [np.inf] * 30, [np.inf, np.nan], [np.nan] * 30 + [np.inf]])
def test_a_top_n_row_is_wrong_as_the_whole_one_is(server, dtype, wrong):
    with croupier.connect(server.uds, VOCAB, dtype=dtype) as stream:
        row = logits(1, 0)
        row[np.arange(len(wrong)) * 7 + 500] = wrong
        said = []
        for given in row, stream.top_n(row, 20):
            text = stream.open(seed=1)
            with pytest.raises(croupier.RowError) as error:
                stream.sample(given, [text])
            said.append(error.value.failures[text.id].status)
        assert said[0] == said[1] == ("NAN_LOGITS" if np.isnan(wrong).any() else "POSITIVE_INFINITY")


def test_arrays_that_would_lose_something_are_refused(server):
    with croupier.connect(server.uds, VOCAB, dtype="f16") as stream:
        text = stream.open(temperature=0.0)
        masked = np.ma.masked_greater(logits(1, 0), 5)
        with pytest.raises(TypeError, match="mask"):
            stream.sample(masked, [text])
        with pytest.raises(TypeError, match="complex64"):
            stream.sample(logits(1, 0).astype("c8"), [text])
        # bf16, in either byte order.
        bits = (logits(1, 0).view("<u4") >> 16).astype("<u2")
        assert stream.sample(bits, [text]) == stream.sample(bits.astype(">u2"), [text]) == [int(logits(1, 0).argmax())]


def test_a_wait_for_no_step_or_no_time_is_told(server):
    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream, croupier.attach(stream.shard_token, 1) as rank:
        for step in 0, -1:
            with pytest.raises(ValueError, match=f"step_id is {step}, must be in 1"):
                rank.tokens(step)
        with pytest.raises(TypeError, match="step_id is None, must be a whole number"):
            rank.tokens(None)
        with pytest.raises(ValueError, match="timeout is None, must be a number of seconds, at least 0"):
            rank.tokens(1, timeout=None)


def test_asyncio_connects_once(server):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream:
            rank = croupier.aio.attach(stream.shard_token, 1)
            async with rank:
                for each, said in (stream, "the stream is connected already"), (rank, "the rank is attached already"):
                    with pytest.raises(croupier.CroupierError, match=said):
                        await each.__aenter__()
            # Another rank has taken its place by now.
            async with croupier.aio.attach(stream.shard_token, 1):
                with pytest.raises(croupier.CroupierError, match="the rank was ended"):
                    await rank.__aenter__()
        for _ in range(2):
            await stream.end()
            await rank.end()

    asyncio.run(run())


def test_a_message_that_is_to_come_again_does_so_whoever_is_cancelled_in_the_pause(server):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            text, channel = stream.open(seed=1), stream._home.channel
            [part] = stream._session.step(logits(1, 0), [text]).parts
            # The state after a refusal.
            stream._session.send(part)
            # A wait that is longer than this test.
            stream._refused = time.monotonic() + 3600, part
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(stream.result(), 0.01)
            if stream._refused:
                stream._refused = time.monotonic() + 0.3, stream._refused[1]
            await stream.submit(logits(1, 1), [text])
            for _ in range(2):
                await stream.result()
            assert stream._home.channel is channel
            return text.tokens

    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=1)
        for position in range(2):
            stream.sample(logits(1, position), [text])
    assert asyncio.run(run()) == text.tokens
