"""Samplers that change logits, and XTC: docs/sampling.md, Samplers, and docs/numbers.md, Chains."""

import math

import numpy as np

from second import numbers, orders
from second.numbers import f32


def dynamic_temperature(left, text):
    """docs/numbers.md, Chains."""
    params, count = text.params, len(left.ids)
    share = min(max(left.entropy() / math.log(count), 0.0), 1.0) if count > 1 else 0.0
    span = params.dynatemp_high - params.dynatemp_low
    left.temper(max(params.dynatemp_low + span * share**params.dynatemp_exponent, 1e-5))


def temperature(left, text):
    """Temperature, or dynamic temperature in its place if that has no place in the order (docs/sampling.md, Order)."""
    if text.params.dynatemp_high > 0 and "dynamic_temperature" not in orders.order(text.in_force):
        dynamic_temperature(left, text)
    else:
        left.temper(orders.temperature(text.in_force, text.position))


def smoothing(left, text):
    """docs/numbers.md, Chains."""
    factor, curve = f32(text.params.smoothing_factor), f32(text.params.smoothing_curve)
    square, cube = factor * ((f32(3) - curve) / f32(2)), factor * ((curve - f32(1)) / f32(2))
    d = left.tempered_distances()
    with np.errstate(over="ignore", invalid="ignore"):
        left.set(left.ids, np.fmax((cube * d - square) * (d * d), np.finfo(f32).min))


def top_choices(left, text):
    """The places of the tokens that XTC removes (docs/sampling.md, Samplers, and docs/engines.md, Engines' rules)."""
    params = text.params
    threshold = numbers.ceil(params.xtc_threshold * float(left.total))
    choices = [i for i, mass in enumerate(left.masses) if mass >= threshold]
    ignored = set(params.xtc_ignore_token_ids)
    if params.engine == "TEXT_GENERATION_WEBUI":
        if any(left.ids[i] in ignored for i in choices[:-1]):
            return []
    else:
        choices = [i for i in choices if left.ids[i] not in ignored]
    would_stay = len(left.ids) - len(choices[:-1])
    return choices[:-1] if would_stay >= min(params.min_keep, len(left.ids)) else []


def xtc(left, text):
    """docs/numbers.md, Draw, purpose 6; docs/sampling.md, Samplers."""
    params = text.params
    is_expected = params.engine in orders.XTC_EXPECTED if params.xtc_expected is None else params.xtc_expected
    if is_expected and params.xtc_probability < 1:
        expected_xtc(left, top_choices(left, text), params.xtc_probability)
        return
    roll = numbers.uniform(text.seed, text.position, numbers.XTC)
    if is_expected or f32(roll >> 40) < f32(params.xtc_probability) * f32(1 << 24):
        gone = set(top_choices(left, text))
        left.keep([i for i in range(len(left.ids)) if i not in gone])


def expected_xtc(left, choices, probability):
    """docs/numbers.md, Chains, `xtc_expected`."""
    mass = sum(left.masses[i] for i in choices)
    if mass in (0, left.total):
        return
    x = left.tempered_distances()
    x[choices] += f32(math.log((1 - probability) / (1 + probability * (mass / (left.total - mass)))))
    left.set(left.ids, x)


def skew(left, text):
    """docs/numbers.md, Chains."""
    left.remember("skew")
    power, running, ids, x = math.exp(text.params.skew), 0, [], []
    for token, mass in zip(left.ids, left.masses):
        if mass == 0:
            continue
        running += mass
        share = -math.expm1(power * math.log1p(-mass / running)) if mass < running else 1.0
        ids.append(token)
        x.append(power * math.log(running / left.total) + (math.log(share) if share > 0 else -math.inf))
    left.set(ids, np.array(x, f32))


def adaptive_p(left, text):
    """docs/numbers.md, Chains; docs/sampling.md, Samplers that remember."""
    left.remember("adaptive_p")
    total, weight = adaptive_state(text)
    goal = min(max(2 * text.params.adaptive_target - total / weight, 0.0), 1.0)
    distance = np.abs(np.array(left.masses, np.float64) / left.total - goal) / 0.3
    left.set(left.ids, (-10 * distance * distance / (1 + distance)).astype(f32))


def adaptive_state(text):
    """`sum` and `weight` (docs/sampling.md, Samplers that remember)."""
    weight = text.state.get("weight", 1 / (1 - text.params.adaptive_decay))
    return text.state.get("sum", text.params.adaptive_target * weight), weight
