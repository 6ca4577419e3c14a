"""Masks, deadlines and traces of drafts: `chain`, `tree` and `verify` take the same options as `sample`."""

import asyncio
import inspect

import numpy as np
import pytest

import croupier
from croupier import Draft, pb
from test_masks import FORMS, VOCAB, allowed
from test_speculative import TREE
from test_speculative_room import rows as following
from test_speculative_room import opened
from test_speculative_texts import connected, done  # noqa: F401
from test_split import spied

TRACE = f"00-{'a' * 32}-b7ad6b7169203331-01"
COUNT = 12


def may_follow(tokens):
    """The grammar: the sum of the tokens modulo 7 determines which tokens may follow. Token 5 always may."""
    mask = np.arange(VOCAB) % 7 == (sum(tokens) + 1) % 7
    return mask | (np.arange(VOCAB) == 5)


def model(tokens):
    return np.random.default_rng([len(tokens), sum(tokens)]).normal(size=VOCAB).astype(np.float32)


def draft_model(pairs):
    return np.stack([model([*text.tokens, *path]) + np.cos(np.arange(VOCAB)) for text, path in pairs])


def paths(draft):
    """For each row of the verification, the tokens before it."""
    return [[*draft.sequence.tokens, *(draft.token_ids[at] for at in draft.path(index))] for index in range(-1, len(draft.token_ids))]


def plain(server, **fields):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(seed=seed, **fields) for seed in range(3)]
        for _ in range(COUNT):
            stream.sample(np.stack([model(text.tokens) for text in texts]), texts, token_masks=[may_follow(text.tokens) for text in texts])
        return [text.tokens for text in texts]


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_drafts_are_drawn_and_verified_behind_masks(server, connected, shape, is_slow):  # noqa: F811
    fields = {"temperature": 0.0, "max_tokens": COUNT}

    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            texts, asked = [stream.open(seed=seed, **fields) for seed in range(3)], []

            def rows(pairs):
                asked.append(pairs)
                return draft_model(pairs)

            def masks(pairs):
                assert pairs is asked[-1]
                return [may_follow([*text.tokens, *path]) for text, path in pairs]

            async def later(pairs):
                await asyncio.sleep(0)
                return np.stack(masks(pairs))

            masks_of = later if is_slow and isinstance(speculation, croupier.AsyncSpeculation) else masks
            drafted = 0
            while now := [text for text in texts if text.finish_reason is None]:
                drafts = await done(speculation.tree(now, rows, TREE, token_masks=masks_of) if shape == "tree"
                                    else speculation.chain(now, rows, 4, token_masks=masks_of))
                for draft in drafts:
                    for index, token in enumerate(draft.token_ids):
                        before = [*draft.sequence.tokens, *(draft.token_ids[at] for at in draft.path(index)[:-1])]
                        assert may_follow(before)[token]
                        drafted += 1
                behind = [path for draft in drafts for path in paths(draft)]
                await done(speculation.verify(drafts, np.stack([model(path) for path in behind]), token_masks=[may_follow(path) for path in behind]))
            assert drafted > COUNT
            return [text.tokens for text in texts]

    assert asyncio.run(run()) == plain(server, **fields)


@pytest.mark.parametrize("form", FORMS)
def test_a_verification_takes_masks_in_every_form(server, form):
    zeros = np.zeros((4, VOCAB), np.float32)
    with croupier.connect(server.uds, VOCAB) as stream:
        first, second = (stream.open(seed=seed) for seed in range(2))
        drafts = [Draft(first, [7, 9]), Draft(second)]
        found = croupier.Speculation(stream).verify(drafts, zeros, token_masks=FORMS[form]([allowed(token) for token in (7, 9, 3, 4)]))
        assert [each.token_ids for each in found] == [[7, 9, 3], [4]]


def test_rows_without_a_mask_may_be_among_others(server):
    zeros = np.zeros((3, VOCAB), np.float32)
    with croupier.connect(server.uds, VOCAB) as stream:
        sent, text, speculation = spied(stream), stream.open(seed=1), croupier.Speculation(stream)
        [verified] = speculation.verify([Draft(text, [7, 9], distribution=np.eye(VOCAB)[[7, 9]])], zeros, token_masks=[None, allowed(3), None])
        # Token 9 is not in the mask of its row, so it is never emitted, whatever happens to the first one.
        assert 9 not in verified.token_ids
        whole = [np.ones(VOCAB, bool)] * 2
        for masks in ([None, None], whole, [None, whole[0]]):
            speculation.verify([Draft(text, [7])], zeros[:2], token_masks=masks)
        masked = [len(pb.Step.FromString(part.fixed).work[0].token_masks) for part in sent]
        assert masked == [3 * 4 * -(-VOCAB // 32), 0, 0, 0]
        for masks, said in (([None], "token_masks have 1 rows for 2 rows of logits, must have one for each; use None for no mask"),
                            ([None, [1.5]], r"token_masks\[1\] is float64"), (np.ones(VOCAB, bool), "token_masks have the shape")):
            with pytest.raises((ValueError, TypeError), match=said):
                speculation.verify([Draft(text, [7])], zeros[:2], token_masks=masks)
        with pytest.raises(ValueError, match="token_masks have 3 rows for 1 texts, must have one for each"):
            speculation.chain([text], draft_model, token_masks=lambda pairs: [None] * 3)
        assert len(sent) == 4


def test_the_longest_draft_that_there_is_room_for_may_be_masked(serve):
    with croupier.connect(serve("--max-message-bytes=64KiB").uds, VOCAB, data_path="inline") as stream:
        text, speculation = opened(stream), croupier.Speculation(stream)
        speculation.verify([Draft(text)], following(Draft(text)))
        [draft] = speculation.proposed([text])
        masks = np.arange(VOCAB) < np.full((draft.rows, 1), 9)
        [verified] = speculation.verify([draft], following(draft), token_masks=masks)
        assert verified.token_ids[:-1] == draft.token_ids and len(draft.token_ids) == 14


def test_each_step_has_the_trace_and_the_deadline(server, connected):  # noqa: F811
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            sent, text, about = spied(stream), stream.open(seed=1), {"traceparent": TRACE, "deadline_ms": 60_000}
            for make in (lambda: speculation.chain([text], draft_model, 3, **about), lambda: speculation.tree([text], draft_model, TREE, **about)):
                drafts = await done(make())
                await done(speculation.verify(drafts, np.zeros((drafts[0].rows, VOCAB), np.float32), **about))
            steps = [pb.Step.FromString(part.fixed) for part in sent]
            assert [(step.traceparent, step.deadline_ms) for step in steps] == [(TRACE, 60_000)] * (3 + 1 + len(TREE) + 1)
            await done(speculation.verify([Draft(text)], np.zeros((1, VOCAB), np.float32)))
            step = pb.Step.FromString(sent[-1].fixed)
            assert not step.traceparent and not step.deadline_ms

            def never(pairs):
                raise AssertionError("the model is not asked")

            for wrong, said in (({"deadline_ms": -1}, "deadline_ms is -1, must be in 0"), ({"traceparent": 5}, "traceparent is 5, must be a string")):
                for call in (lambda: speculation.chain([text], never, **wrong), lambda: speculation.tree([text], never, [-1], **wrong),
                             lambda: speculation.verify([Draft(text)], np.zeros((1, VOCAB)), **wrong)):
                    with pytest.raises((ValueError, TypeError), match=said):
                        await done(call())

    asyncio.run(run())


def test_a_verification_past_its_deadline_says_so(server):
    """The step waits for a rank that never attaches."""
    with croupier.connect(server.uds, VOCAB, vocab_shards=[400, 600]) as stream:
        text, speculation = stream.open(seed=1), croupier.Speculation(stream)
        draft = Draft(text, [5])
        with pytest.raises(croupier.SpeculationError) as error:
            speculation.verify([draft], np.zeros((2, 400), np.float32), deadline_ms=50)
        assert error.value.failures[text.id].status == "DEADLINE_EXCEEDED" and not text.tokens


def test_all_take_what_sample_takes():
    for stream, speculation in ((croupier.Stream, croupier.Speculation), (croupier.aio.Stream, croupier.AsyncSpeculation)):
        given = {name: each.default for name, each in inspect.signature(stream.sample).parameters.items() if each.kind == each.KEYWORD_ONLY}
        for call in (speculation.chain, speculation.tree, speculation.verify):
            own = {name: each.default for name, each in inspect.signature(call).parameters.items() if each.kind == each.KEYWORD_ONLY}
            assert own == given, call
