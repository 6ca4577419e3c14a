"""Tokens and logprobs against numpy."""

import numpy as np
import pytest
from croupier.v1 import sampler_pb2 as pb
from croupier_client import DTYPES, Worker, channel, decode, encode, opening, stub

VOCAB = 1000
ROWS = 8
GREEDY = pb.SamplingParams(temperature=0)


def logits_of(seed, rows=ROWS, vocab=VOCAB):
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab)).astype(np.float32)


def as_seen(logits, dtype):
    return decode(encode(logits, dtype), dtype).reshape(logits.shape)


def log_softmax(row):
    row = row - row.max()
    return row - np.log(np.exp(row).sum())


@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy_is_argmax(address, dtype):
    logits = logits_of(1)
    expected = as_seen(logits, dtype).argmax(axis=1).tolist()  # numpy too takes the smallest index on ties
    with Worker(address, VOCAB, dtype) as worker:
        opens = [opening(i, GREEDY) for i in range(ROWS)]
        assert worker.tokens(logits, range(ROWS), open=opens) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_logprobs_are_log_softmax(address, dtype):
    logits = logits_of(2)
    # The tolerance is 2e-5: logprobs are sent as float32, and the exponent is a float32 product; see docs/numbers.md.
    close = {"rtol": 1e-6, "atol": 2e-5}
    params = pb.SamplingParams(seed=5, logprobs=pb.LogprobsParams(top_n=10, token_ids=[0, VOCAB - 1]))
    with Worker(address, VOCAB, dtype) as worker:
        result = worker.step(logits, range(ROWS), open=[opening(i, params) for i in range(ROWS)])
    for row, work in zip(as_seen(logits, dtype), result.work):
        token, expected = work.tokens[0], log_softmax(row)
        np.testing.assert_allclose(token.logprob, expected[token.token_id], **close)
        np.testing.assert_allclose(list(token.requested_logprobs), expected[[0, VOCAB - 1]], **close)
        order = np.lexsort((np.arange(VOCAB), -row))
        assert list(token.top_token_ids) == order[:10].tolist()
        np.testing.assert_allclose(list(token.top_logprobs), expected[order[:10]], **close)
        assert token.rank == 1 + order.tolist().index(token.token_id)


def test_draws_follow_the_distribution(server):
    """Chi-square over 10 tokens; fails by chance once in 10^6 runs, and never by chance with this seed."""
    weights = np.array([30, 20, 12, 10, 8, 7, 5, 4, 3, 1], dtype=np.float64)
    draws, vocab = 20_000, len(weights)
    logits = np.broadcast_to(np.log(weights), (draws, vocab))
    rows = [pb.SampleRow(params=pb.SamplingParams(seed=i)) for i in range(draws)]
    counts = np.zeros(vocab)
    with channel(server.tcp) as c:
        for part in np.array_split(np.arange(draws), 10):
            request = pb.SampleRequest(
                vocab_size=vocab,
                logits_dtype=pb.LOGITS_DTYPE_F32,
                rows=[rows[i] for i in part],
                logits=pb.InlineLogits(data=encode(logits[part], "f32")),
            )
            for row in stub(c).Sample(request).rows:
                counts[row.token.token_id] += 1
    expected = draws * weights / weights.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 45.1  # 9 degrees of freedom, 1e-6


def test_a_bad_row_fails_alone(address):
    logits = logits_of(3, rows=4)
    logits[1, 5] = np.nan
    logits[2, 7] = np.inf
    with Worker(address, VOCAB) as worker:
        result = worker.step(logits, range(4), open=[opening(i, GREEDY) for i in range(4)])
        ok, nan, infinite = pb.ROW_STATUS_OK, pb.ROW_STATUS_NAN_LOGITS, pb.ROW_STATUS_POSITIVE_INFINITY
        assert [w.status for w in result.work] == [ok, nan, infinite, ok]
        assert all(not w.tokens for w in result.work[1:3]), "no token is ever invented"
        good = logits_of(4, rows=1)
        assert worker.tokens(good, [1]) == [int(good.argmax())], "the sequence goes on"


def test_padded_rows(address):
    logits = logits_of(5, rows=2, vocab=VOCAB)
    padded = np.full((2, VOCAB + 24), np.nan, dtype=np.float32)
    padded[:, :VOCAB] = logits
    request = pb.SampleRequest(
        vocab_size=VOCAB,
        logits_dtype=pb.LOGITS_DTYPE_F32,
        rows=[pb.SampleRow(params=GREEDY)] * 2,
        logits=pb.InlineLogits(data=encode(padded, "f32"), row_stride=VOCAB + 24),
    )
    with channel(address) as c:
        tokens = [row.token.token_id for row in stub(c).Sample(request).rows]
    assert tokens == logits.argmax(axis=1).tolist()
