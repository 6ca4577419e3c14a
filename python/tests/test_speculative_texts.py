"""Drafts are for texts that are open on their own stream. For other texts nothing is sent, no model is asked, and nothing is remembered."""

import asyncio
import gc
import inspect

import numpy as np
import pytest

import croupier
from croupier import Draft, pb
from test_kept_results import tasks, threads

VOCAB = 12
NGRAM = {"proposer": {"kind": "ngram", "min_match": 1}, "prompt": [5, 6, 7, 5], "seed": 1}


@pytest.fixture(params=[threads, tasks])
def connected(request):
    return request.param


async def done(given):
    """The result of a call, awaited if necessary."""
    return await given if inspect.isawaitable(given) else given


def row(token=5, count=1):
    return np.tile(np.where(np.arange(VOCAB) == token, 60, 0).astype(np.float32), (count, 1))


def never(pairs):
    raise AssertionError("the model is not asked")


def calls(speculation):
    return {"verify": lambda text: speculation.verify([Draft(text, [5])], row(count=2)), "chain": lambda text: speculation.chain([text], never),
            "tree": lambda text: speculation.tree([text], never, [-1]), "proposed": lambda text: speculation.proposed([text])}


@pytest.mark.parametrize("call", ["verify", "chain", "tree", "proposed"])
def test_texts_that_are_not_open_here_move_no_other(server, connected, call):
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation), connected(server.uds, VOCAB) as (elsewhere, _):
            # All of them have the ids of texts that are open here.
            closed, ended = stream.open(sequence_id=7), stream.open(sequence_id=8, max_tokens=1)
            stream.close(closed)
            await done(stream.sample(row(), [ended]))
            here = [stream.open(sequence_id=number, seed=1) for number in (7, 8, 9)]
            other = elsewhere.open(sequence_id=9, seed=1)
            for text, said in ((other, "not open on this stream: it was closed, or another stream opened it"), (closed, "not open on this stream"),
                               (ended, "has ended, finish_reason is 'max_tokens'")):
                with pytest.raises(ValueError, match=f"^sequence {text.id} (is )?{said}"):
                    await done(calls(speculation)[call](text))
            assert not any(text.tokens for text in (*here, other)) and not stream._session.steps
            await done(speculation.verify([Draft(text) for text in here], row(count=3)))
            assert [text.tokens for text in here] == [[5]] * 3

    asyncio.run(run())


def test_a_result_is_told_of_a_stream_s_own_texts(server, connected):
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation), connected(server.uds, VOCAB) as (elsewhere, other):
            here, there = stream.open(**NGRAM), elsewhere.open(**NGRAM)
            result = await done(elsewhere.step(row(), [there]))
            with pytest.raises(ValueError, match="does not belong to this stream: another stream opened it"):
                speculation.told([there], result)
            assert speculation.proposed([here]) == [Draft(here)]
            other.told([there], result)
            assert other.proposed([there])[0].token_ids == list(result.work[0].proposed_token_ids) != []

    asyncio.run(run())


def test_nothing_is_proposed_for_a_text_that_has_the_id_of_another(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        speculation = croupier.Speculation(stream)
        text = stream.open(sequence_id=3, **NGRAM)
        speculation.told([text], stream.step(row(), [text]))
        assert speculation.proposed([text])[0].token_ids
        stream.close(text)
        # It has as many tokens as the other text had then.
        after = stream.open(sequence_id=3, output=[9], **NGRAM)
        assert speculation.proposed([after]) == [Draft(after)]


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_results_of_texts_that_have_ended_are_forgotten(server, max_tokens):
    """Even if there is never a verification, and although the program keeps its texts."""
    with croupier.connect(server.uds, VOCAB) as stream:
        speculation, kept = croupier.Speculation(stream), []
        for at in range(50):
            kept.append(stream.open(max_tokens=max_tokens, **NGRAM))
            for _ in range(max_tokens):
                speculation.told(kept[-1:], stream.step(row(), kept[-1:]))
            assert kept[-1].finish_reason == "max_tokens" and len(speculation._told) == 0
        # These texts are closed explicitly and not kept.
        for _ in range(50):
            text = stream.open(**NGRAM)
            speculation.told([text], stream.step(row(), [text]))
            stream.close(text)
        gc.collect()
        # The stream still references what it sent last.
        assert len(speculation._told) < 10
        with pytest.raises(ValueError, match="result has 1 works"):
            speculation.told(kept, pb.StepResult(work=[pb.WorkResult()]))
