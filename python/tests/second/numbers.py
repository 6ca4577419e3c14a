"""Random numbers, masses, entropies and logprobs: docs/numbers.md."""

import itertools
import math
import struct
from fractions import Fraction

import numpy as np

f32 = np.float32
ONE = 1 << 40
LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
LOW_32, LOW_64 = (1 << 32) - 1, (1 << 64) - 1
POLYNOMIAL = [f32(c) for c in (1, 0.693147, 0.24022242, 0.055507336, 0.009671513, 0.0013264727)]

# The purposes of random numbers (docs/numbers.md, Draw).
DRAW, DRAFT, ACCEPTANCE, RECOVERED, XTC = 0, 1, 2, 3, 6


def philox(key, counter):
    """Philox4x32-10 (docs/numbers.md, Draw)."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ k0, right & LOW_32, (left >> 32) ^ c3 ^ k1, left & LOW_32
        k0, k1 = (k0 + 0x9E3779B9) & LOW_32, (k1 + 0xBB67AE85) & LOW_32
    return c0, c1, c2, c3


def halves(number):
    return number & LOW_32, number >> 32


def uniform(seed, position, purpose, index=0):
    """64 random bits (docs/numbers.md, Draw)."""
    w0, w1, _, _ = philox(halves(seed), (*halves(position), purpose, index))
    return w0 | w1 << 32


def upper_53(number):
    """`u`: the upper 53 bits as a number below 1 (docs/numbers.md, Verification)."""
    return (number >> 11) * 2.0**-53


def as_f32(value):
    """The nearest f32, as a Python float."""
    return float(f32(value))


def ceil(number):
    return math.ceil(Fraction(number))


def scale(temperature):
    """docs/numbers.md, From adjusted logit to mass."""
    return f32(LOG2_E / temperature)


def fma(a, b, c):
    """`a * b + c`, rounded once to f32: the product is exact in f64, and the sum is rounded to odd before it is rounded to f32."""
    product, c = a.astype(np.float64) * b.astype(np.float64), np.float64(c)
    total = product + c
    back = total - product
    lost = (product - (total - back)) + (c - back)
    bits = total.view(np.int64)
    to_odd = np.where((lost > 0) == (total > 0), bits + 1, bits - 1)
    return np.where((lost != 0) & (bits & 1 == 0), to_odd, bits).view(np.float64).astype(f32)


def masses(y):
    """Integer masses of exponents (docs/numbers.md, From adjusted logit to mass)."""
    within = np.maximum(y, f32(-64))
    whole = np.rint(within)
    rest = (within - whole).astype(f32)
    power = np.full(rest.shape, POLYNOMIAL[-1], f32)
    for coefficient in POLYNOMIAL[-2::-1]:
        power = fma(power, rest, coefficient)
    mass = np.floor(np.ldexp(power.astype(np.float64), whole.astype(np.int64) + 40))
    return [int(m) for m in np.where(y < -64, 0, mass)]


def weighted(mass, y):
    """`round_ties_even(mass * -y)`, with y at least -64 (docs/numbers.md, Verification, entropy)."""
    cut = np.maximum(np.asarray(y, f32), f32(-64)).astype(np.float64)
    return [int(v) for v in np.rint(np.array(mass, np.float64) * -cut)]


def entropy(mass, y):
    """In nats (docs/numbers.md, Verification, entropy)."""
    total = sum(mass)
    return ln(total / ONE) + LN_2 * (sum(weighted(mass, y)) / total)


def logprob(y, total):
    """docs/numbers.md, Logprobs. Adding 0 turns -0 into +0."""
    return f32(float(y) * LN_2 - ln(total / ONE)) + f32(0)


def draw(ids, mass, total, number):
    """The first token by id at which the running mass exceeds the point (docs/numbers.md, Draw)."""
    return first_beyond(sorted(zip(ids, mass)), (number * total) >> 64)


def draw_skewed(ids, mass, total, number, skew):
    """Draws in token order, with the random number transformed by the skew (docs/numbers.md, Draw)."""
    bent = ((number + 0.5) / 2.0**64) ** (1 / math.exp(skew))
    return first_beyond(zip(ids, mass), min(math.floor(bent * total), total - 1))


def first_beyond(tokens, point):
    """The token at which the running mass exceeds `point`, which is below the total."""
    tokens = list(tokens)
    sums = itertools.accumulate(mass for _, mass in tokens)
    return next(token for (token, _), running in zip(tokens, sums) if running > point)


def ln(x):
    """The logarithm of the `libm` crate, which is FreeBSD's. The platform's may differ in the last bit."""
    if x in (0.0, 1.0):
        return -math.inf if x == 0 else 0.0
    bits = struct.unpack("<Q", struct.pack("<d", x))[0]
    high = (bits >> 32) + (0x3FF00000 - 0x3FE6A09E)
    exponent = (high >> 20) - 0x3FF
    high = (high & 0xFFFFF) + 0x3FE6A09E
    f = struct.unpack("<d", struct.pack("<Q", high << 32 | bits & LOW_32))[0] - 1.0
    half_square, s = 0.5 * f * f, f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    odd = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)))
    return (s * (half_square + (odd + even)) + exponent * 1.90821492927058770002e-10 - half_square + f
            + exponent * 6.93147180369123816490e-01)
