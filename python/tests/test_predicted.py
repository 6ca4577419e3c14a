"""Texts whose output is predicted in part: fewer steps, and the same tokens."""

import croupier
import numpy as np
import pytest
from croupier import Speculation

VOCAB, TOKENS = 50, 60
NGRAM = croupier.SamplingParams(proposer=croupier.ProposerParams(kind="ngram"), max_tokens=TOKENS)


def row(place):
    """Rows that depend on the place alone, so that nothing comes again by itself."""
    return np.random.default_rng(place).normal(size=VOCAB).astype(np.float32) * 3


def rows(drafts):
    return np.stack([row(len(draft.sequence.tokens) + ahead) for draft in drafts for ahead in range(len(draft.token_ids) + 1)])


def speculated(stream, text, interrupt=lambda: None):
    """The number of verifications until the text has ended."""
    speculation, steps = Speculation(stream), 0
    while text.finish_reason is None:
        drafts = speculation.proposed([text])
        if steps == 4:
            interrupt()
        speculation.verify(drafts, rows(drafts))
        steps += 1
    return steps


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
def test_it_takes_fewer_steps_and_changes_no_token(server, kind):
    params = croupier.SamplingParams(proposer=croupier.ProposerParams(kind=kind), max_tokens=TOKENS)
    with croupier.connect(server.uds, VOCAB) as stream:
        alone = stream.open(params, seed=1, prompt=[1, 2, 3])
        without = speculated(stream, alone)
        again = stream.open(params, seed=1, prompt=[1, 2, 3], predicted=alone.tokens)
        assert speculated(stream, again) < without / 4 and again.tokens == alone.tokens
        assert again.predicted == tuple(alone.tokens)
        # Another draw of the same prompt, with nothing in common but what comes by chance.
        other = stream.open(params, seed=2, prompt=[1, 2, 3], predicted=alone.tokens)
        speculated(stream, other)
        plain = stream.open(seed=2, max_tokens=TOKENS)
        while plain.finish_reason is None:
            stream.sample(row(len(plain.tokens)), [plain])
        assert other.tokens == plain.tokens


def test_it_is_there_again_after_a_reconnect_and_in_a_fork(serve):
    server = serve()

    def lose():
        server.kill()
        server.start()

    with croupier.connect(server.uds, VOCAB) as stream:
        alone = stream.open(NGRAM, seed=1)
        without = speculated(stream, alone)
        again = stream.open(NGRAM, seed=1, predicted=alone.tokens)
        steps = speculated(stream, again, lose)
        assert steps < without / 4 and again.tokens == alone.tokens
        fork = stream.fork(again, output=again.tokens[:10], seed=1)
        assert fork.predicted == again.predicted
        assert speculated(stream, fork) < steps and fork.tokens == alone.tokens
        assert stream.fork(again, output=[], predicted=[5]).predicted == (5,)
        plain = stream.fork(again, output=again.tokens[:10], seed=1, predicted=[], proposer=None)
        while plain.finish_reason is None:
            stream.sample(row(len(plain.tokens)), [plain])
        assert plain.tokens == alone.tokens


def test_a_mistake_in_it_is_told(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        for wrong in [-1], [1.5], 3:
            with pytest.raises((TypeError, ValueError), match="predicted"):
                stream.open(NGRAM, predicted=wrong)
        for params, predicted, why in [(croupier.SamplingParams(), [1], "set params.proposer to NGRAM or SUFFIX"), (NGRAM, [VOCAB], "outside the vocabulary of 50")]:
            text = stream.open(params, predicted=predicted)
            with pytest.raises(croupier.OpenError, match=why):
                stream.sample(row(0), [text])


def test_long_matches_and_drafts_suit_a_prediction(server):
    """As docs/speculative.md advises: with the defaults, five tokens that stand in several places lead to the wrong one."""
    chance = np.random.default_rng(5)
    lines = [chance.integers(VOCAB, size=7).tolist() for _ in range(12)]
    file = [token for at in chance.integers(12, size=100) for token in [*lines[at], int(chance.integers(VOCAB))]]
    # A token in thirty is another one.
    edited = [token if chance.random() < 0.97 else (token + 1) % VOCAB for token in file]
    steps = {}
    with croupier.connect(server.uds, VOCAB) as stream:
        for name, more in ("defaults", {}), ("long matches", {"max_match": 32}), ("and drafts", {"max_match": 32, "max_draft_tokens": 32}):
            text = stream.open(proposer=croupier.ProposerParams(kind="ngram", **more), temperature=0.0, max_tokens=len(edited), predicted=file)
            speculation, steps[name] = Speculation(stream), 0
            while text.finish_reason is None:
                drafts = speculation.proposed([text])
                places = range(len(text.tokens), len(text.tokens) + len(drafts[0].token_ids) + 1)
                speculation.verify(drafts, np.stack([9.0 * np.eye(VOCAB, dtype=np.float32)[edited[place]] for place in places]))
                steps[name] += 1
            assert text.tokens == edited
    assert steps == {"defaults": 160, "long matches": 154, "and drafts": 99}
