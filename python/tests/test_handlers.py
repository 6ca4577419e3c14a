"""A signal handler raises at each point where Python may run one. Afterwards a call is done, or not begun, or it can continue. No text,
slot, step number or previous step is lost. Also mistakes, which change nothing."""

import asyncio
import gc

import numpy as np
import pytest

import croupier
from interrupting import each_point, each_wait, in_time  # noqa: F401
from test_client import PATHS, VOCAB, logits, params
from test_leaving import SHARDS
from test_waiting import NAMES

TEXTS = 2


def rows(position):
    return np.stack([logits(text, position) for text in range(TEXTS)])


def written(stream, position):
    found = stream.rows(TEXTS)
    found.write(rows(position))
    return found


def slots(stream, path):
    return 0 if path == "inline" else stream._session.slots


def goes_on(stream, points):
    """Takes the result of the interrupted step. Returns False if the stream says that it cannot continue, which is allowed only if it was
    interrupted while it processed an answer."""
    try:
        if stream._session.steps:
            stream.result()
        return True
    except croupier.CroupierError as error:
        assert "interrupted while it processed an answer" in str(error) and "_take" in points.within
        return False


@pytest.fixture
def expected(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(**params(text)) for text in range(TEXTS)]
        for position in range(4):
            stream.sample(rows(position), texts)
        return [text.tokens for text in texts]


@pytest.mark.parametrize("path", PATHS)
def test_a_step_is_done_or_not_begun_or_goes_on(server, in_time, expected, path):  # noqa: F811
    told = []

    def attempt(points):
        with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
            old = stream.open(**params(0))
            stream.sample(logits(0, 0), [old])
            # These texts are opened with the step.
            texts, held = [stream.open(**params(text)) for text in range(TEXTS)], []

            def call():
                stream.close(old)
                held.append(written(stream, 0))
                stream.sample(held[0], texts)

            points.call(call)
            gc.collect()
            stream.close(old)
            if not goes_on(stream, points):
                told.append(points)
                return
            if not texts[0].tokens:
                stream.sample(held[0] if held else rows(0), texts)
            for position in 1, 2, 3:
                stream.sample(written(stream, position), texts)
            assert [text.tokens for text in texts] == expected
            assert len(stream._session.free) == slots(stream, path)
            work = croupier.pb.Work(sequence_id=old.id, sample=croupier.pb.SampleWork())
            assert stream.step(logits(0, 0), [work]).work[0].status != croupier.pb.ROW_STATUS_OK, "it is closed there too"

    each_point(attempt, 100)
    assert told


@pytest.mark.parametrize("path", PATHS)
def test_a_submit_leaves_the_step_that_is_under_way(server, in_time, expected, path):  # noqa: F811
    def attempt(points):
        with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
            texts = [stream.open(**params(text)) for text in range(TEXTS)]
            stream.submit(written(stream, 0), texts)
            points.call(lambda: stream.submit(written(stream, 1), texts))
            gc.collect()
            assert not stream._is_down or len(stream._session.steps) == 2, "it has not begun, so the stream stays as it is"
            while stream._session.steps:
                stream.result()
            for position in range(len(texts[0].tokens), 4):
                stream.sample(written(stream, position), texts)
            assert [text.tokens for text in texts] == expected
            assert len(stream._session.free) == slots(stream, path)

    each_point(attempt, 50)


def test_a_submit_that_is_cancelled_leaves_the_step_that_is_under_way(server, in_time, expected, monkeypatch):  # noqa: F811
    begun = []

    async def attempt(waits):
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            texts = [stream.open(**params(text)) for text in range(TEXTS)]
            await stream.submit(rows(0), texts)
            with monkeypatch.context() as patch:
                # If logits are on a GPU, the client first waits for the GPU.
                patch.setattr(stream._session, "wanted", "device_memory")
                is_cancelled = await waits.call(stream.submit(rows(1), texts))
            if is_cancelled:
                begun.append(len(stream._session.steps) == 2)
            channel = stream._home.channel
            while stream._session.steps:
                await stream.result()
            for position in range(len(texts[0].tokens), 4):
                await stream.sample(rows(position), texts)
            assert [text.tokens for text in texts] == expected
            assert stream._home.channel is channel, "the connection stays"

    asyncio.run(each_wait(attempt, 2))
    assert set(begun) == {True, False}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("then", ["result", "give_up"])
def test_a_step_that_is_cancelled_goes_on_or_is_given_up(server, in_time, expected, path, then):  # noqa: F811
    """The step is cancelled at each of its waits, and again when it continues. It keeps its logits."""
    begun = []

    async def attempt(waits):
        async with croupier.aio.connect(server.uds, VOCAB, data_path=path, max_rows=2) as stream:
            texts = [stream.open(**params(text)) for text in range(TEXTS)]
            await stream.sample(rows(0), texts)
            mine, channel = rows(1), stream._home.channel
            if await waits.call(stream.sample(mine, texts)):
                mine[:] = 0
                if begun.append(len(stream._session.steps)) or stream._session.steps:
                    with pytest.raises(croupier.CroupierError, match=r"or cancelled were not taken yet; .* or call give_up\(\)"):
                        await stream.sample(rows(1), texts)
                    with pytest.raises(asyncio.TimeoutError):
                        await asyncio.wait_for(stream.result(), 0)
                    await getattr(stream, then)()
                    assert then == "give_up" or stream._home.channel is channel, "the connection stays"
            for position in range(len(texts[0].tokens), 4):
                await stream.sample(rows(position), texts)
            assert [text.tokens for text in texts] == expected

    asyncio.run(each_wait(attempt, 2))
    assert sum(begun)


@pytest.mark.parametrize("path", PATHS)
def test_a_step_that_goes_on_may_be_interrupted_again(server, in_time, expected, path):  # noqa: F811
    """The interruptions come while it reconnects, opens texts again and sends the step once more."""
    def attempt(points):
        with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
            texts = [stream.open(**params(text)) for text in range(TEXTS)]
            stream.sample(written(stream, 0), texts)
            stream.submit(written(stream, 1), texts)
            # The state after a first interruption.
            stream._is_down = True
            stream._session.keep_rows()
            points.call(stream.result)
            if goes_on(stream, points):
                for position in 2, 3:
                    stream.sample(written(stream, position), texts)
                assert [text.tokens for text in texts] == expected
                assert len(stream._session.free) == slots(stream, path)

    each_point(attempt, 100)


@pytest.mark.parametrize("path", PATHS)
def test_a_step_is_given_up_or_not(server, in_time, expected, path):  # noqa: F811
    def attempt(points):
        with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
            texts = [stream.open(**params(text)) for text in range(TEXTS)]
            stream.sample(written(stream, 0), texts)
            stream.submit(written(stream, 1), texts)
            points.call(stream.give_up)
            stream.give_up()
            for position in 1, 2, 3:
                stream.sample(written(stream, position), texts)
            assert [text.tokens for text in texts] == expected
            assert len(stream._session.free) == slots(stream, path)

    each_point(attempt, 10)


def test_texts_are_opened_once(server, in_time):  # noqa: F811
    """No text gets the id of one whose opening was interrupted, and no text is closed that is not open."""
    with croupier.connect(server.uds, VOCAB) as stream:
        def attempt(points):
            def call():
                stream.close(stream.open(**params(1)))
                stream.open(**params(2))

            points.call(call)
            # All of these are still to be opened on the server.
            assert stream._session.opening == stream.sequences
            stream.step(None)
            text = stream.open(**params(1))
            assert stream.sample(logits(1, 0), [text]) == first
            for each in list(stream.sequences.values()):
                stream.close(each)
            assert not stream._session.opening

        text = stream.open(**params(1))
        first = stream.sample(logits(1, 0), [text])
        stream.close(text)
        each_point(attempt, 50)


def test_a_step_that_was_not_begun_counts_for_no_rank(server, in_time):  # noqa: F811
    def attempt(points):
        with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream, croupier.attach(stream.shard_token, 1) as rank:
            text = stream.open(**params(1))
            rank.send(logits(1, 0)[SHARDS[0]:])
            points.call(lambda: stream.submit(logits(1, 0)[: SHARDS[0]], [text]))
            if not stream._session.steps:
                stream.submit(logits(1, 0)[: SHARDS[0]], [text])
            try:
                assert stream.result().work[0].status == croupier.pb.ROW_STATUS_OK
            except croupier.LogitsLost:
                assert stream._session.sharded == 1

    each_point(attempt, 50)


class Fails:
    """Works that cannot be listed."""

    def __iter__(self):
        raise RuntimeError("the program's own")


#: Mistakes of a step with these texts, in (logits, work, options).
MISTAKES = {
    "shape": lambda stream, texts: (np.zeros((TEXTS, 7), np.float32), texts, {}),
    "rows": lambda stream, texts: (rows(1)[:1], texts, {}),
    "work": lambda stream, texts: (rows(1), [texts[0], "text"], {}),
    "works": lambda stream, texts: (rows(1), Fails(), {}),
    "closed": lambda stream, texts: (rows(1), [texts[0], croupier.Sequence(99, None, ())], {}),
    "deadline": lambda stream, texts: (rows(1), texts, {"deadline_ms": -1}),
    "unwritten": lambda stream, texts: (stream.rows(TEXTS), texts, {}),
    "twice": lambda stream, texts: (np.repeat(rows(1), 600, 0), texts * 600, {}),
    "large": lambda stream, texts: (written(stream, 1), [croupier.pb.Work(sequence_id=1, score=croupier.pb.ScoreWork(token_ids=range(70_000)))], {}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", NAMES)
def test_a_mistake_changes_nothing(server, in_time, expected, kind, path, mistake):  # noqa: F811
    def state(stream):
        session = stream._session
        return (session.sharded, session.numbers, list(session.opening), list(session.closing), session.free, list(session.steps),
                stream._is_down, getattr(stream, "_broken", False), stream._turn.is_free())

    async def run():
        stream = (croupier if kind == "sync" else croupier.aio).connect(server.uds, VOCAB, data_path=path, slots=3)
        do = lambda thing: asyncio.sleep(0, thing) if kind == "sync" else thing
        if kind == "asyncio":
            await stream.__aenter__()
        texts = [stream.open(**params(text)) for text in range(TEXTS)]
        await do(stream.submit(written(stream, 0), texts))
        new = [stream.open(**params(text)) for text in range(TEXTS)]
        stream.close(new.pop())
        before = state(stream)
        wrong, work, options = MISTAKES[mistake](stream, texts)
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            await do(stream.submit(wrong, work, **options))
        del wrong
        assert state(stream) == before
        await do(stream.submit(written(stream, 1), texts))
        for _ in range(2):
            await do(stream.result())
        for position in 2, 3:
            await do(stream.sample(written(stream, position), texts))
        assert [text.tokens for text in texts] == expected
        await do(stream.end())

    asyncio.run(run())


def test_a_mistake_leaves_the_ranks_their_step(server):
    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream, croupier.attach(stream.shard_token, 1) as rank:
        text = stream.open(**params(1))
        stream.submit(logits(1, 0)[: SHARDS[0]], [text])
        with pytest.raises(ValueError, match="shape"):
            stream.submit(logits(1, 0), [text])
        rank.send(logits(1, 0)[SHARDS[0]:])
        # On a new connection this would be LogitsLost.
        assert stream.result().work[0].status == croupier.pb.ROW_STATUS_OK


def test_a_text_that_is_closed_while_a_step_opens_it_is_closed_there_too(server, monkeypatch):
    with croupier.connect(server.uds, VOCAB) as stream:
        text, parts = stream.open(**params(1)), stream._session._parts

        def meanwhile(*about):
            # As another thread does.
            stream.close(text)
            return parts(*about)

        with monkeypatch.context() as patch:
            patch.setattr(stream._session, "_parts", meanwhile)
            stream.sample(logits(1, 0), [text])
        assert not stream.sequences
        later = stream.open(sequence_id=text.id, **params(1))
        assert stream.sample(logits(1, 0), [later]) == text.tokens


@pytest.mark.parametrize("of", ["stream", "rank"])
def test_rows_that_only_the_garbage_collector_finds_give_back_their_slot(server, of):
    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream, croupier.attach(stream.shard_token, 1) as rank:
        place = stream if of == "stream" else rank
        count = len(place._session.free)
        for _ in range(2 * count):
            ring = [place.rows(1)]
            ring.append(ring)
            del ring
            gc.collect()
            assert count and len(place._session.free) == count


def test_rows_that_two_threads_take_are_two(server):
    """The other thread interferes at each point."""
    def attempt(points):
        slots = croupier._types.Slots(2)
        mine, other = croupier.Rows(None), croupier.Rows(None)
        points.does = lambda: slots.take(other)
        points.call(lambda: slots.take(mine))
        assert {mine.slot, other.slot} == ({0, 1} if points.left <= 0 else {0, None})

    each_point(attempt, 3)


def test_a_step_that_is_not_sent_whole_is_told(server, monkeypatch):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            text = stream.open(**params(1))
            first = await stream.sample(logits(1, 0), [text])

            def fails(part):
                raise MemoryError

            with monkeypatch.context() as patch:
                patch.setattr(stream._session, "encode", fails)
                with pytest.raises(MemoryError):
                    await stream.sample(logits(1, 1), [text])
            await stream.result()
            assert text.tokens[:1] == first
            return text.tokens

    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(**params(1))
        for position in range(2):
            stream.sample(logits(1, position), [text])
    assert asyncio.run(run()) == text.tokens


def test_a_step_whose_rest_finds_no_slot_is_told(server):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB, max_rows=2, slots=2) as stream:
            text, *texts = [stream.open(**params(text)) for text in range(5)]
            held = [stream.rows(1), stream.rows(1)]
            # While this step is in flight, a slot might become free later.
            await stream.submit(stream.top_n(logits(0, 0), 900), [text])
            with pytest.raises(croupier.CroupierError, match="every slot is taken"):
                await stream.submit(np.stack([logits(1, 0)] * 4), texts)
            with pytest.raises(croupier.CroupierError, match="every slot is taken"):
                await stream.result()
            await stream.give_up()
            held.clear()
            return await stream.sample(np.stack([logits(1, 0)] * 4), texts)

    with croupier.connect(server.uds, VOCAB) as stream:
        expected = stream.sample(np.stack([logits(1, 0)] * 4), [stream.open(**params(text)) for text in range(1, 5)])
    assert asyncio.run(run()) == expected
