"""Watermarks: docs/watermarks.md, Formulas."""

import functools
import math

import numpy as np

from second import numbers
from second.numbers import LOW_64, as_f32, f32, halves, ln


def words(key, context, purpose, index):
    """docs/watermarks.md, Formulas."""
    return numbers.philox(halves(key), (index, purpose, *halves(context)))


def context_number(key, tokens):
    """A context as one number (docs/watermarks.md, Formulas)."""
    context = 0
    for token in tokens:
        w0, w1, _, _ = words(key, context, 0, token)
        context = w0 | w1 << 32
    return context


def green(text, vocab):
    """The tokens that KGW favours (docs/watermarks.md, Formulas, KGW)."""
    mark = text.params.kgw
    if mark is None:
        return []
    is_selfhash = mark.get("seeding_scheme") == 2
    width, key = mark.get("context_width", 4 if is_selfhash else 1), mark.get("hashing_key", 15485863)
    if len(text.tokens) < width:
        return []
    tokens = text.tokens[-width:]
    contexts = [context_number(key, part) for part in ([[token] for token in tokens] if is_selfhash else [tokens])]
    limit = math.floor(as_f32(mark.get("greenlist_ratio", 0.25)) * (1 << 16) + 0.5)
    bits = np.min([sixteen_bits(key, context, vocab) for context in contexts], axis=0)
    return np.flatnonzero((bits * 40503 % (1 << 16) if is_selfhash else bits) < limit).tolist()


def sixteen_bits(key, context, vocab):
    """16 bits for each token of the vocabulary (docs/watermarks.md, Formulas, KGW)."""
    blocks = [words(key, context, 1, index) for index in range(16 * (vocab // 128 + 1))]
    out = np.empty(vocab, np.int64)
    for token in range(vocab):
        i = token % 128
        word = blocks[16 * (token // 128) + token % 16][i // 32]
        out[token] = word >> 16 if i // 16 % 2 else word & 0xFFFF
    return out


def comes_again(contexts, current, history):
    """docs/watermarks.md, The same context again. `contexts` are those of earlier positions, the oldest first."""
    return history > 0 and current in contexts[-history:]


def race(left, text):
    """The token that the Gumbel mark chooses, or None if it does not mark this position (docs/numbers.md, Draw)."""
    mark, tokens = text.params.gumbel, text.tokens
    width = mark.get("context_width", 4)
    if len(tokens) < width:
        return None
    earlier = [tokens[i - width : i] for i in range(max(width, len(text.prompt)), len(tokens))]
    if comes_again(earlier, tokens[-width:], mark.get("context_history_size", 1024)):
        return None
    context = context_number(mark["key"], tokens[-width:])
    scores = [(-ln(race_number(mark["key"], context, token)) / float(mass), token) for token, mass in zip(left.ids, left.masses) if mass]
    return min(scores)[1]


def race_number(key, context, token):
    """`r` (docs/watermarks.md, Formulas, The race)."""
    i = token % 128
    word = words(key, context, 2, 32 * (token // 128) + token % 32)[i // 32]
    x = word << 20 | words(key, context, 3, token)[0] >> 12
    return (2 * x + 1) / 2.0**53


@functools.cache
def table(size, seed):
    """The lowest bits of MT19937's words (docs/watermarks.md, Formulas, SynthID)."""
    return [int(word) & 1 for word in np.random.RandomState(seed)._bit_generator.random_raw(size)]


def taken_in(state, number):
    """The hash extended by one number (docs/watermarks.md, Formulas, SynthID)."""
    return ((state + number) * 6364136223846793005 + 1) & LOW_64


def is_marked(text, mark):
    """Whether SynthID marks this position, and its context (docs/watermarks.md, The same context again)."""
    width = mark.get("ngram_len", 5) - 1
    tokens = [0] * width + list(text.output)
    contexts = [tokens[i : i + width] for i in range(text.position + 1)]
    first = width if mark.get("skip_first_ngram_calls") else 0
    again = comes_again(contexts[first : text.position], contexts[-1], mark.get("context_history_size", 1024))
    return text.position >= first and not again, contexts[-1]


def tournament(left, text):
    """docs/watermarks.md, Formulas, SynthID."""
    mark = text.params.synthid
    marks, context = is_marked(text, mark)
    if not marks:
        return
    start = functools.reduce(taken_in, context, 1)
    states = [taken_in(start, token) for token in left.ids]
    bits = table(mark.get("sampling_table_size", 1 << 16), mark.get("sampling_table_seed", 0))
    shift = 62 - left.total.bit_length()
    weights, total = [mass << shift for mass in left.masses], left.total << shift
    for key in mark["keys"]:
        g = [bits[signed(taken_in(state, key)) % len(bits)] for state in states]
        favoured = sum(weight for weight, bit in zip(weights, g) if bit)
        factor = ((total - favoured) << 62) // total
        weights = [(weight * (factor + (bit << 62))) >> 62 for weight, bit in zip(weights, g)]
        total = sum(weights)
    kept = [i for i, weight in enumerate(weights) if weight]
    x = [ln(float(weights[i])) - ln(float(total)) for i in kept]
    left.set([left.ids[i] for i in kept], np.array(x, f32))


def signed(word):
    return word - (1 << 64) if word >> 63 else word
