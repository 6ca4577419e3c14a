"""A draft is never longer than a verification has room for, because a verification cannot be split. A longer draft made by hand is refused
with a hint."""

import asyncio
import pathlib

import numpy as np
import pytest

import croupier
from croupier import Draft
from croupier._steps import _MOST_DRAFTED
from test_client import PATHS
from test_speculative import draft_model, target
from test_speculative_texts import connected, done  # noqa: F401

VOCAB = 1000
ROW = 4 * VOCAB
TEXT = [5, 6, 7, 8] * 80


def opened(stream, **fields):
    return stream.open(seed=1, temperature=0.0, prompt=TEXT, proposer={"kind": "ngram", "max_draft_tokens": 64}, **fields)


def behind(tokens, vocab=VOCAB):
    """The rows after each of these tokens, of a model that continues the text's pattern."""
    made = np.zeros((len(tokens), vocab), np.float32)
    made[range(len(tokens)), [5 + (token - 4) % 4 for token in tokens]] = 60
    return made


def rows(draft, vocab=VOCAB):
    """The target's rows."""
    return behind([*draft.sequence.prompt, *draft.sequence.tokens, *draft.token_ids][-draft.rows:], vocab)


# For each limit, the number of draft tokens that fit. A message also contains the mask of each row, 128 bytes, and 16 bytes per token.
LIMITS = {"rows": (["--max-rows-per-step=10"], 9), "row bytes": ([f"--max-row-bytes-per-step={9 * ROW}", f"--max-message-bytes={9 * ROW}"], None),
          "none": ([], _MOST_DRAFTED)}


def room(limit, path):
    """The number of draft tokens that fit, with 16 rows in a slot. More rows go in messages, unless shared memory is required."""
    expected = LIMITS[limit][1]
    if expected is None:
        expected = 8 if path != "inline" else (9 * ROW - 512) // (ROW + 128 + 16) - 1
    return min(expected, 15) if path == "shared_memory" else expected


@pytest.mark.parametrize("path", [*PATHS, "auto"])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_draft_is_no_longer_than_a_verification_has_room_for(serve, connected, limit, path):  # noqa: F811
    server, most = serve(*LIMITS[limit][0]), room(limit, path)

    async def run():
        async with connected(server.uds, VOCAB, data_path=path, max_rows=16) as (stream, speculation):
            text = opened(stream)
            await done(speculation.verify([Draft(text)], rows(Draft(text))))
            asked = []

            def model(pairs):
                asked.append(len(pairs))
                return behind([[*text.prompt, *text.tokens, *path][-1] for text, path in pairs])

            for make in (lambda: speculation.proposed([text]), lambda: speculation.chain([text], model, 300),
                         lambda: speculation.tree([text], model, range(-1, 298))):
                asked.clear()
                [draft] = await done(make())
                assert len(draft.token_ids) == min(most, _MOST_DRAFTED if asked else 64) and len(asked) <= most
                [verified] = await done(speculation.verify([draft], rows(draft)))
                assert len(verified.accepted_path) == len(draft.token_ids)
            assert speculation.length(text, 999) == most

    asyncio.run(run())


@pytest.mark.parametrize("path", PATHS)
def test_the_largest_vocabularies_with_default_limits(server, path):
    """A row has 1 MiB. A step and a message may each have 64 MiB of rows."""
    vocab = 262_144
    with croupier.connect(server.uds, vocab, data_path=path) as stream:
        text, speculation = opened(stream), croupier.Speculation(stream)
        speculation.verify([Draft(text)], rows(Draft(text), vocab))
        [draft] = speculation.proposed([text])
        assert len(draft.token_ids) == (63 if path == "shared_memory" else 61)
        [verified] = speculation.verify([draft], rows(draft, vocab))
        assert len(verified.token_ids) == draft.rows


@pytest.mark.parametrize("flags, count, said", [
    (["--max-rows-per-step=10"], 10, "takes 11 rows, max_rows_per_step is 10; draft fewer tokens, or raise max_rows_per_step$"),
    ([f"--max-row-bytes-per-step={9 * ROW}", f"--max-message-bytes={9 * ROW}"], 9,
     "takes 40000 bytes of rows, max_row_bytes_per_step is 36000; draft fewer tokens, or raise max_row_bytes_per_step$"),
])
def test_a_draft_of_the_worker_s_own_that_is_too_long_says_what_to_do(serve, flags, count, said):
    with croupier.connect(serve(*flags).uds, VOCAB) as stream:
        text, speculation = opened(stream), croupier.Speculation(stream)
        speculation.verify([Draft(text)], rows(Draft(text)))
        with pytest.raises(ValueError, match=rf"^work\[0\] alone {said}"):
            speculation.verify([Draft(text, [5] * count)], np.zeros((count + 1, VOCAB), np.float32))
        assert len(text.tokens) == 1


def test_the_most_draft_tokens_are_what_the_schema_says_and_the_server_takes(server):
    schema = (pathlib.Path(__file__).resolve().parents[2] / "proto/croupier/v1/sampler.proto").read_text(encoding="utf-8")
    assert schema.count(f"// The draft tokens, at most {_MOST_DRAFTED}.") == 1
    with croupier.connect(server.uds, VOCAB) as stream:
        speculation = croupier.Speculation(stream)
        for count, status in (_MOST_DRAFTED, None), (_MOST_DRAFTED + 1, "INVALID_WORK"):
            draft, found = Draft(stream.open(seed=1), [5] * count), None
            try:
                speculation.verify([draft], np.zeros((count + 1, VOCAB), np.float32))
            except croupier.SpeculationError as error:
                [found] = [failure.status for failure in error.failures.values()]
            assert found == status


def test_where_no_row_fits_nothing_is_drafted(serve):
    with croupier.connect(serve(f"--max-row-bytes-per-step={4096}", "--max-message-bytes=4096").uds, 2000) as stream:
        text, speculation = opened(stream), croupier.Speculation(stream)
        assert speculation.chain([text], draft_model, 4) == [Draft(text, [], None, "kept")]
        with pytest.raises(ValueError, match="takes 8000 bytes of rows, max_row_bytes_per_step is 4096; a work cannot be split"):
            speculation.verify([Draft(text)], np.zeros((1, 2000), np.float32))


# Shapes, and what remains of each by the number of tokens that the text has room for, including the token after the draft.
DEEP = {"by levels": ([-1, -1, 0, 0, 1, 2], [[], [-1, -1], [-1, -1, 0, 0, 1]]),
        "by paths": ([-1, 0, 1, -1, 3, 0, 5, -1], [[], [-1, -1, -1], [-1, 0, -1, 2, 0, -1]])}


@pytest.mark.parametrize("shape", DEEP)
def test_trees_are_no_deeper_than_a_text_has_room_for(serve, connected, shape):  # noqa: F811
    server, (parents, left) = serve("--max-history-tokens=20"), DEEP[shape]

    async def run():
        async with connected(server.uds, 12) as (stream, speculation):
            asked = []

            def model(pairs):
                asked.append(len(pairs))
                return draft_model(pairs)

            for prompt in range(16, 20):
                near, other, full = (stream.open(prompt=[3] * count, seed=count) for count in (prompt, 2, 20))
                while (room := 20 - prompt - len(near.tokens)) > 0:
                    asked.clear()
                    drafts = await done(speculation.tree([near, other], model, parents))
                    assert [draft.parents for draft in drafts] == [[*left, parents][min(room, 4) - 1], parents]
                    # Still one call for siblings, and for both texts together.
                    assert len(asked) == len(set(parents)) and asked[0] == 1 + (room > 1)
                    verified = await done(speculation.verify(drafts, target(drafts)))
                    assert 1 <= len(verified[0].token_ids) <= room
                assert len(near.tokens) == 20 - prompt
                assert (await done(speculation.tree([full], model, parents))) == [Draft(full, [], [], "kept")]
                for text in (near, other, full):
                    stream.close(text)

    asyncio.run(run())
