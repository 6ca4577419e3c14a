"""Speculative decoding as workers do it: with a draft model, without one, and with drafts that the worker drew itself."""

import math

import numpy as np
import pytest
from croupier.v1 import sampler_pb2 as pb
from croupier_client import Worker, opening

VOCAB = 300
LENGTH = 48
PROMPT = [5, 6, 7, 8, 5, 6]


def target(text):
    """Mostly repeats a cycle of tokens, so that drafts can be accepted; the rest is noise that depends on the text."""
    row = np.random.default_rng([3, *text[-2:]]).normal(0, 2, VOCAB).astype(np.float32)
    row[(text[-1] * 3 + 1) % 8] += 13
    return row


def draft_model(text):
    return target(text) + np.random.default_rng([4, text[-1]]).normal(0, 1, VOCAB).astype(np.float32)


def params(**more):
    return pb.SamplingParams(temperature=0.9, top_p=0.95, frequency_penalty=0.1, seed=11, **more)


def rows(text, draft):
    return np.stack([target([*text, *draft[:at]]) for at in range(len(draft) + 1)])


def verify(draft, **source):
    return pb.Work(sequence_id=1, verify=pb.VerifyWork(draft_token_ids=draft, **source))


def only(result):
    assert all(o.status == pb.OPEN_STATUS_OK for o in result.open), result.open
    [work] = result.work
    assert work.status == pb.ROW_STATUS_OK, work.message
    return work, [t.token_id for t in work.tokens]


def generate(address, asked, propose):
    """A text of LENGTH tokens, and the number of target steps that it took. `propose` makes a round's verify work."""
    with Worker(address, VOCAB) as worker:
        text, steps, opens, last = list(PROMPT), 0, [opening(1, asked, PROMPT)], None
        while len(text) < len(PROMPT) + LENGTH:
            if opens:
                worker.step(np.zeros((0, VOCAB)), [], open=opens)
                opens = []
            draft, work = propose(worker, text, last)
            last, tokens = only(worker.step(rows(text, draft), [work]))
            text += tokens
            steps += 1
        return text[: len(PROMPT) + LENGTH], steps


def plain(_worker, _text, _last):
    return [], pb.Work(sequence_id=1, sample=pb.SampleWork())


def own_draft_model(worker, text, _last):
    draft = []
    for _ in range(4):
        work = pb.Work(sequence_id=1, draft=pb.DraftWork())
        draft += only(worker.step(draft_model([*text, *draft])[None], [work]))[1]
    return draft, verify(draft, kept=pb.KeptDraft())


def sidecar(_worker, _text, last):
    draft = list(last.proposed_token_ids) if last else []
    return draft, verify(draft, deterministic=pb.DeterministicDraft())


def test_the_sidecars_proposals_leave_the_text_as_it_is(address):
    text, steps = generate(address, params(), plain)
    asked = params(proposer=pb.ProposerParams(kind=pb.PROPOSER_KIND_NGRAM))
    proposed, fewer = generate(address, asked, sidecar)
    assert proposed == text
    assert steps == LENGTH and fewer < 0.8 * LENGTH


def test_a_draft_model_replays_from_its_seed(address):
    text, steps = generate(address, params(), own_draft_model)
    assert generate(address, params(), own_draft_model) == (text, steps)
    assert steps < LENGTH


@pytest.mark.parametrize("source", ["dense", "sparse"])
def test_drafts_that_the_worker_drew(address, source):
    """600 drafts are accepted as often as expected. Their distribution is the target's own, mixed with an even one."""
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[:4] = np.log([0.4, 0.3, 0.2, 0.1])
    probs = np.zeros(VOCAB, np.float32)
    probs[:4] = 0.25
    even = {
        "dense": dict(dense=pb.DenseDraft(probs=probs.astype("<f4").tobytes(), dtype=pb.LOGITS_DTYPE_F32)),
        "sparse": dict(sparse=pb.SparseDraft(counts=[4], token_ids=range(4), probs=[0.25] * 4)),
    }[source]
    drawn = np.random.default_rng(1).integers(0, 4, 600)
    accepted, counts = 0, np.zeros(4)
    with Worker(address, VOCAB) as worker:
        for seed, token in enumerate(drawn):
            work = pb.VerifyWork(draft_token_ids=[int(token)], measure=True, **even)
            step = dict(open=[opening(1, pb.SamplingParams(seed=seed))], close=[1])
            done, tokens = only(worker.step(np.stack([logits] * 2), [pb.Work(sequence_id=1, verify=work)], **step))
            [test] = done.verify.tests
            assert math.isclose(test.expected_acceptance, 0.8, abs_tol=1e-6)
            assert math.isclose(test.target_probability, [0.4, 0.3, 0.2, 0.1][token], abs_tol=1e-6)
            assert test.draft_probability == test.expected_draft_probability == 0.25
            assert done.verify.lossless
            accepted += done.verify.accepted_count
            counts[tokens[0]] += 1
    # The seeds are fixed, so the result never changes. The bounds are 4.5 standard deviations of 600 draws.
    assert abs(accepted / 600 - 0.8) < 4.5 * math.sqrt(0.8 * 0.2 / 600)
    assert np.all(np.abs(counts / 600 - [0.4, 0.3, 0.2, 0.1]) < 4.5 * math.sqrt(0.25 / 600))


def test_a_wrong_draft_is_named(address):
    with Worker(address, VOCAB) as worker:
        row = np.stack([target(PROMPT)] * 2)
        source = dict(sparse=pb.SparseDraft(counts=[2], token_ids=[1, 2], probs=[0.5, 0.2]))
        result = worker.step(row, [verify([1], **source)], open=[opening(1, params(), PROMPT)])
        assert result.work[0].status == pb.ROW_STATUS_INVALID_WORK
        assert result.work[0].message.startswith("verify.sparse: draft token 0: the draft probabilities sum to 0.7")
        assert only(worker.step(row, [verify([1], deterministic=pb.DeterministicDraft())]))[1]
