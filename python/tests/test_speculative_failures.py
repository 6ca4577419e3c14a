"""A row of the draft model that fails ends the draft of its text; the others are drawn to their ends, and all may be verified."""

import asyncio
import pickle

import numpy as np
import pytest

import croupier
from test_speculative import TREE, VOCAB, draft_model, target
from test_speculative_texts import connected, done  # noqa: F401

COUNT = {"chain": 4, "tree": len(TREE)}


def drawing(speculation, texts, shape, model):
    return speculation.tree(texts, model, TREE) if shape == "tree" else speculation.chain(texts, model, 4)


def opened(stream):
    return [stream.open(seed=seed, prompt=[seed, 1]) for seed in range(3)]


def broken(which, length, asked):
    """A draft model whose rows for a text are NaN behind so many draft tokens."""
    def model(pairs):
        asked.append([text.id for text, _ in pairs])
        rows = draft_model(pairs)
        for row, (text, path) in zip(rows, pairs):
            if text.id == which and len(path) >= length:
                row[0] = np.nan
        return rows
    return model


# The tree's tokens before its first one behind one of that depth.
@pytest.mark.parametrize("length, left", [(0, {"chain": 0, "tree": 0}), (1, {"chain": 1, "tree": 2}), (2, {"chain": 2, "tree": 5})])
@pytest.mark.parametrize("shape", COUNT)
def test_one_row_that_fails_leaves_the_others(server, connected, shape, length, left):  # noqa: F811
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            texts, asked = opened(stream), []
            whole = await done(drawing(speculation, texts, shape, draft_model))
            with pytest.raises(croupier.SpeculationError, match=f"^sequence {texts[1].id}: .*NaN") as error:
                await done(drawing(speculation, texts, shape, broken(texts[1].id, length, asked)))
            found = error.value
            assert {number: failure.status for number, failure in found.failures.items()} == {texts[1].id: "NAN_LOGITS"}
            assert found.verified == []
            assert [work.status for work in found.result.work].count(croupier.pb.ROW_STATUS_NAN_LOGITS) == 1
            assert [len(draft.token_ids) for draft in found.drafts] == [COUNT[shape], left[shape], COUNT[shape]]
            for draft, undisturbed in zip(found.drafts, whole):
                assert draft.sequence is undisturbed.sequence and draft.token_ids == undisturbed.token_ids[:len(draft.token_ids)]
                assert draft.parents is None if shape == "chain" else draft.parents == TREE[:len(draft.token_ids)]
            # Not asked for any more of it.
            assert sum(texts[1].id in ids for ids in asked) == (length + 1 if shape == "chain" else [1, 2, 4][length]) and texts[0].id in asked[-1]
            again = pickle.loads(pickle.dumps(found))
            assert [draft.token_ids for draft in again.drafts] == [draft.token_ids for draft in found.drafts]
            verified = await done(speculation.verify(found.drafts, target(found.drafts)))
            assert all(text.tokens == each.token_ids != [] for text, each in zip(texts, verified))

    asyncio.run(run())


def test_a_text_that_had_ended_is_not_among_the_drafts(server, connected):  # noqa: F811
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            text, ended = stream.open(seed=1), stream.open(output=[9] * 9, repetition_detection={"max_pattern_size": 2, "min_count": 3})
            with pytest.raises(croupier.SpeculationError, match="has ended") as error:
                await done(speculation.chain([ended, text], draft_model, 2))
            [draft] = error.value.drafts
            assert draft.sequence is text and len(draft.token_ids) == 2 and ended.finish_reason == "other"
            with pytest.raises(croupier.SpeculationError) as error:
                rows = target([draft])
                rows[0] = np.nan
                await done(speculation.verify([draft], rows))
            assert error.value.drafts == [] and error.value.verified == [None]

    asyncio.run(run())
