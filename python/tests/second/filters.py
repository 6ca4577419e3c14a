"""Samplers that filter tokens: docs/sampling.md, Samplers, and docs/numbers.md, Filters and Chains."""

import itertools
import math
from fractions import Fraction

import numpy as np

from second import numbers, orders
from second.numbers import LN_2, ONE, f32


def parts(p):
    """`floor(p * 2^32)` (docs/numbers.md, Filters)."""
    return math.floor(Fraction(p) * (1 << 32))


def reaches(mass, threshold):
    return mass >= threshold


def exceeds(mass, threshold):
    return mass > threshold


def prefix_of_mass(masses, share, is_enough):
    """The length of the shortest prefix with this share of the total."""
    threshold = Fraction(parts(share) * sum(masses), 1 << 32)
    return next(count for count, running in enumerate(itertools.accumulate(masses), 1) if is_enough(running, threshold))


def with_equal(count, values):
    """`count`, extended over the following values that are equal to the last one."""
    while count < len(values) and values[count] == values[count - 1]:
        count += 1
    return count


def min_eos_p(left, text):
    """docs/sampling.md, Likely ends."""
    threshold = math.floor(Fraction(text.params.min_eos_p) * left.total)
    ends = [i for i, token in enumerate(left.ids) if token in text.eos]
    if any(left.masses[i] > threshold for i in ends) and len(ends) >= min(text.params.min_keep, len(left.ids)):
        left.keep(ends)


def top_n_sigma(left, text):
    """docs/numbers.md, Chains."""
    largest, count = left.x[0], len(left.ids)
    with np.errstate(over="ignore"):
        spread = min(largest - left.x[-1], np.finfo(f32).max)
    exponent = (int(spread.view(np.uint32)) >> 23) - 126
    unit = f32(2.0 ** min(max(20 - exponent, -126), 127))
    with np.errstate(over="ignore"):
        steps = np.rint(np.minimum(((largest - left.x) * unit).astype(f32), f32(1 << 20)))
    distances = [int(v) for v in steps]
    variance = float(count * sum(v * v for v in distances) - sum(distances) ** 2) / (float(count) * float(count))
    with np.errstate(over="ignore"):
        least = f32(float(largest) - text.params.top_n_sigma * (math.sqrt(variance) / float(unit)))
    left.keep_first(int((left.x >= least).sum()), text.params.min_keep)


def min_k(left, text):
    """docs/sampling.md, Cliffs."""
    x, count = left.x.astype(np.float64), len(left.ids)
    cliff = 1
    if count > 1:
        cliff = int(np.argmax((x[:-1] - x[1:]) / np.arange(1, count))) + 1
    at_least = math.floor(min(text.params.min_k_tau / (x[0] - x[-1] + 1e-8), count))
    left.keep_first(max(cliff, at_least), text.params.min_keep)


def top_h(left, text):
    """docs/numbers.md, Chains."""
    masses = left.masses[:100]
    weighted = numbers.weighted(masses, left.y[:100])
    total = sum(masses)
    logarithm, inverse = numbers.ln(total / ONE), 1 / float(total)

    def share_of_entropy(mass, sum_of_weighted):
        return (logarithm * float(mass) + LN_2 * float(sum_of_weighted)) * inverse

    most = text.params.top_h * share_of_entropy(total, sum(weighted))
    prefixes = zip(itertools.accumulate(masses), itertools.accumulate(weighted))
    count = len(list(itertools.takewhile(lambda sums: share_of_entropy(*sums) <= most, prefixes)))
    left.keep_first(count, text.params.min_keep)


def top_k(left, text):
    """docs/numbers.md, Filters."""
    count = min(max(text.in_force.top_k, text.params.min_keep), len(left.ids))
    # A top-k of 1 is greedy in TensorRT-LLM (docs/engines.md, Engines' rules).
    is_greedy = text.params.engine == "TENSORRT_LLM" and text.in_force.top_k == 1
    keeps_equal = text.params.engine in orders.TOP_K_KEEPS_EQUAL and not is_greedy
    left.keep_first(with_equal(count, left.x) if keeps_equal else count)


def top_p(left, text):
    """docs/numbers.md, Filters."""
    share = decayed_top_p(text)
    if share >= 1:
        return
    left.keep_first(prefix_of_mass(left.masses, share, reaches), text.params.min_keep)


def decayed_top_p(text):
    """docs/numbers.md, Chains, `top_p_decay`."""
    params = text.in_force
    share = f32(params.top_p)
    if params.top_p_decay < 1:
        for token in text.output:
            is_reset = token in params.top_p_reset_token_ids
            share = f32(params.top_p) if is_reset else max(share * f32(params.top_p_decay), f32(params.top_p_min))
    return float(share)


def min_p(left, text):
    """docs/numbers.md, Filters."""
    threshold = Fraction(text.in_force.min_p) * ONE
    is_enough = exceeds if text.params.engine == "MISTRAL_RS" else reaches
    left.keep_where([is_enough(mass, threshold) for mass in left.masses], text.params.min_keep)


def typical_p(left, text):
    """docs/numbers.md, Filters."""
    engine, min_keep = text.params.engine, text.params.min_keep
    expected = f32((numbers.ln(left.total / ONE) - left.entropy()) / LN_2)
    deviations = np.abs((left.y - expected).astype(f32))
    by_deviation = sorted(range(len(left.ids)), key=lambda i: (float(deviations[i]), i))
    is_enough = exceeds if engine in orders.TYPICAL_P_ABOVE else reaches
    count = prefix_of_mass([left.masses[i] for i in by_deviation], text.params.typical_p, is_enough)
    count = min(max(count, min_keep), len(left.ids))
    if engine in orders.TYPICAL_P_KEEPS_EQUAL:
        count = with_equal(count, [deviations[i] for i in by_deviation])
    left.keep(sorted(by_deviation[:count]))


def tfs(left, text):
    """docs/sampling.md, Flat tails."""
    engine, count = text.params.engine, len(left.ids)
    masses = [mass if mass >= ONE >> 20 else 0 for mass in left.masses]
    if engine == "TEXT_GENERATION_WEBUI":
        masses += [0] * (len(left.row) - count)
    curvature = [abs((a - b) - (b - c)) for a, b, c in zip(masses, masses[1:], masses[2:])]
    if not any(curvature) or (engine == "KOBOLD_CPP" and count <= 3):
        return
    most = Fraction(parts(text.params.tfs) * sum(curvature), 1 << 32)
    kept = 1 + len(list(itertools.takewhile(lambda running: running <= most, itertools.accumulate(curvature))))
    left.keep_first(kept - 1 if engine == "KOBOLD_CPP" else kept, text.params.min_keep)


def top_a(left, text):
    """docs/numbers.md, Chains."""
    left.keep_from_mass(text.params.top_a * 2.0**40 * (2.0**40 / left.total), text.params.min_keep)


def epsilon_cutoff(left, text):
    """docs/numbers.md, Chains."""
    left.keep_from_mass(text.params.epsilon_cutoff * float(left.total), text.params.min_keep)


def eta_cutoff(left, text):
    """docs/numbers.md, Chains."""
    eta = text.params.eta_cutoff
    least = min(eta, math.sqrt(eta) * math.exp(-left.entropy()))
    left.keep_from_mass(least * float(left.total), text.params.min_keep)


def p_less(left, text):
    """docs/numbers.md, Chains."""
    count, total = len(left.ids), left.total
    squares = sum(mass * mass for mass in left.masses)
    threshold = Fraction(squares, total)
    if text.params.p_less_norm:
        threshold = Fraction(count * squares - total * total, total * (count - 1)) if count > 1 else Fraction(0)
    left.keep_from_mass(threshold, text.params.min_keep)
