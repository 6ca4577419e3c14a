"""A rank that is interrupted or cancelled in the pause after a refusal: its shard goes with the next call. And what is given back where an
attach or an end is left in the middle."""

import asyncio
import inspect
import signal
import threading
import time

import numpy as np
import pytest

import croupier
from croupier import _aio_ranks, _regions, ranks
from test_client import VOCAB, logits
from test_interrupted import Alarm, interrupted  # noqa: F401
from test_leaving import SHARDS
from test_waiting import NAMES, stop


@pytest.fixture
def in_time():
    """Ends a test that would wait for ever."""
    def handler(*_):
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, handler)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def rows(position):
    return np.stack([logits(text, position) for text in (1, 2)])


class Pausing:
    """A module, whose first `sleep` is another."""

    def __init__(self, module, sleep):
        self._module, self._sleep = module, sleep

    def __getattr__(self, name):
        return getattr(self._module, name)

    def sleep(self, seconds):
        sleep, self._sleep = self._sleep, self._module.sleep
        return sleep(seconds)


def interrupts(seconds):
    raise Alarm


async def cancels(seconds):
    asyncio.current_task().cancel()
    await asyncio.sleep(seconds)


async def got(result):
    return await result if inspect.isawaitable(result) else result


#: What may come next, and what it gives.
CALLS = {
    "wait": (lambda rank: rank.wait(), lambda tokens: []),
    "rows": (lambda rank: rank.rows(1), None),
    "send": (lambda rank: rank.send(rows(1)[:, SHARDS[0]:]), lambda tokens: 2),
    "tokens": (lambda rank: rank.tokens(1), lambda tokens: [[token] for token in tokens]),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", NAMES)
def test_a_shard_whose_pause_was_left_goes_with_the_next_call(serve, in_time, monkeypatch, kind, call):
    server = serve("--max-shard-bytes=20000")
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(seed=1), stream.open(seed=2)]
        expected = [stream.sample(rows(position), texts) for position in range(2)]
    next_call, gives = CALLS[call]
    monkeypatch.setattr(ranks, "time", Pausing(time, interrupts))
    monkeypatch.setattr(_aio_ranks, "asyncio", Pausing(asyncio, cancels))

    async def run(hog, stream):
        # The columns of another group leave no room.
        full = croupier.attach(hog.shard_token, 1, data_path="inline")
        full.send(np.zeros((8, SHARDS[1]), np.float32))
        time.sleep(0.3)
        rank = (croupier if kind == "sync" else croupier.aio).attach(stream.shard_token, 1)
        if kind == "asyncio":
            await rank.__aenter__()
        assert await got(rank.send(rows(0)[:, SHARDS[0]:])) == 1
        with pytest.raises((Alarm, asyncio.CancelledError)):
            await (asyncio.ensure_future(got(rank.wait())) if kind == "asyncio" else got(rank.wait()))
        hog.step(np.zeros((8, SHARDS[0]), np.float32), [hog.open() for _ in range(8)])
        assert full.wait() == []
        full.end()
        # Rank 0 goes on meanwhile.
        sampled, count = [], 2 if call == "send" else 1
        texts = [stream.open(seed=1), stream.open(seed=2)]

        def follow():
            sampled.extend(stream.sample(rows(position)[:, : SHARDS[0]], texts) for position in range(count))

        zero = threading.Thread(target=follow)
        zero.start()
        result = await got(next_call(rank))
        assert gives is None or result == gives(expected[0])
        await asyncio.to_thread(zero.join)
        assert sampled == expected[:count]
        assert await got(rank.wait()) == []
        await got(rank.end())

    # Rows that a slot does not hold go in messages.
    with (croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS, data_path="inline") as hog,
          croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS, max_rows=1) as stream):
        asyncio.run(run(hog, stream))


def test_a_pause_goes_on_where_it_was_left(serve, in_time):
    """However often it is cancelled: the shard is not put off each time."""
    server = serve("--max-shard-bytes=20000")

    async def run(hog, stream):
        async with croupier.aio.attach(hog.shard_token, 1, data_path="inline") as full:
            await full.send(np.zeros((8, SHARDS[1]), np.float32))
            await asyncio.sleep(0.3)
            async with croupier.aio.attach(stream.shard_token, 1, data_path="inline") as rank:
                await rank.send(rows(0)[:, SHARDS[0]:])
                rank._session.answered(await rank._read())
                step, due = rank._session.unsent
                rank._session.unsent = step, due + 0.3
                while pause := rank._session.pause():
                    with pytest.raises(asyncio.TimeoutError):
                        await asyncio.wait_for(rank.wait(), min(pause / 2, 0.1))
                    assert not rank._broken
                    if pause < 0.05:
                        break
                assert rank._session.unsent == (step, due + 0.3)

    with (croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS, data_path="inline") as hog,
          croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS, data_path="inline") as stream):
        asyncio.run(run(hog, stream))


def test_an_attach_that_is_cancelled_gives_its_region_back(server, monkeypatch):
    attach, mapped = _regions.attach, []

    def slowly(*about):
        region = attach(*about)
        time.sleep(0.4)
        mapped.append(region)
        return region

    monkeypatch.setattr(_regions, "attach", slowly)

    async def run(token):
        rank = croupier.aio.attach(token, 1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(rank.__aenter__(), 0.2)
        while not mapped:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return rank._session.region

    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream:
        left = asyncio.run(run(stream.shard_token))
        assert left is None and mapped[0]._socket.fileno() == -1


def test_an_end_that_is_interrupted_is_one(server, interrupted):  # noqa: F811
    stream = croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS)
    rank = croupier.attach(stream.shard_token, 1)
    regions = [each._session.region for each in (rank, stream)]
    stop(server)
    for each in rank, stream:
        assert interrupted(each.end, 0.2, KeyboardInterrupt)
        assert not each._hang_up.alive
    assert [region._socket.fileno() for region in regions] == [-1, -1]


def test_a_write_of_a_rank_that_fails_is_told(server, in_time):
    async def run(token):
        async with croupier.aio.attach(token, 1) as rank:
            call, rank._call = rank._call, FailingOnce(rank._call)
            with pytest.raises(MemoryError):
                await rank.send(logits(1, 0)[SHARDS[0]:])
            rank._call = call
            with pytest.raises(croupier.CroupierError, match="left in the middle"):
                await rank.wait()

    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream:
        asyncio.run(run(stream.shard_token))


class FailingOnce:
    """A call that has no memory for a message."""

    def __init__(self, call):
        self._call = call

    def __getattr__(self, name):
        return getattr(self._call, name)

    async def write(self, message):
        raise MemoryError
