"""Random distributions for draft tokens, and their encoding: docs/numbers.md, Verification, and DenseDraft of the schema."""

import numpy as np

from second import cases, numbers
from second.numbers import ONE


def near(logits, chance):
    return (logits + chance.normal(size=len(logits)) * chance.choice([0, 0.3, 1])).astype(np.float32)


def likely(logits, chance):
    """Probabilities, now and then on a few tokens or on one."""
    finite = np.nan_to_num(logits.astype(np.float64), nan=0, posinf=3, neginf=-300)
    probs = np.exp(np.maximum(finite - finite.max(), -300))
    probs /= probs.sum()
    if chance.random() < 0.3 and probs.max() >= 0.05:
        probs[probs < 0.05] = 0
    if chance.random() < 0.1:
        probs[:] = np.arange(len(probs)) == probs.argmax()
    return probs / probs.sum()


def masses_of(probs):
    """The masses of sent probabilities (docs/numbers.md, Verification)."""
    masses = {int(token): numbers.ceil(float(probs[token]) * ONE) for token in np.flatnonzero(probs)}
    return masses, sum(masses.values())


def encoded(probs, dtype):
    """The probabilities, rounded to nearest. bf16 is the upper half of each f32."""
    if dtype != "bf16":
        return cases.rounded(probs.astype(np.float32), dtype)
    bits = probs.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
