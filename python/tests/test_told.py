"""What is wrong with what a program gives is told before anything is sent, with what to give instead."""

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
    # A message has room for one row: it would be split.
    for server in (serve(), serve("--max-rows-per-step=1")):
        with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
            text, other = stream.open(**params(1)), stream.open(**params(2))
            raw = pb.Work(sequence_id=text.id, sample=pb.SampleWork())
            for work in ([text, text], [text, raw], [raw, raw], [raw, pb.Work(sequence_id=text.id, draft=pb.DraftWork())]):
                for call in (stream.step, stream.submit):
                    with pytest.raises(ValueError, match=rf"sequence {text.id} is in work\[0\] and in work\[1\]; a text has one work"):
                        call(Z, work)
            with pytest.raises(ValueError, match=rf"sequence {text.id} is in work\[0\] and in work\[2\]"):
                stream.sample(np.zeros((3, VOCAB)), [text, other, text])
            assert text.tokens == other.tokens == [] and not stream._session.steps
            assert stream.sample(logits(1, 0), [text]) and len(text.tokens) == 1
            # Raw scores are of no text.
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
        with pytest.raises(croupier.CroupierError, match="the stream was ended; connect another"):
            call()
    # There is nothing to be done any more.
    stream.close(text)

    async def run():
        stream = croupier.aio.connect(server.uds, VOCAB)
        text = stream.open(**params(1))
        async with stream:
            assert await stream.sample(logits(1, 0), [text])
        with pytest.raises(croupier.CroupierError, match="the stream was ended; connect another"):
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
        with pytest.raises(ValueError, match="is not one of this stream"):
            stream.close(copied)
