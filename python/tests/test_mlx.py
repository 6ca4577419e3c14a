"""Samplers and penalties, compared with those of MLX's own mlx-lm: the probability of every token, row by row.

Its module `mlx_lm.sample_utils` needs only mlx, so it is loaded without its package, which needs more. Install it with
`pip install "mlx[cpu]"` and `pip install --no-deps mlx-lm`. It sums in f32, so a threshold may be within a rounding error of a token:
other survivors than here are allowed if mlx-lm keeps the survivors from here in a row whose logits are a millionth away.
"""

import importlib.util
import pathlib

import croupier
import numpy as np
import pytest

try:
    import mlx.core as mx
except ImportError:
    mx = None

VOCAB, ROWS = 64, 150
TOLERANCE, NEARBY = 2e-6, 1e-6
#: Biases, and penalties with windows of 20 tokens each, which is mlx-lm's default.
BIASES = {1: 2.5, 5: -3.0, 8: 4.0}
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2}


def load():
    """mlx-lm's `sample_utils`; None if it is not installed."""
    found = importlib.util.find_spec("mlx_lm") if mx is not None else None
    if found is None or not found.submodule_search_locations:
        return None
    path = pathlib.Path(found.submodule_search_locations[0]) / "sample_utils.py"
    spec = importlib.util.spec_from_file_location("croupier_tests_mlx_sample_utils", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LIBRARY = load()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="mlx and mlx-lm are not installed")

# The arguments of mlx-lm's make_sampler, and the equivalent parameters here.
CHAINS = {
    "temperature": ({"temp": 0.7}, {"temperature": 0.7}),
    "greedy": ({"temp": 0.0}, {"temperature": 0.0}),
    "top-p": ({"temp": 1.0, "top_p": 0.8}, {"top_p": 0.8}),
    "min-p": ({"temp": 1.0, "min_p": 0.1}, {"min_p": 0.1}),
    "top-k": ({"temp": 1.0, "top_k": 10}, {"top_k": 10}),
    "xtc": ({"temp": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.1}, {"xtc_probability": 1.0, "xtc_threshold": 0.1}),
    "xtc, temperature": (
        {"temp": 1.6, "xtc_probability": 1.0, "xtc_threshold": 0.08}, {"temperature": 1.6, "xtc_probability": 1.0, "xtc_threshold": 0.08}),
    "top-p, temperature": ({"temp": 2.5, "top_p": 0.8}, {"temperature": 2.5, "top_p": 0.8}),
    "min-p, temperature": ({"temp": 0.3, "min_p": 0.05}, {"temperature": 0.3, "min_p": 0.05}),
    "top-p, top-k": ({"temp": 1.0, "top_p": 0.9, "top_k": 7}, {"top_p": 0.9, "top_k": 7}),
    "all of them": (
        {"temp": 1.4, "top_p": 0.95, "min_p": 0.02, "top_k": 12, "xtc_probability": 1.0, "xtc_threshold": 0.12},
        {"temperature": 1.4, "top_p": 0.95, "min_p": 0.02, "top_k": 12, "xtc_probability": 1.0, "xtc_threshold": 0.12}),
}


def theirs(arguments, row, prompt=None, processors=()):
    """The distribution that mlx-lm draws from."""
    drawn = []
    logits = mx.array(row[None])
    for processor in processors:
        logits = processor(mx.array(prompt), logits)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    # Its sampler ends with this draw, or with the argmax.
    own, LIBRARY.categorical_sampling = LIBRARY.categorical_sampling, lambda left, temp: drawn.append(left * (1 / temp))
    try:
        token = LIBRARY.make_sampler(**arguments)(logprobs)
    finally:
        LIBRARY.categorical_sampling = own
    if not drawn:
        return np.eye(row.size)[int(token.item())]
    weights = np.array(drawn[0][0], np.float64)
    weights = np.exp(weights - weights.max())
    return weights / weights.sum()


def same(got, expected):
    return ((got > 0) == (expected > 0)).all() and np.abs(got - expected).max() < TOLERANCE


def is_near(got, arguments, row, random, **more):
    """Whether a row whose logits are a millionth away has these survivors."""
    away = (row * (1 + NEARBY * random.normal(0, 1, row.size)).astype(np.float32) for _ in range(40))
    return any(((got > 0) == (theirs(arguments, other, **more) > 0)).all() for other in away)


def ours(stream, row, fields, **opening):
    logprobs = {"mode": croupier.pb.LOGPROBS_MODE_PROCESSED, "token_ids": range(VOCAB)}
    text = stream.open(engine_order=croupier.pb.ENGINE_ORDER_MLX, logprobs=logprobs, **opening, **fields)
    [work] = stream.step(row[None], [text]).work
    stream.close(text)
    [token] = work.tokens
    return np.eye(VOCAB)[token.token_id] if fields.get("temperature") == 0 else np.exp(np.array(token.requested_logprobs, np.float64))


@pytest.mark.parametrize("name", CHAINS)
def test_probabilities_are_those_of_mlx(server, name):
    arguments, fields = CHAINS[name]
    random, changed, near = np.random.default_rng(11), 0, 0
    with croupier.connect(server.uds, VOCAB) as stream:
        for _ in range(ROWS):
            row = random.normal(0, random.uniform(0.5, 4), VOCAB).astype(np.float32)
            got, expected = ours(stream, row, fields), theirs(arguments, row)
            near += not same(got, expected)
            assert same(got, expected) or is_near(got, arguments, row, random), row
            changed += not np.allclose(expected, theirs({"temp": 1.0}, row))
    print(f"{name}: {near} of {ROWS} rows have other survivors than here within a rounding")
    assert near <= ROWS // 50
    assert changed > ROWS // 4, "the samplers hardly ever did anything"


def test_penalties_are_those_of_mlx(server):
    random = np.random.default_rng(12)
    processors = LIBRARY.make_logits_processors(logit_bias=BIASES, **PENALTIES)
    with croupier.connect(server.uds, VOCAB) as stream:
        for _ in range(ROWS):
            prompt = random.integers(0, VOCAB, 40).tolist()
            row = random.normal(0, random.uniform(0.5, 4), VOCAB).astype(np.float32)
            fields = {"penalty_last_n": 20, "logit_bias": BIASES, **PENALTIES}
            got = ours(stream, row, fields, prompt=prompt[:25], output=prompt[25:])
            expected = theirs({"temp": 1.0}, row, prompt, processors)
            assert np.abs(got - expected).max() < TOLERANCE, (prompt, row)
