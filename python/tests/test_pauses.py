"""A rank that is interrupted or cancelled: its shard is sent with the next call, or the rank says that it cannot continue. Also what is
released if an attach or an end is interrupted."""

import asyncio
import inspect
import threading
import time

import numpy as np
import pytest

import croupier
from croupier import _aio_ranks, _call, _regions, ranks
from interrupting import Alarm, each_point, each_wait, in_time  # noqa: F401
from test_client import PATHS, VOCAB, logits, params
from test_interrupted import interrupted  # noqa: F401
from test_leaving import SHARDS
from test_waiting import NAMES, stop

COLUMNS = slice(SHARDS[0], None)


def rows(position):
    return np.stack([logits(text, position) for text in (1, 2)])


async def got(result):
    return await result if inspect.isawaitable(result) else result


class Full:
    """A server that has no room for columns in messages until `empty` is called."""

    def __init__(self, serve):
        self.server = serve("--max-shard-bytes=20000")

    def __enter__(self):
        self.hog = croupier.connect(self.server.uds, VOCAB, vocab_shards=SHARDS, data_path="inline")
        self.rank = croupier.attach(self.hog.shard_token, 1, data_path="inline")
        self.texts = [self.hog.open() for _ in range(8)]
        self.fill()
        return self

    def fill(self):
        columns = np.zeros((8, SHARDS[1]), np.float32)
        self.rank.send(columns)
        # The next one is refused while the first one is stored.
        step = self.rank.send(columns)
        while not self.rank._session.unsent:
            self.rank._answer()
        # Do not send it again.
        del self.rank._session.waiting[step]
        self.rank._session.unsent, self.rank._session.announced = None, step - 1
        self.rank._session.step = step

    def empty(self):
        self.hog.step(np.zeros((8, SHARDS[0]), np.float32), self.texts)
        assert self.rank.wait() == []

    def __exit__(self, *_):
        self.rank.end()
        self.hog.end()


class Pausing:
    """A module whose first `sleep` is replaced."""

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


#: The possible next calls, and their results.
CALLS = {
    "wait": (lambda rank: rank.wait(), lambda tokens: []),
    "rows": (lambda rank: rank.rows(1), None),
    "send": (lambda rank: rank.send(rows(1)[:, COLUMNS]), lambda tokens: 2),
    "send rows": (lambda rank: rank.send(rank.ahead), lambda tokens: 2),
    "tokens": (lambda rank: rank.tokens(1), lambda tokens: [[token] for token in tokens]),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", NAMES)
def test_a_shard_whose_pause_was_left_goes_with_the_next_call(serve, in_time, monkeypatch, kind, call):  # noqa: F811
    next_call, gives = CALLS[call]

    async def run(full, stream, expected):
        rank = (croupier if kind == "sync" else croupier.aio).attach(stream.shard_token, 1)
        if kind == "asyncio":
            await rank.__aenter__()
        rank.ahead = rank._session.placed(rows(1)[:, COLUMNS])
        assert await got(rank.send(rows(0)[:, COLUMNS])) == 1
        monkeypatch.setattr(ranks, "time", Pausing(time, interrupts))
        monkeypatch.setattr(_aio_ranks, "asyncio", Pausing(asyncio, cancels))
        with pytest.raises((Alarm, asyncio.CancelledError)):
            await (asyncio.ensure_future(got(rank.wait())) if kind == "asyncio" else got(rank.wait()))
        full.empty()
        # Rank 0 continues meanwhile.
        sampled, count = [], 2 if "send" in call else 1
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

    with Full(serve) as full:
        with croupier.connect(full.server.uds, VOCAB) as stream:
            texts = [stream.open(seed=1), stream.open(seed=2)]
            expected = [stream.sample(rows(position), texts) for position in range(2)]
        # Rows that do not fit into a slot are sent in messages.
        with croupier.connect(full.server.uds, VOCAB, vocab_shards=SHARDS, max_rows=1) as stream:
            asyncio.run(run(full, stream, expected))


def over(error, points):
    """Whether the error says that the rank cannot continue, which is allowed only if it was interrupted while it processed an answer."""
    return "interrupted during a wait" in str(error) and "_answer" in points.within


@pytest.mark.parametrize("path", PATHS)
def test_a_shard_is_sent_once(server, in_time, path):  # noqa: F811
    told = []

    def attempt(points):
        with (croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS, data_path=path) as stream,
              croupier.attach(stream.shard_token, 1, data_path=path) as rank):
            text, columns = stream.open(**params(1)), logits(1, 0)[COLUMNS]
            stream.submit(logits(1, 0)[: SHARDS[0]], [text])
            held = []

            def bring():
                held.append(rank.rows(1))
                held[0].write(columns)
                rank.send(held[0])
                rank.wait()

            points.call(bring)
            try:
                if not held:
                    assert rank.send(columns) == 1
                elif not held[0].is_spent:
                    held[0].write(columns)
                    assert rank.send(held[0]) == 1
                with pytest.raises(ValueError, match="step_id is 1, must be above 1"):
                    rank.send(columns, step_id=1)
                assert rank.wait() == []
                assert len(rank._session.free) == (0 if path == "inline" else rank._session.group.slots)
            except croupier.CroupierError as error:
                assert over(error, points)
                told.append(points)
                return
            assert stream.result().work[0].status == croupier.pb.ROW_STATUS_OK
            # The next shard is sent once too.
            assert rank.send(logits(1, 1)[COLUMNS]) == 2
            stream.sample(logits(1, 1)[: SHARDS[0]], [text])

    each_point(attempt, 50)
    assert told


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", NAMES)
def test_a_shard_that_was_announced_and_not_sent_goes_with_the_next_call(server, in_time, kind, call):  # noqa: F811
    """A handler ended the call between announcing and sending."""
    async def run(stream):
        rank = (croupier if kind == "sync" else croupier.aio).attach(stream.shard_token, 1)
        if kind == "asyncio":
            await rank.__aenter__()
        first, rank.ahead = (rank._session.placed(rows(position)[:, COLUMNS]) for position in range(2))
        assert rank._session.announce(first, None) == 1
        stream.submit(rows(0)[:, : SHARDS[0]], [stream.open(seed=1), stream.open(seed=2)])
        result = await got(CALLS[call][0](rank))
        tokens = [work.tokens[0].token_id for work in stream.result().work]
        assert CALLS[call][1] is None or result == CALLS[call][1](tokens)
        if result == 2:
            stream.submit(rows(1)[:, : SHARDS[0]], list(stream.sequences.values()))
            stream.result()
        assert await got(rank.wait()) == []
        await got(rank.end())

    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream:
        asyncio.run(run(stream))


def test_a_refused_shard_is_sent_once_again(serve, in_time):  # noqa: F811
    """The call that should send it is interrupted at each point."""
    told = []

    def attempt(points):
        with (croupier.connect(full.server.uds, VOCAB, vocab_shards=SHARDS, data_path="inline") as stream,
              croupier.attach(stream.shard_token, 1, data_path="inline") as rank):
            rank.send(rows(0)[:, COLUMNS])
            rank._answer()
            assert rank._session.unsent, "it was refused"
            full.empty()
            stream.submit(rows(0)[:, : SHARDS[0]], [stream.open(seed=1), stream.open(seed=2)])
            points.call(rank.wait)
            try:
                assert rank.wait() == []
                assert [work.status for work in stream.result().work] == [croupier.pb.ROW_STATUS_OK] * 2
            except croupier.CroupierError as error:
                assert over(error, points)
                told.append(points)
        full.fill()

    with Full(serve) as full:
        each_point(attempt, 30)
    assert told


@pytest.mark.parametrize("path", PATHS)
def test_a_rank_that_is_cancelled_goes_on(serve, in_time, path):  # noqa: F811
    """It is cancelled at each wait of its first two calls, of which the second sends what was refused."""
    server = full = None
    went_on = []

    async def attempt(waits):
        text_count = 2 if path == "inline" else 1
        with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS, data_path=path) as stream:
            async with croupier.aio.attach(stream.shard_token, 1, data_path=path) as rank:
                columns = rows(0)[:text_count]

                async def bring():
                    await rank.send(columns[:, COLUMNS])
                    if path == "inline":
                        await rank._answer()
                        assert rank._session.unsent, "it was refused"
                        full.empty()
                        # Independent of how long that took.
                        pauses = iter([0.001])
                        rank._session.pause = lambda: next(pauses, 0.0)
                    stream.submit(columns[:, : SHARDS[0]], [stream.open(seed=seed) for seed in range(text_count)])
                    await rank.wait()

                is_cancelled = await waits.call(bring())
                if path == "inline" and full.rank._session.waiting:
                    full.empty()
                if not stream._session.steps:
                    stream.submit(columns[:, : SHARDS[0]], [stream.open(seed=seed) for seed in range(text_count)])
                try:
                    await rank.send(columns[:, COLUMNS], step_id=1)
                except ValueError as error:
                    assert "step_id is 1, must be above 1" in str(error), "it is announced already"
                assert await rank.wait() == []
                assert [work.status for work in stream.result().work] == [croupier.pb.ROW_STATUS_OK] * text_count
                went_on.append(is_cancelled)
        if path == "inline":
            full.fill()

    if path == "inline":
        with Full(serve) as full:
            server = full.server
            asyncio.run(each_wait(attempt, 4))
    else:
        server = serve()
        asyncio.run(each_wait(attempt, 2))
    assert any(went_on) and not went_on[-1]


def test_a_pause_goes_on_where_it_was_left(serve, in_time):  # noqa: F811
    """However often the call is cancelled, the shard is not delayed again each time."""
    async def run(stream):
        async with croupier.aio.attach(stream.shard_token, 1, data_path="inline") as rank:
            await rank.send(rows(0)[:, COLUMNS])
            await rank._answer()
            unsent = rank._session.unsent
            due = unsent.due = unsent.due + 3600
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(rank.wait(), 0.01)
                assert not rank._broken and rank._session.unsent is unsent and unsent.due == due

    with Full(serve) as full, croupier.connect(full.server.uds, VOCAB, vocab_shards=SHARDS, data_path="inline") as stream:
        asyncio.run(run(stream))


def test_a_step_is_announced_once(server):
    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream, croupier.attach(stream.shard_token, 1) as rank:
        text = stream.open(**params(1))
        assert rank.send(logits(1, 0)[COLUMNS], step_id=1) == 1
        free, kept = rank._session.free, []
        for wrong, said in ((1, "step_id is 1, must be above 1, the step_id of the previous shard"), (0, "must be in 1"), (-1, "must be in 1")):
            with pytest.raises(ValueError, match=said) as error:
                rank.send(logits(1, 0)[COLUMNS], step_id=wrong)
            # Even while somebody has the error, whose frames refer to the rows.
            kept.append(error.value)
        assert rank._session.free == free
        stream.sample(logits(1, 0)[: SHARDS[0]], [text])
        assert rank.wait() == []


def test_an_attach_that_is_cancelled_gives_its_region_back(server, in_time, monkeypatch):  # noqa: F811
    """It is cancelled at each of its waits, and also while a thread already has the region but has not returned it."""
    attach, mapped, may_tell = _regions.attach, [], threading.Event()

    def slowly(*about):
        mapped.append(attach(*about))
        may_tell.wait()
        return mapped[-1]

    async def given_back():
        while any(region._socket.fileno() >= 0 for region in mapped):
            await asyncio.sleep(0.001)
        mapped.clear()

    async def attempt(waits):
        rank = croupier.aio.attach(stream.shard_token, 1)
        if not await waits.call(rank.__aenter__()):
            assert rank._session.region is mapped[-1]
            await rank.end()
        await given_back()

    async def run():
        may_tell.set()
        await each_wait(attempt, 2)
        may_tell.clear()
        rank = croupier.aio.attach(stream.shard_token, 1)
        attaching = asyncio.ensure_future(rank.__aenter__())
        while not mapped:
            await asyncio.sleep(0.001)
        attaching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attaching
        may_tell.set()
        await given_back()
        assert rank._session.region is None

    monkeypatch.setattr(_regions, "attach", slowly)
    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream:
        asyncio.run(run())


def test_an_end_that_is_interrupted_is_one(server, interrupted, monkeypatch):  # noqa: F811
    monkeypatch.setattr(_call, "PART_WITHIN", 60)
    stream = croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS)
    rank = croupier.attach(stream.shard_token, 1)
    regions = [each._session.region for each in (rank, stream)]
    stop(server)
    for each in rank, stream:
        assert interrupted(each.end, 0.2, KeyboardInterrupt)
        assert not each._hang_up.alive
    assert [region._socket.fileno() for region in regions] == [-1, -1]


def test_a_write_of_a_rank_that_fails_is_told(server, in_time):  # noqa: F811
    async def run(token):
        async with croupier.aio.attach(token, 1) as rank:
            call, rank._home.call = rank._home.call, FailingOnce(rank._home.call)
            with pytest.raises(MemoryError):
                await rank.send(logits(1, 0)[COLUMNS])
            rank._home.call = call
            with pytest.raises(croupier.CroupierError, match="the rank was interrupted during a send or a wait"):
                await rank.wait()

    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream:
        asyncio.run(run(stream.shard_token))


class FailingOnce:
    """A call that has no memory for its first message."""

    def __init__(self, call):
        self._call = call

    def __getattr__(self, name):
        return getattr(self._call, name)

    async def write(self, message):
        raise MemoryError
