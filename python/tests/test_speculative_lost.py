"""The server is lost while a draft is drawn: the draft is drawn again from its first token, and the texts are the same."""

import asyncio

import numpy as np
import pytest

import croupier
from test_client import PATHS
from test_speculative import TREE, VOCAB, draft_model, going, target
from test_speculative_texts import connected, done  # noqa: F401

FIELDS = {"max_tokens": 20, "temperature": 1.0}


def drawing(speculation, texts, shape, model):
    return speculation.tree(texts, model, TREE) if shape == "tree" else speculation.chain(texts, model, 4)


def replaced(server, how):
    """Replaces the server. One that shuts down cleanly also frees the memory of rows."""
    if how != "terminate":
        server.kill()
    else:
        server.process.terminate()
        server.process.wait()
    server.start()


async def run(server, connected, shape, model, **options):  # noqa: F811
    """The drafts and the texts."""
    async with connected(server.uds, VOCAB, **options) as (stream, speculation):
        texts, found = [stream.open(seed=seed, prompt=[seed, 1], **FIELDS) for seed in range(8)], []
        while now := going(texts):
            drafts = await done(drawing(speculation, now, shape, model))
            found.append([draft.token_ids for draft in drafts])
            await done(speculation.verify(drafts, target(drafts)))
        return found, [text.tokens for text in texts]


# The model's calls at which the server is lost: before the first token of a draft, and between two tokens.
HOW = {"kill": ([], (2, 7, 13, 14)), "kill, in two messages": (["--max-rows-per-step=7"], (2, 7, 13, 14)),
       "terminate": (["--drain-timeout=100ms"], (7, 8))}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_a_draft_is_drawn_again_where_the_server_was_lost(serve, connected, shape, how, path):  # noqa: F811
    flags, lost = HOW[how]
    server, asked = serve(*flags), []

    def model(pairs):
        asked.append(pairs)
        if len(asked) in lost:
            replaced(server, how)
        return draft_model(pairs)

    whole = asyncio.run(run(server, connected, shape, draft_model, data_path=path))
    assert asyncio.run(run(server, connected, shape, model, data_path=path)) == whole
    assert len(asked) > max(lost)


def test_ranks_attach_again_first(server):
    """Nobody else has the other rank's columns."""
    with croupier.connect(server.uds, VOCAB, vocab_shards=[5, 7]) as stream:
        text, speculation, asked = stream.open(seed=1), croupier.Speculation(stream), []

        def model(pairs):
            asked.append(pairs)
            replaced(server, "kill")
            return np.zeros((1, 5), np.float32)

        with pytest.raises(croupier.LogitsLost):
            speculation.chain([text], model)
        assert len(asked) == 1 and not text.tokens


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("who", ["model", "masks"])
def test_what_the_model_lost_itself_is_told(server, connected, shape, who):  # noqa: F811
    """For example, a model that uses another stream: drawing the draft again would only ask it for the same rows."""
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            text, asked = stream.open(seed=1), []

            def lost(pairs):
                asked.append(pairs)
                # The second call fails, so that the test does not run for ever.
                raise croupier.LogitsLost("its own") if len(asked) == 1 else AssertionError("asked again")

            model, masks = (lost, None) if who == "model" else (draft_model, lost)
            with pytest.raises(croupier.LogitsLost, match="^its own$"):
                if shape == "tree":
                    await done(speculation.tree([text], model, TREE, token_masks=masks))
                else:
                    await done(speculation.chain([text], model, token_masks=masks))
            drafts = await done(drawing(speculation, [text], shape, draft_model))
            await done(speculation.verify(drafts, target(drafts)))
            assert text.tokens

    asyncio.run(run())


# A chain of 4 and the tree under the next server's limit: a text of 10 tokens has room for two draft tokens, or a step for three.
LESS = {"--max-history-tokens=13": {"chain": [-1, 0], "tree": [-1, -1, 0, 0, 1]}, "--max-rows-per-step=4": {"chain": [-1, 0, 1], "tree": [-1, -1, 0]}}


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("limit", LESS)
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_a_draft_that_is_drawn_again_goes_by_the_new_server_s_limits(serve, connected, shape, limit, lost):  # noqa: F811
    server, asked = serve(), []

    def model(pairs):
        asked.append(pairs)
        if len(asked) == lost:
            server.flags = (limit,)
            replaced(server, "kill")
        return draft_model(pairs)

    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            text = stream.open(seed=1, prompt=[3] * 10)
            # The text is opened here, because otherwise there would be nothing to open again.
            await done(drawing(speculation, [text], shape, draft_model))
            drafts = await done(drawing(speculation, [text], shape, model))
            [parents] = [list(range(-1, len(draft.token_ids) - 1)) if draft.parents is None else draft.parents for draft in drafts]
            assert parents == LESS[limit][shape] and len(asked) >= lost
            [verified] = await done(speculation.verify(drafts, target(drafts)))
            assert text.tokens == verified.token_ids

    asyncio.run(run())


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_text_that_the_next_server_refuses_leaves_the_others(serve, connected, lost, alone):  # noqa: F811
    """The next server refuses texts of 10 tokens."""
    server, asked = serve(), []

    def model(pairs):
        asked.append([text.id for text, _ in pairs])
        if len(asked) == lost:
            server.flags = ("--max-history-tokens=9",)
            replaced(server, "kill")
        return draft_model(pairs)

    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            longer, *others = (stream.open(seed=1, prompt=[3] * count) for count in ((10,) if alone else (10, 2, 3)))
            await done(speculation.chain([longer, *others], draft_model, 4))
            with pytest.raises(croupier.OpenError, match=f"^sequence {longer.id}: [^;]*max_history_tokens[^;]*; shorten them$") as error:
                await done(speculation.chain([longer, *others], model, 4))
            assert [draft.sequence for draft in error.value.drafts] == others
            assert all(len(draft.token_ids) == 4 for draft in error.value.drafts)
            # The model is asked once more for the token that was in progress, and never again.
            assert sum(longer.id in ids for ids in asked) == lost
            verified = await done(speculation.verify(error.value.drafts, target(error.value.drafts))) if others else []
            assert [each.token_ids for each in verified] == [text.tokens for text in others]

    asyncio.run(run())
