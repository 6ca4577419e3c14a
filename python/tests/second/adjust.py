"""From logit to adjusted logit: docs/numbers.md. Each operation is in f32."""

import numpy as np

from second import history, marks
from second.numbers import f32

LARGEST = np.finfo(f32).max


def early_bias(x, token, past):
    """docs/numbers.md, From logit to adjusted logit, step 2."""
    add = past.bias(token, late=False)
    return x if add is None else f32(x + add)


def repetition(x, token, past):
    """docs/numbers.md, From logit to adjusted logit, step 3."""
    penalty = f32(past.params.repetition_penalty)
    if token not in past.last or penalty == 1:
        return x
    if past.params.penalty_decay_n:
        penalty = f32(1) + f32((penalty - f32(1)) * past.fading(token))
    return f32(x / penalty) if x > 0 else f32(x * penalty)


def encoder_repetition(x, token, past):
    """docs/numbers.md, From logit to adjusted logit, step 4."""
    penalty = f32(past.params.encoder_repetition_penalty)
    if token not in past.in_prompt or penalty == 1:
        return x
    return f32(x * penalty) if x > 0 else f32(x / penalty)


def frequency(x, token, past):
    """docs/numbers.md, From logit to adjusted logit, step 5."""
    if token not in past.counts or past.params.frequency_penalty == 0:
        return x
    return f32(x - faded(f32(past.counts[token]) * f32(past.params.frequency_penalty), token, past))


def presence(x, token, past):
    """docs/numbers.md, From logit to adjusted logit, step 5."""
    if token not in past.counts or past.params.presence_penalty == 0:
        return x
    return f32(x - faded(f32(past.params.presence_penalty), token, past))


def faded(term, token, past):
    """A term of step 5 with `penalty_decay_n` (docs/numbers.md, From logit to adjusted logit)."""
    return f32(term * past.fading(token)) if past.params.penalty_decay_n else term


def length(x, token, past):
    """docs/numbers.md, From logit to adjusted logit, step 6."""
    if token not in past.eos or past.share is None or np.isinf(x):
        return x
    return min(f32(x + f32(abs(x) * past.share)), LARGEST)


def late_bias(x, token, past):
    """docs/numbers.md, From logit to adjusted logit, step 7."""
    add = past.bias(token, late=True)
    return x if add is None else f32(x + add)


def steps(past):
    """Steps 2 to 7, in their order."""
    scale, subtract = [repetition, encoder_repetition], [frequency, presence]
    penalties = subtract + scale if past.subtracts_first else scale + subtract
    return [early_bias, *penalties, length, late_bias]


def adjust(logits, text, mask=None):
    """The adjusted logits, and a status that is OK if there is a token (docs/numbers.md, From logit to adjusted logit)."""
    if np.isnan(logits).any():
        return logits, "NAN_LOGITS"
    if np.isposinf(logits).any():
        return logits, "POSITIVE_INFINITY"
    token = history.forced(text)
    if token is not None:
        gone = np.arange(len(logits)) != token
        x = logits.copy()
    else:
        gone = history.banned(text, len(logits))
        x = moved(logits, text)
    x[gone if mask is None else gone | ~mask] = -np.inf
    if not (x < np.inf).all():
        return x, "POSITIVE_INFINITY"
    return x, "ALL_MASKED" if np.isneginf(x).all() else "OK"


def moved(logits, text):
    """Steps 2 to 8."""
    x, past = logits.copy(), history.History(text)
    with np.errstate(over="ignore"):
        for token in past.tokens():
            for step in steps(past):
                x[token] = step(x[token], token, past)
        green = marks.green(text, len(x))
        if green:
            x[green] += f32(text.params.kgw.get("bias", 2.0))
    return x
