"""Seeds of 64 bits, derived from others."""

from __future__ import annotations

MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mixed(seed: int, number: int) -> int:
    """Splitmix64 of a seed and a number: the seed of one row at a position, or of one request of an engine."""
    value = (seed + (number + 1) * _GOLDEN) & MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31
