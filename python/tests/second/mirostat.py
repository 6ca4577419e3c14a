"""Mirostat, and the states that it and adaptive-p update with each token: docs/sampling.md, Samplers that remember."""

import math

import numpy as np

from second import reshaping
from second.numbers import LN_2, f32, ln


def limit(text):
    """`mu`, in bits (docs/sampling.md, Samplers that remember)."""
    return text.state.get("mu", 2 * text.params.mirostat_tau)


def mirostat(left, text):
    """docs/sampling.md, Samplers that remember."""
    if text.params.mirostat == 2:
        left.keep_from_mass(2.0 ** -limit(text) * left.total, text.params.min_keep)
    elif len(left.ids) > 1:
        left.keep_first(estimated_count(left, limit(text)), text.params.min_keep)


def estimated_count(left, mu):
    """`k` of mirostat 1 (docs/numbers.md, Chains)."""
    count, slope = len(left.ids), slope_of(left.y[:100])
    logarithm = ln(float(count))
    ratio = 1 / logarithm if slope == 1 else (slope - 1) / -math.expm1((1 - slope) * logarithm)
    reach = ratio * 2.0**mu
    if slope == 0:
        return count if reach > 1 else 1
    try:
        return math.floor(min(reach ** (1 / slope), count))
    except OverflowError:
        return count


def slope_of(y):
    """`s` of the first 100 tokens (docs/sampling.md, Samplers that remember)."""
    y = np.maximum(y, f32(-64)).astype(np.float64)
    steps = [math.log((i + 2) / (i + 1)) for i in range(len(y) - 1)]
    falls = [(y[i] - y[i + 1]) * LN_2 for i in range(len(y) - 1)]
    return float(sum(t * b for t, b in zip(steps, falls)) / sum(t * t for t in steps))


def learned(text, token, left, drawn_from):
    """The state after a token (docs/sampling.md, Samplers that remember). `drawn_from` is tokens, masses and total."""
    params, state = text.params, {}
    if params.mirostat:
        ids, masses, total = drawn_from
        mass = max(dict(zip(ids, masses)).get(token, 0), 1)
        state["mu"] = limit(text) - params.mirostat_eta * (math.log2(total / mass) - params.mirostat_tau)
    if "adaptive_p" in left.before:
        ids, masses, total = left.before["adaptive_p"]
        before, weight = reshaping.adaptive_state(text)
        probability = masses[ids.index(token)] / total if token in ids else 0.0
        state["sum"] = probability + params.adaptive_decay * before
        state["weight"] = 1 + params.adaptive_decay * weight
    return state
