"""A failed row of the draft model ends the draft of its text, and so does a failed opening. The other drafts are completed, and all drafts
can be verified."""

import asyncio
import pickle

import numpy as np
import pytest

import croupier
from croupier import Draft
from test_speculative import TREE, VOCAB, draft_model, target
from test_speculative_texts import connected, done  # noqa: F401

COUNT = {"chain": 4, "tree": len(TREE)}


def drawing(speculation, texts, shape, model):
    return speculation.tree(texts, model, TREE) if shape == "tree" else speculation.chain(texts, model, 4)


def opened(stream):
    return [stream.open(seed=seed, prompt=[seed, 1]) for seed in range(3)]


def broken(which, length, asked):
    """A draft model whose rows for one text are NaN after `length` draft tokens."""
    def model(pairs):
        asked.append([text.id for text, _ in pairs])
        rows = draft_model(pairs)
        for row, (text, path) in zip(rows, pairs):
            if text.id == which and len(path) >= length:
                row[0] = np.nan
        return rows
    return model


# For the tree: the number of tokens before the first one that comes after `length` draft tokens.
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
            # The model is not asked for further rows of this text.
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


@pytest.mark.parametrize("shape", COUNT)
def test_one_text_that_is_not_opened_leaves_the_others(server, connected, shape):  # noqa: F811
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation), connected(server.uds, VOCAB) as (alone, undisturbed):
            first, wrong, last = stream.open(seed=0, prompt=[0, 1]), stream.open(top_p=2.0), stream.open(seed=2, prompt=[2, 1])
            texts = [alone.open(seed=seed, prompt=[seed, 1]) for seed in (0, 2)]
            with pytest.raises(croupier.OpenError, match=f"^sequence {wrong.id}: params.top_p: [^;]*$") as error:
                await done(drawing(speculation, [first, wrong, last], shape, draft_model))
            found = error.value
            assert {number: (why.status, why.field) for number, why in found.failures.items()} == {wrong.id: ("INVALID_ARGUMENT", "params.top_p")}
            assert [work.status == croupier.pb.ROW_STATUS_OK for work in found.result.work] == [True, False, True]
            assert found.verified == [] and found.__cause__ is None
            whole = await done(drawing(undisturbed, texts, shape, draft_model))
            assert [draft.sequence for draft in found.drafts] == [first, last]
            assert [draft.token_ids for draft in found.drafts] == [draft.token_ids for draft in whole]
            again = pickle.loads(pickle.dumps(found))
            assert [draft.token_ids for draft in again.drafts] == [draft.token_ids for draft in found.drafts]
            # The error is raised once, and the drafts can be verified as usual.
            verified = await done(speculation.verify(found.drafts, target(found.drafts)))
            assert first.tokens == verified[0].token_ids and [each.token_ids for each in verified] == [
                each.token_ids for each in await done(undisturbed.verify(whole, target(whole)))]

    asyncio.run(run())


def test_a_text_that_is_not_opened_need_not_be_one_of_the_texts(server, connected):  # noqa: F811
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            text, wrong = stream.open(seed=1), stream.open(top_p=2.0)
            with pytest.raises(croupier.OpenError, match=f"^sequence {wrong.id}: ") as error:
                await done(speculation.chain([text], draft_model, 3))
            [draft] = error.value.drafts
            assert draft.sequence is text and len(draft.token_ids) == 3

    asyncio.run(run())


def test_a_text_alone_that_is_not_opened_asks_for_no_more_rows(server, connected):  # noqa: F811
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            asked = []
            with pytest.raises(croupier.OpenError) as error:
                await done(speculation.chain([stream.open(top_p=2.0)], broken(None, 0, asked), 4))
            assert len(asked) == 1 and error.value.drafts == []

    asyncio.run(run())


def test_rows_that_fail_beside_a_text_that_is_not_opened_are_told_too(server, connected):  # noqa: F811
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            wrong, *texts = stream.open(top_p=2.0), *opened(stream)
            with pytest.raises(croupier.OpenError) as error:
                await done(speculation.chain([wrong, *texts], broken(texts[1].id, 2, []), 4))
            assert [*error.value.failures] == [wrong.id]
            assert [len(draft.token_ids) for draft in error.value.drafts] == [4, 2, 4]
            rows = error.value.__cause__
            assert isinstance(rows, croupier.SpeculationError) and {n: f.status for n, f in rows.failures.items()} == {texts[1].id: "NAN_LOGITS"}

    asyncio.run(run())


@pytest.mark.parametrize("reused", [False, True])
def test_a_text_that_is_not_opened_is_told_though_the_model_fails_then(server, connected, reused):  # noqa: F811
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            text, wrong = stream.open(seed=1), stream.open(top_p=2.0, sequence_id=7)

            def model(pairs):
                if len(pairs) == 1:
                    # The second call is without the text. Another text may have its id by now.
                    if reused:
                        stream.open(seed=2, sequence_id=7)
                    raise RuntimeError("out of memory")
                return draft_model(pairs)

            with pytest.raises(RuntimeError, match="^out of memory$"):
                await done(speculation.chain([text, wrong], model))
            if not reused:
                with pytest.raises(croupier.OpenError, match="^sequence 7: params.top_p") as error:
                    await done(speculation.verify([Draft(text)], target([Draft(text)])))
                assert error.value.verified[0].token_ids == text.tokens != []
            await done(speculation.chain([text], draft_model))

    asyncio.run(run())
