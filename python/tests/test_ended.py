"""A text is opened with an output that has already ended, which only the server knows. Its first step ends it and harms no other text."""

import asyncio

import numpy as np
import pytest

import croupier
from croupier import Draft, Speculation, pb
from test_client import VOCAB, logits, params

LOOP = {"repetition_detection": {"max_pattern_size": 2, "min_count": 3}}


@pytest.fixture(params=["repetition", "preset", "max_tokens", "stop_token_ids", "stop_token_sequences"])
def ended(request, serve, tmp_path):
    """A server, and the options that open a text which has already ended there."""
    presets, config = tmp_path / "presets.toml", tmp_path / "croupier.toml"
    presets.write_text('[short]\ndescription = "ends soon"\nmax_tokens = 9\n')
    config.write_text({"max_tokens": "[defaults]\nmax_tokens = 9\n", "stop_token_ids": "[defaults]\nstop_token_ids = [9]\n"}.get(request.param, ""))
    # With a min_tokens in the server's defaults, such a text would continue.
    sequences = {"stop_token_sequences": [{"token_ids": [9, 9]}]}
    fields = {"repetition": LOOP, "preset": {"preset": "short"}, "stop_token_sequences": sequences}.get(request.param, {})
    return serve(f"--config={config}", f"--presets={presets}"), {"seed": 1, "output": [9] * 9, **fields}


def rows(count, position=0):
    return np.stack([logits(2, position)] * count)


def check(stream, text):
    assert text.finish_reason == "other" and text.tokens == [9] * 9 and text.id not in stream.sequences
    with pytest.raises(ValueError, match=f"sequence {text.id} has ended, finish_reason is 'other'"):
        stream.masked([text], [None])


def test_it_says_so_with_the_first_step(ended):
    server, fields = ended
    with croupier.connect(server.uds, VOCAB) as stream:
        text, other = stream.open(**fields), stream.open(max_tokens=50, **params(2))
        with pytest.raises(croupier.RowError, match=f"^sequence {text.id}: the sequence has ended, see its finish_reason$") as error:
            stream.sample(rows(2), [text, other])
        assert error.value.failures[text.id].status == "SEQUENCE_FINISHED" and len(other.tokens) == 1
        check(stream, text)
        # The server forgets the text too, so its id is free.
        stream.sample(logits(2, 1), [other])
        assert stream.sample(logits(1, 0), [stream.open(sequence_id=text.id, seed=1)])
        text = stream.open(**fields)
        assert [work.status for work in stream.step(logits(1, 0), [text]).work] == [pb.ROW_STATUS_SEQUENCE_FINISHED]
        check(stream, text)


def test_it_says_so_in_a_step_of_several_messages(serve):
    with croupier.connect(serve("--max-rows-per-step=1").uds, VOCAB) as stream:
        text, other = stream.open(output=[9] * 9, **LOOP), stream.open(**params(2))
        with pytest.raises(croupier.RowError, match="has ended"):
            stream.sample(rows(2), [text, other])
        check(stream, text)
        assert len(other.tokens) == 1


def test_drafts_say_so_too(ended):
    server, fields = ended
    with croupier.connect(server.uds, VOCAB) as stream:
        speculation = Speculation(stream)
        for call in (lambda text: speculation.verify([Draft(text, [9])], rows(2)),
                     lambda text: speculation.chain([text], lambda pairs: rows(len(pairs)))):
            text = stream.open(**fields)
            with pytest.raises(croupier.SpeculationError, match="the sequence has ended, see its finish_reason"):
                call(text)
            check(stream, text)


def test_asyncio_says_so_too(ended):
    server, fields = ended

    async def run():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            text, other = stream.open(**fields), stream.open(max_tokens=50, **params(2))
            with pytest.raises(croupier.RowError, match="has ended"):
                await stream.sample(rows(2), [text, other])
            check(stream, text)
            assert len(other.tokens) == 1

    asyncio.run(run())


def test_a_text_that_a_step_ended_keeps_its_reason(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(max_tokens=1, **params(1))
        for position in range(2):
            stream.submit(logits(1, position), [text])
        stream.result()
        assert stream.result().work[0].status == pb.ROW_STATUS_SEQUENCE_FINISHED and text.finish_reason == "max_tokens"
