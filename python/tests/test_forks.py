"""`fork`: a text that continues from all or some of another text's tokens, or with further ones, equals a text that is opened with these
tokens."""

import asyncio

import numpy as np
import pytest

import croupier
import croupier.aio
from test_client import VOCAB, logits


def step(stream, texts, position):
    """Samples one token for each text, from the same row."""
    stream.sample(np.stack([logits(7, position)] * len(texts)), texts)


def drawn(stream, text, count, first):
    for position in range(first, first + count):
        step(stream, [text], position)
    return text.tokens


#: Parameters that depend on the text, and samplers with a state in addition to it.
KINDS = {
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "dry_multiplier": 0.8, "temperature": 1.4},
    "mirostat": {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.3},
    "adaptive-p": {"adaptive_target": 0.4},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_goes_on_as_the_text_would_have(server, kind):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=5, prompt=[3, 4], **KINDS[kind])
        drawn(stream, text, 6, 0)
        fork = stream.fork(text, seed=5)
        assert (fork.tokens, fork.prompt, fork.id != text.id) == (text.tokens, (3, 4), True)
        assert drawn(stream, fork, 6, 6)[:6] == text.tokens
        assert fork.tokens == drawn(stream, text, 6, 6)


def test_forks_have_seeds_of_their_own_and_the_parameters_that_are_given(server):
    with croupier.connect(server.uds, VOCAB, default_params={"seed": 9, "temperature": 2.0}) as stream:
        text = stream.open(prompt=[1], max_tokens=40)
        drawn(stream, text, 1, 0)
        forks = [stream.fork(text) for _ in range(3)]
        greedy = stream.fork(text, temperature=0.0, sequence_id=1000)
        for position in range(1, 12):
            step(stream, [text, *forks, greedy], position)
        assert len({tuple(other.tokens) for other in [text, *forks, greedy]}) == 5
        assert greedy.tokens[1:] == [int(np.argmax(logits(7, position))) for position in range(1, 12)]
        assert greedy.id == 1000 and not text.params.HasField("seed") and text.params.max_tokens == greedy.params.max_tokens == 40


def test_a_fork_goes_back_and_on_past_tokens_that_nobody_drew(server):
    """The fork is the same as a text that is opened with these tokens."""
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=5, prompt=[3, 4], repetition_penalty=1.5)
        drawn(stream, text, 6, 0)
        for output in (text.tokens[:3], [*text.tokens, 11, 12], np.array([8, 9]), []):
            fork = stream.fork(text, output=output, seed=5)
            opened = stream.open(text.params, prompt=[3, 4], output=output)
            step(stream, [fork, opened], 20)
            assert fork.tokens == opened.tokens and fork.tokens[:-1] == list(output)
        assert drawn(stream, stream.fork(text, output=text.tokens[:3], seed=5), 3, 3) == text.tokens


def test_what_samplers_remember_is_of_the_end_of_the_text(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=5, **KINDS["mirostat"])
        drawn(stream, text, 4, 0)
        assert text.state.mirostat_mu
        assert stream.fork(text).state == stream.fork(text, output=[*text.tokens, 1]).state == text.state
        assert stream.fork(text, output=text.tokens[:2]).state is None
        assert not stream.fork(text, sampler_state={}).state.HasField("mirostat_mu")
        # A sampler that is off has no state, and the server names the field.
        off = stream.fork(text, mirostat=0)
        with pytest.raises(croupier.OpenError, match="sampler_state.mirostat_mu"):
            step(stream, [off], 4)
        on = stream.fork(text, mirostat=0, sampler_state={})
        step(stream, [on], 4)


def test_a_text_that_has_ended_is_forked_where_it_had_not(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=5, max_tokens=3)
        assert len(drawn(stream, text, 3, 0)) == 3 and text.finish_reason == "max_tokens"
        assert stream.fork(text).finish_reason == "max_tokens"
        assert len(drawn(stream, stream.fork(text, max_tokens=5), 2, 3)) == 5
        assert len(drawn(stream, stream.fork(text, output=text.tokens[:2]), 1, 2)) == 3


def test_what_cannot_be_forked_says_why(server):
    with croupier.connect(server.uds, VOCAB) as stream, croupier.connect(server.uds, VOCAB) as elsewhere:
        text = stream.open(seed=5)
        with pytest.raises(TypeError, match="must be a Sequence that `open` returned"):
            stream.fork(text.id)
        with pytest.raises(ValueError, match="another stream opened it"):
            elsewhere.fork(text)
        with pytest.raises(TypeError, match="temperatur"):
            stream.fork(text, temperatur=1)
        with pytest.raises((TypeError, ValueError), match="output"):
            stream.fork(text, output=[-1])
        assert list(stream.sequences) == [text.id]
        refused = stream.open(temperature=-1.0)
        with pytest.raises(croupier.OpenError):
            step(stream, [text, refused], 0)
        with pytest.raises(ValueError, match="was not opened: .*temperature"):
            stream.fork(refused)
        assert list(stream.sequences) == [text.id]


@pytest.mark.parametrize("is_verified", [False, True])
def test_a_text_in_a_step_under_way_is_not_forked_half_way(server, is_verified):
    with croupier.connect(server.uds, VOCAB) as stream:
        text, other = stream.open(seed=5), stream.open(seed=6)
        work = croupier.pb.Work(sequence_id=text.id, verify={"deterministic": {}}) if is_verified else text
        stream.submit(logits(7, 0)[None], [work])
        with pytest.raises(ValueError, match=f"sequence {text.id} is in a step that is under way"):
            stream.fork(text)
        assert stream.fork(other).prompt == ()
        stream.result()
        assert stream.fork(text).tokens == text.tokens != []


def test_forks_are_opened_again_with_their_tokens(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=5, **KINDS["mirostat"])
        drawn(stream, text, 4, 0)
        fork = stream.fork(text, seed=6)
        drawn(stream, fork, 2, 4)
        server.kill()
        server.start()
        drawn(stream, fork, 2, 6)
        again = stream.fork(text, seed=6)
        assert drawn(stream, again, 4, 4) == fork.tokens


def test_a_fork_with_asyncio(server):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            text = stream.open(seed=5)
            await stream.sample(logits(7, 0)[None], [text])
            fork = stream.fork(text, seed=5)
            await stream.sample(np.stack([logits(7, 1)] * 2), [text, fork])
            return text.tokens, fork.tokens

    tokens, forked = asyncio.run(run())
    assert tokens == forked and len(tokens) == 2
