"""Steps that are too large for one message: the tokens are the same as with one message, and nothing is sent if a split is impossible."""

import asyncio
import signal
import time

import numpy as np
import pytest

import croupier
from croupier import _split, pb
from test_client import PATHS, VOCAB, logits, params

TEXTS = tuple(range(1, 24))
COUNT = 4
#: Limits of four rows per message, and of five per step.
BYTES, ROWS = ["--max-message-bytes=17KiB"], ["--max-rows-per-step=5"]


def batch(position, texts=TEXTS):
    return np.stack([logits(text, position) for text in texts])


def spied(stream):
    """The list of parts that the stream sends."""
    sent, send = [], stream._session.send
    stream._session.send = lambda part: sent.append(part) or send(part)
    return sent


def place(stream, position, kind):
    if kind == "rows":
        rows = stream.rows(len(TEXTS))
        rows.array[:] = batch(position)
        return rows
    return stream.top_n(batch(position), 800) if kind == "top_n" else batch(position)


def text_of(server, kind="array", parts=None, **options):
    with croupier.connect(server.uds, VOCAB, **options) as stream:
        sequences = [stream.open(prompt=[1, 2], **params(text)) for text in TEXTS]
        sent = spied(stream)
        for position in range(COUNT):
            stream.sample(place(stream, position, kind), sequences)
        if parts is not None:
            assert len(sent) >= COUNT * parts, "it was split"
        return [sequence.tokens for sequence in sequences]


@pytest.fixture(scope="module")
def expected():
    from conftest import Server

    server = Server()
    yield text_of(server)
    server.kill()


@pytest.mark.parametrize("flags, kind, parts, options", [
    (BYTES, "array", 6, {"data_path": "inline"}),
    (BYTES, "rows", 6, {"data_path": "inline"}),
    (BYTES, "top_n", 2, {"data_path": "inline"}),
    (ROWS, "array", 5, {"data_path": "inline"}),
    (ROWS, "top_n", 5, {}),
    (ROWS, "rows", 5, {"data_path": "shared_memory"}),
    (ROWS, "array", 5, {"data_path": "shared_memory"}),
    (["--max-row-bytes-per-step=20KiB", "--max-message-bytes=20KiB"], "rows", 5, {"data_path": "shared_memory"}),
    # More rows than a slot holds.
    ([], "array", 6, {"data_path": "shared_memory", "max_rows": 4, "slots": 2}),
    ([], "array", 12, {"data_path": "shared_memory", "max_rows": 2, "slots": 1}),
    ([], "rows", 1, {"max_rows": 4}),
])
def test_tokens_are_those_of_one_message(serve, expected, flags, kind, parts, options):
    assert text_of(serve(*flags), kind, parts, **options) == expected


def test_rows_go_in_messages_of_some_mebibytes(server):
    vocab = 40_000
    rows = np.stack([logits(text, 0, vocab) for text in range(60)])
    with croupier.connect(server.uds, vocab, data_path="inline") as stream:
        sent = spied(stream)
        sequences = [stream.open(**params(text)) for text in range(60)]
        tokens = stream.sample(rows, sequences)
        sizes = [part.end - part.first for part in sent]
        # Openings are sent separately.
        assert sizes[0] == 0 and sum(sizes) == 60
        assert sizes[1:] == [26, 26, 8] and 26 * vocab * 4 <= _split.TARGET
    with croupier.connect(server.uds, vocab, data_path="shared_memory") as stream:
        sent = spied(stream)
        assert stream.sample(rows, [stream.open(**params(text)) for text in range(60)]) == tokens
        assert len(sent) == 1


def works(sequences):
    """Works of every kind, with rows that are shared, out of order or missing."""
    draft = pb.VerifyWork(draft_token_ids=[4, 5], deterministic=pb.DeterministicDraft())
    one, two, three, four, five, six, seven = sequences
    return [one, pb.Work(sequence_id=two.id, verify=draft), pb.Work(score=pb.ScoreWork(token_ids=[1, 2, 3])),
            pb.Work(sequence_id=three.id, first_row=0, sample=pb.SampleWork()), four,
            pb.Work(sequence_id=five.id, first_row=16, sample=pb.SampleWork()),
            pb.Work(sequence_id=six.id, draft=pb.DraftWork()),
            pb.Work(sequence_id=seven.id, first_row=15, verify=draft)]


@pytest.mark.parametrize("flags, options", [
    (BYTES, {"data_path": "inline"}), (ROWS, {"data_path": "inline"}), (ROWS, {"data_path": "shared_memory"}),
    ([], {"data_path": "shared_memory", "max_rows": 5, "slots": 2}), ([], {"max_rows": 2}),
])
@pytest.mark.parametrize("listed", [0, 9])
def test_every_work_finds_its_rows(server, serve, flags, options, listed):
    rows = batch(0)[:18]

    def run(server, **options):
        with croupier.connect(server.uds, VOCAB, **options) as stream:
            sent = spied(stream)
            sequences = [stream.open(seed=text, temperature=0.9, top_k=40) for text in range(7)]
            logits = (rows[:9], stream.top_n(rows[9:], 100)) if listed else rows
            result = stream.step(logits, works(sequences))
            return [sequence.tokens for sequence in sequences], list(result.work), list(result.open), len(sent)

    whole = run(server, data_path="inline")
    split = run(serve(*flags) if flags else server, **options)
    assert whole[3] == 1
    assert split[:3] == whole[:3]
    # Listed rows take no room in a slot, so the other rows may fit.
    assert split[3] > 1 or listed and options.get("max_rows")
    statuses = [work.status for work in whole[1]]
    assert statuses == [pb.ROW_STATUS_OK] * 5 + [pb.ROW_STATUS_OK] * 2 + [pb.ROW_STATUS_OK]


def test_a_row_that_is_not_there_is_said_to_be_missing(serve):
    with croupier.connect(serve(*ROWS).uds, VOCAB) as stream:
        sequences = [stream.open(**params(text)) for text in TEXTS]
        # If a work names its row, the client does not check the number of rows.
        last = pb.Work(sequence_id=sequences[-1].id, sample=pb.SampleWork(), first_row=22)
        statuses = [work.status for work in stream.step(batch(0)[:11], [*sequences[:-1], last]).work]
        assert statuses == [pb.ROW_STATUS_OK] * 11 + [pb.ROW_STATUS_ROW_OUT_OF_RANGE] * 12
        assert all(len(sequence.tokens) == 1 for sequence in sequences[:11])


@pytest.mark.parametrize("options", [{"data_path": "inline"}, {"data_path": "shared_memory", "max_rows": 4}])
def test_asyncio_splits_too(serve, expected, options):
    async def run(uds):
        async with croupier.aio.connect(uds, VOCAB, **options) as stream:
            sequences = [stream.open(prompt=[1, 2], **params(text)) for text in TEXTS]
            sent = spied(stream)
            for position in range(COUNT):
                await stream.sample(batch(position), sequences)
            assert len(sent) > 5 * COUNT
            return [sequence.tokens for sequence in sequences]

    assert asyncio.run(run(serve(*BYTES).uds)) == expected


@pytest.mark.parametrize("options", [{"data_path": "inline"}, {"data_path": "shared_memory", "max_rows": 4},
                                     {"data_path": "shared_memory", "max_rows": 32}])
def test_submitted_steps_are_split_and_the_array_may_change(serve, expected, options):
    with croupier.connect(serve(*BYTES, *ROWS).uds, VOCAB, **options) as stream:
        sequences = [stream.open(prompt=[1, 2], **params(text)) for text in TEXTS]
        array = np.empty((len(TEXTS), VOCAB), np.float32)
        for position in range(0, COUNT, 2):
            for ahead in range(2):
                array[:] = batch(position + ahead)
                stream.submit(array, sequences)
                array[:] = np.nan
            for _ in range(2):
                assert [work.status for work in stream.result().work] == [pb.ROW_STATUS_OK] * len(TEXTS)
        assert [sequence.tokens for sequence in sequences] == expected
        with pytest.raises(croupier.CroupierError, match="no step was submitted"):
            stream.result()


@pytest.mark.parametrize("options", [{"data_path": "inline"}, {"data_path": "shared_memory", "max_rows": 4}])
def test_asyncio_submits_too(serve, expected, options):
    async def run(uds):
        async with croupier.aio.connect(uds, VOCAB, **options) as stream:
            sequences = [stream.open(prompt=[1, 2], **params(text)) for text in TEXTS]
            for position in range(0, COUNT, 2):
                for ahead in range(2):
                    array = batch(position + ahead)
                    await stream.submit(array, sequences)
                    array[:] = np.nan
                with pytest.raises(croupier.CroupierError, match="take them first"):
                    await stream.sample(batch(0), sequences)
                for _ in range(2):
                    assert [work.status for work in (await stream.result()).work] == [pb.ROW_STATUS_OK] * len(TEXTS)
            with pytest.raises(croupier.CroupierError, match="no step was submitted"):
                await stream.result()
            return [sequence.tokens for sequence in sequences]

    assert asyncio.run(run(serve(*BYTES, *ROWS).uds)) == expected


@pytest.mark.parametrize("path", PATHS)
def test_a_server_that_is_killed_between_parts_changes_no_token(serve, expected, path):
    server = serve(*BYTES, *ROWS)
    with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
        sequences = [stream.open(prompt=[1, 2], **params(text)) for text in TEXTS]
        for position in range(COUNT):
            if position % 2:
                server.process.send_signal(signal.SIGSTOP)
            rows = stream.rows(len(TEXTS))
            rows.array[:] = batch(position)
            stream.submit(rows, sequences)
            for _ in range(0 if position % 2 else 2):
                stream._take()
            server.kill()
            server.start()
            # Answers in transit are lost too.
            stream._replies = iter([])
            assert [work.status for work in stream.result().work] == [pb.ROW_STATUS_OK] * len(TEXTS)
        assert [sequence.tokens for sequence in sequences] == expected


def test_what_was_answered_of_a_step_that_is_lost_is_forgotten(serve, expected):
    server = serve(*ROWS, "--drain-timeout=1s")
    with croupier.connect(server.uds, VOCAB, data_path="shared_memory") as stream:
        sequences = [stream.open(prompt=[1, 2], **params(text)) for text in TEXTS]
        for position in range(COUNT):
            rows = stream.rows(len(TEXTS))
            rows.array[:] = batch(position)
            stream.submit(rows, sequences)
            if position == 2:
                stream._take()
                stream._take()
                server.process.terminate()
                server.process.wait()
                server.start()
                stream._replies = iter([])
                with pytest.raises(croupier.LogitsLost):
                    stream.result()
                assert {len(sequence.tokens) for sequence in sequences} == {2}, "all are as they were"
                stream.submit(batch(2), sequences)
            stream.result()
        assert [sequence.tokens for sequence in sequences] == expected


def test_more_sequences_than_a_stream_may_have_are_refused_one_by_one(serve):
    with croupier.connect(serve("--max-sequences-per-stream=20").uds, VOCAB) as stream:
        sequences = [stream.open(prompt=[1, 2], **params(text)) for text in TEXTS]
        sent = spied(stream)
        with pytest.raises(croupier.OpenError, match="^sequence 21: .*max_sequences_per_stream.*; sequence 22: .*; sequence 23: "):
            stream.step(None)
        assert [len(part.open) for part in sent] == [20, 3]
        assert len(stream.sample(batch(0)[:20], sequences[:20])) == 20, "the others go on"
        with pytest.raises(ValueError, match="was not opened: .*max_sequences_per_stream"):
            stream.sample(batch(1)[:1], sequences[20:21])


@pytest.mark.parametrize("count", [2, 8], ids=["whole", "split"])
def test_a_refused_opening_is_one_failure_and_its_work_says_so(serve, count):
    with croupier.connect(serve(*BYTES).uds, VOCAB, data_path="inline") as stream:
        texts = [stream.open(temperature=-1.0 if text == 1 else 1.0) for text in range(count)]
        sent = spied(stream)
        with pytest.raises(croupier.OpenError, match="^sequence 2: params.temperature: is -1, [^;]*$") as error:
            stream.sample(batch(0)[:count], texts)
        assert len(sent) == (1 if count == 2 else 3) and [*error.value.failures] == [2]
        [failed] = [work for work in error.value.result.work if not work.tokens]
        # The client knows more about the text than the server says of an unknown one.
        assert failed == error.value.result.work[1]
        assert ("the opening of this id in this step failed" if count == 2 else "(it was not opened: params.temperature: is -1") in failed.message


def test_parts_that_are_refused_for_want_of_room_come_again(serve, expected):
    # The server takes one message at a time, so most parts are refused at first.
    server = serve("--max-message-bytes=17KiB", "--max-bytes-in-flight=20KiB")
    assert text_of(server, parts=6, data_path="inline") == expected

    async def run():
        async with croupier.aio.connect(server.uds, VOCAB, data_path="inline") as stream:
            sequences = [stream.open(prompt=[1, 2], **params(text)) for text in TEXTS]
            for position in range(COUNT):
                await stream.sample(batch(position), sequences)
            return [sequence.tokens for sequence in sequences]

    assert asyncio.run(run()) == expected


def test_nothing_is_sent_of_what_cannot_be_split(serve):
    with croupier.connect(serve(*BYTES, *ROWS).uds, VOCAB, max_rows=40) as stream:
        sent = spied(stream)
        texts = [stream.open(**params(text)) for text in TEXTS]
        draft = pb.VerifyWork(draft_token_ids=range(7), deterministic=pb.DeterministicDraft())
        scored = pb.ScoreWork(token_ids=range(8))
        for wrong, work, said in [
            (np.concatenate([batch(0), batch(0)[:1]]), texts + texts[:1], r"sequence 1 is in work\[0\] and in work\[23\]"),
            (batch(0)[:8], [pb.Work(sequence_id=1, verify=draft)], r"work\[0\] alone takes 8 rows, max_rows_per_step is 5; draft fewer tokens, or raise"),
            (batch(0)[:8], [pb.Work(sequence_id=1, score=scored)], r"work\[0\] alone takes 8 rows, max_rows_per_step is 5; a work cannot be split"),
            (batch(0)[:8], [pb.Work(score=scored)], r"alone takes 8 rows, max_rows_per_step is 5; send its tokens as several score works, in one"),
            (batch(0)[:, :-1], texts, "shape"),
            (np.full((23, VOCAB), "x", object), texts, "logits are object with str"),
            (None, texts, "logits have 0 rows, this work takes 23"),
        ]:
            with pytest.raises((ValueError, TypeError), match=said):
                stream.step(wrong, work)
        assert sent == []
        assert len(stream.sample(batch(0), texts)) == len(TEXTS), "and no slot is taken"
    with croupier.connect(serve("--max-message-bytes=5KiB").uds, VOCAB, data_path="inline") as stream:
        with pytest.raises(ValueError, match=r"work\[0\] alone takes .* max_message_bytes is 5120"):
            stream.step(batch(0)[:2], [pb.Work(score=pb.ScoreWork(token_ids=[1, 2]))])


@pytest.mark.parametrize("path", PATHS)
def test_a_score_that_is_too_long_is_told_to_be_sent_as_several(serve, path):
    rows, tokens = batch(0)[:12], range(12)
    expected = [(token.token_id, token.logprob, token.rank) for token in scores(serve(), path, rows, [tokens])]
    server = serve("--max-row-bytes-per-step=20KiB", "--max-message-bytes=20KiB")
    said = r"work\[0\] alone takes 48000 bytes of rows, max_row_bytes_per_step is 20480; send its tokens as several score works"
    with pytest.raises(ValueError, match=said):
        scores(server, path, rows, [tokens])
    # As the error suggests.
    found = scores(server, path, rows, [tokens[first:first + 4] for first in range(0, 12, 4)])
    assert [(token.token_id, token.logprob, token.rank) for token in found] == expected


def scores(server, path, rows, each):
    with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
        result = stream.step(rows, [pb.Work(score=pb.ScoreWork(token_ids=tokens)) for tokens in each])
        return [token for work in result.work for token in work.tokens]


def test_steps_of_ranks_are_not_split(serve):
    server = serve(*BYTES, *ROWS)
    for path, count, said in (("inline", 5, "max_message_bytes|cannot be split"), ("shared_memory", 6, "cannot be split")):
        with croupier.connect(server.uds, VOCAB, data_path=path, vocab_shards=[900, 100]) as stream:
            texts = [stream.open(**params(text)) for text in range(6)]
            with pytest.raises(ValueError, match=said):
                stream.sample(batch(0)[:count, :900], texts[:count])
            with croupier.attach(stream.shard_token, 1) as rank:
                rank.send(batch(0)[:4, 900:])
                assert stream._session.sharded == 0
                assert len(stream.sample(batch(0)[:4, :900], texts[:4])) == 4
                if path == "inline":
                    with pytest.raises(ValueError, match="cannot be split"):
                        rank.send(np.zeros((50, 100), np.float32))
                    assert rank._session.step == 2


# Openings.

HISTORY = [[number] * 3000 for number in range(1, 41)]


@pytest.mark.parametrize("path", PATHS)
def test_much_history_is_opened_again_in_several_messages(serve, path):
    def run(server, kill):
        with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
            texts = [stream.open(prompt=prompt, **params(prompt[0])) for prompt in HISTORY]
            for position in range(3):
                if kill and position:
                    server.kill()
                    server.start()
                stream.sample(batch(position, range(40)), texts)
            return [text.tokens for text in texts]

    assert run(serve("--max-message-bytes=16KiB"), kill=True) == run(serve(), kill=False)


def test_asyncio_opens_much_history_again(serve):
    async def run(server, kill):
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            texts = [stream.open(prompt=prompt, **params(prompt[0])) for prompt in HISTORY]
            for position in range(3):
                if kill and position:
                    server.kill()
                    server.start()
                await stream.sample(batch(position, range(40)), texts)
            return [text.tokens for text in texts]

    assert asyncio.run(run(serve("--max-message-bytes=16KiB"), True)) == asyncio.run(run(serve(), False))


def test_a_text_that_is_too_long_for_a_message_is_named(serve):
    server = serve("--max-message-bytes=4KiB")
    said = r"sequence 1: opening it with its 5000 tokens takes 10\d\d\d bytes, max_message_bytes is 4096"
    with croupier.connect(server.uds, 100) as stream:
        with pytest.raises(ValueError, match=said.replace("10", "5")):
            stream.open(prompt=[99] * 5000)
        assert stream.sample(np.zeros(100, np.float32), [stream.open(seed=1)])
    # A text that grew.
    with croupier.connect(server.uds, 100) as stream:
        text = stream.open(prompt=[99] * 3000)
        stream.step(None)
        text.tokens.extend([99] * 2000)
        server.kill()
        server.start()
        started = time.monotonic()
        with pytest.raises(croupier.CroupierError, match="sequence 1: opening it with its 5000 tokens"):
            stream.step(None)
        assert time.monotonic() - started < stream._patience


def test_works_are_cut_where_the_first_limit_is():
    limits = _split.Limits(pb.Limits(max_message_bytes=10_000, max_rows_per_step=4, max_row_bytes_per_step=100))
    needs = [_split.Need(i, i + 1, 10) for i in range(10)]
    runs = _split.Cut(limits, [30] * 10, [0] * 10)(needs)
    assert [len(run) for run in runs] == [3, 3, 3, 1]
    assert [len(run) for run in _split.Cut(limits, [1] * 10, [4_000] * 10)(needs)] == [2] * 5
    assert [len(run) for run in _split.Cut(limits, [1] * 10, [1] * 10, span=2)(needs)] == [2] * 5
    assert _split.Cut(_split.Limits(pb.Limits()), [1] * 10, [1] * 10)(needs) == [range(10)], "0 is no limit"
    assert [list(run) for run in _split.chunks([4, 4, 4, 20, 1], 8, 9)] == [[0, 1], [2], [3], [4]]
    assert [list(run) for run in _split.chunks([1] * 5, 8, 2)] == [[0, 1], [2, 3], [4]]
