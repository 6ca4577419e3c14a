"""Invalid arguments are reported before anything is sent, with what to give instead."""

import asyncio
import pickle

import numpy as np
import pytest

import croupier
from croupier import Draft, Speculation, pb
from test_client import PATHS, VOCAB, logits, params

Z = np.zeros((2, VOCAB), np.float32)


def never(pairs):
    raise AssertionError("the model is not asked")


@pytest.mark.parametrize("path", PATHS)
def test_a_text_that_is_twice_in_a_step_is_told_before_anything_is_sent(serve, path):
    # With room for one row per message, the step would be split.
    for server in (serve(), serve("--max-rows-per-step=1")):
        with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
            text, other = stream.open(**params(1)), stream.open(**params(2))
            raw = pb.Work(sequence_id=text.id, sample=pb.SampleWork())
            for work in ([text, text], [text, raw], [raw, raw], [raw, pb.Work(sequence_id=text.id, draft=pb.DraftWork())]):
                for call in (stream.step, stream.submit):
                    with pytest.raises(ValueError, match=rf"sequence {text.id} is in work\[0\] and in work\[1\]; a text can have one work"):
                        call(Z, work)
            with pytest.raises(ValueError, match=rf"sequence {text.id} is in work\[0\] and in work\[2\]"):
                stream.sample(np.zeros((3, VOCAB)), [text, other, text])
            assert text.tokens == other.tokens == [] and not stream._session.steps
            assert stream.sample(logits(1, 0), [text]) and len(text.tokens) == 1
            # Raw scores belong to no text.
            score = pb.Work(score=pb.ScoreWork(token_ids=[5]))
            assert [work.status for work in stream.step(Z, [score, score]).work] == [pb.ROW_STATUS_OK] * 2


def test_a_text_that_is_twice_among_drafts_is_told_before_the_model_is_asked(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text, speculation = stream.open(**params(1)), Speculation(stream)
        with pytest.raises(ValueError, match=rf"sequence {text.id} is in drafts\[0\] and in drafts\[1\]"):
            speculation.verify([Draft(text, [1]), Draft(text, [2])], np.zeros((4, VOCAB), np.float32))
        for draft in (speculation.chain, lambda texts, model: speculation.tree(texts, model, [-1])):
            with pytest.raises(ValueError, match=rf"sequence {text.id} is in texts\[0\] and in texts\[1\]"):
                draft([text, text], never)
        assert not text.tokens


def test_a_chain_has_no_less_than_no_tokens(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text, speculation = stream.open(**params(1)), Speculation(stream)
        with pytest.raises(ValueError, match="at_most is -1, must be at least 0"):
            speculation.chain([text], never, at_most=-1)
        assert speculation.chain([text], never, at_most=0)[0].token_ids == []


def test_no_text_is_opened_on_a_stream_that_was_ended(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(**params(1))
    for call in (stream.open, lambda: stream.open(prompt=[1], temperature=0.5)):
        with pytest.raises(croupier.CroupierError, match="the stream was ended; connect a new one"):
            call()
    # Closing has no further effect.
    stream.close(text)

    async def run():
        stream = croupier.aio.connect(server.uds, VOCAB)
        text = stream.open(**params(1))
        async with stream:
            assert await stream.sample(logits(1, 0), [text])
        with pytest.raises(croupier.CroupierError, match="the stream was ended; connect a new one"):
            stream.open()
        async with croupier.aio.connect(server.uds, VOCAB) as another:
            with pytest.raises(ValueError, match="another stream opened it"):
                another.close(text)

    asyncio.run(run())


def test_a_text_may_be_pickled(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(prompt=[1, 2], **params(1))
        stream.sample(logits(1, 0), [text])
        copied = pickle.loads(pickle.dumps(text))
        assert (copied.prompt, copied.tokens, copied.params) == (text.prompt, text.tokens, text.params)
        with pytest.raises(ValueError, match="does not belong to this stream"):
            stream.close(copied)


def test_one_text_in_the_place_of_a_list_is_told(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text, speculation = stream.open(**params(1)), Speculation(stream)
        for call, said in [
            (lambda: stream.sample(Z[:1], text), r"sequences is Sequence, must be a list of texts, such as \[text\]"),
            (lambda: stream.sample(Z[:1], text, token_masks=[None]), "sequences is Sequence"),
            (lambda: stream.sample(Z[:1], 5), "sequences is int, must be a list of texts"),
            (lambda: stream.sample(Z[:1], "text"), "sequences is str, must be a list of texts"),
            (lambda: stream.masked(text, [None]), "sequences is Sequence"),
            (lambda: stream.step(Z[:1], text), r"work is Sequence, must be a list of texts or works, such as \[text\]"),
            (lambda: stream.submit(Z[:1], pb.Work(sequence_id=text.id)), "work is Work, must be a list"),
            (lambda: speculation.verify(text, Z[:1]), r"drafts is Sequence, must be a list of drafts, such as \[Draft\(text\)\]"),
            (lambda: speculation.verify(Draft(text), Z[:1]), "drafts is Draft, must be a list"),
            (lambda: speculation.chain(text, never), r"texts is Sequence, must be a list of texts, such as \[text\]"),
            (lambda: speculation.chain([5], never), r"texts\[0\] is 5, must be a Sequence that `open` returned"),
            (lambda: speculation.tree(text, never, [-1]), "texts is Sequence"),
            (lambda: speculation.proposed(text), "texts is Sequence"),
        ]:
            with pytest.raises(TypeError, match=f"^{said}"):
                call()
        assert not text.tokens and stream.sample(Z[:1], (each for each in [text]))

    async def run():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            text = stream.open()
            for call in (stream.sample, stream.step, stream.submit):
                with pytest.raises(TypeError, match=r"is Sequence, must be a list of texts.*, such as \[text\]"):
                    await call(Z[:1], text)

    asyncio.run(run())


def test_logits_of_no_numbers_are_told_by_their_type(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(**params(1))
        for wrong, said in ((({1} for _ in range(2)), "generator"), ("logits", "str"), ({}, "dict"), (pb.Work(), "Work"), (object(), "object"),
                            ([text], "list of Sequence")):
            with pytest.raises(TypeError, match=rf"logits are {said}, must be numbers in the shape \(rows, {VOCAB}\): an array, a tensor, lists"):
                stream.sample(wrong, [text])
        with pytest.raises(ValueError, match=r"logits have the shape \(\)"):
            stream.sample(5.0, [text])
        assert not text.tokens


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype, large", [("f32", 1e39), ("f16", 1e5), ("bf16", 1e39), ("bf16", 3.4e38)])
def test_infinities_of_the_conversion_are_told_as_such(serve, path, dtype, large):
    made = "logits too large for the stream's dtype became infinities when they were converted"
    rows = np.stack([logits(1, 0), logits(2, 0)]).astype(float)
    rows[1, 7] = large
    # In one message, and in a step that is split, in which rows wait for a slot.
    for server in (serve(), serve("--max-rows-per-step=1")):
        with croupier.connect(server.uds, VOCAB, dtype=dtype, data_path=path, max_rows=1 if path == "shared_memory" else 9) as stream:
            texts, speculation = [stream.open(**params(text)) for text in (1, 2)], Speculation(stream)
            with pytest.raises(croupier.RowError, match=made) as error:
                stream.sample(rows, texts)
            assert list(error.value.failures) == [texts[1].id] and error.value.failures[texts[1].id].status == "POSITIVE_INFINITY"
            own = stream.rows(1)
            own.write(rows[1:])
            assert made in stream.step(own, texts[1:]).work[0].message
            with pytest.raises(croupier.SpeculationError, match=made):
                speculation.verify([Draft(texts[1])], rows[1:])
            stream.submit(rows, texts)
            works = stream.result().work
            assert made in works[1].message and not works[0].message
            # Infinities in the program's own logits are not blamed on the conversion, and masks are accepted.
            masked = np.where(rows == large, np.inf, rows)[1:]
            with pytest.raises(croupier.RowError) as error:
                stream.sample(masked, texts[1:])
            assert error.value.failures[texts[1].id].status == "POSITIVE_INFINITY" and made not in str(error.value)
            assert stream.sample(np.where(rows == large, -large, rows)[1:], texts[1:])


def test_asyncio_is_entered_by_async_with_alone(server):
    async def run():
        stream = croupier.aio.connect(server.uds, VOCAB, vocab_shards=[400, 600])
        with pytest.raises(TypeError, match=r"use it in `async with croupier.aio.connect\(...\) as stream`, not in `with`"):
            with stream:
                pass
        with pytest.raises(TypeError, match=r"it cannot be awaited; use it in `async with croupier.aio.connect\(...\) as stream`"):
            await stream
        async with stream:
            rank = croupier.aio.attach(stream.shard_token, 1)
            with pytest.raises(TypeError, match=r"use it in `async with croupier.aio.attach\(...\) as rank`, not in `with`"):
                with rank:
                    pass
            with pytest.raises(TypeError, match="it cannot be awaited"):
                await rank
            async with rank:
                rank.discard(await rank.rows(1))

    asyncio.run(run())
