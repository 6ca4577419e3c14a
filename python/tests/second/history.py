"""Bans, biases and penalties that follow from the history of a text: docs/history.md, What comes first."""

import numpy as np

from second import dry, orders, thinking
from second.numbers import as_f32, f32
from second.thinking import ends_with

WINDOW = 32768
MOST = 1e30


def forced(text):
    """docs/history.md, What forbids, favours or forces tokens, Forced tokens."""
    params = text.params
    if params.forced_last_token is not None and text.position == params.max_tokens - 1:
        return params.forced_last_token
    if params.forced_first_token is not None and text.position == 0:
        return params.forced_first_token
    return thinking.forced(text)


def banned(text, vocab):
    """docs/numbers.md, From logit to adjusted logit, step 1."""
    out = np.zeros(vocab, bool)
    for tokens in bans(text, vocab).values():
        out[list(tokens)] = True
    return out


def bans(text, vocab):
    """Banned tokens by cause, in the order of RemovedBy in the schema."""
    params = text.params
    allowed, ranges = params.allowed_token_ids, params.token_ban_ranges
    bad_tokens = {word[0] for word in params.bad_words if len(word) == 1}
    return {
        "ALLOWED_TOKEN_IDS": set(range(vocab)) - set(allowed) if allowed else set(),
        "BANNED_TOKEN_IDS": set(params.banned_token_ids) - bad_tokens,
        "BAD_WORDS": {last for *before, last in params.bad_words if ends_with(text.output, before)},
        "MIN_TOKENS": set(text.ends()) if text.position < params.min_tokens else set(),
        "TOKEN_BAN_RANGES": {token for tokens, start, length in ranges if start <= text.position < start + length for token in tokens},
        "NO_REPEAT_NGRAM": repeated_ngrams(text)}


def repeated_ngrams(text):
    """docs/history.md, What forbids, favours or forces tokens, `no_repeat_ngram`."""
    rule = text.params.no_repeat_ngram or {}
    window = text.tokens[-(rule.get("window") or WINDOW) :]
    found = completions(window, text.tokens, rule.get("size", 0)) | completions(text.prompt, text.tokens, rule.get("prompt_size", 0))
    return found - set(rule.get("whitelist_token_ids", ()))


def completions(where, tokens, size):
    """The tokens that followed earlier occurrences of the last `size - 1` tokens in `where`."""
    if size == 0 or len(tokens) < size - 1:
        return set()
    end = tokens[len(tokens) - size + 1 :]
    return {where[i + size - 1] for i in range(len(where) - size + 1) if where[i : i + size - 1] == end}


class History:
    """The inputs of the steps that change a logit (docs/numbers.md, From logit to adjusted logit, steps 2 to 7)."""

    def __init__(self, text):
        params = self.params = text.params
        self.in_prompt, self.eos = set(text.prompt), set(text.eos)
        self.last, self.counts = seen(text)
        self.dry = dry.penalties(text)
        self.dry_is_late = params.engine in orders.DRY_AFTER_PENALTIES
        self.bias_is_late = decided(params.bias_after_penalties, params.engine, orders.BIAS_AFTER_PENALTIES)
        self.subtracts_first = decided(params.subtract_penalties_first, params.engine, orders.SUBTRACT_FIRST)
        self.logit_bias = {token: f32(bias) for token, bias in params.logit_bias}
        self.sequence_bias = sequence_biases(text)
        self.share = length_share(text)

    def tokens(self):
        return {*self.logit_bias, *self.sequence_bias, *self.dry, *self.last, *self.in_prompt, *self.eos}

    def is_penalized(self, token):
        """Whether one of steps 3 to 6 concerns this token."""
        params = self.params
        return ((token in self.last and params.repetition_penalty != 1)
                or (token in self.in_prompt and params.encoder_repetition_penalty != 1)
                or (token in self.counts and (params.frequency_penalty != 0 or params.presence_penalty != 0))
                or (token in self.eos and self.share is not None))

    def bias(self, token, late):
        """The sum of step 2, or if `late` that of step 7, or None: sequence biases, then DRY; this sum is added to the logit bias
        (docs/history.md, What comes first)."""
        can_be_late = self.is_penalized(token)
        bias_is_here = (self.bias_is_late and can_be_late) == late
        dry_is_here = (self.dry_is_late and can_be_late) == late
        parts = list(self.sequence_bias.get(token, ())) if bias_is_here else []
        if token in self.dry and dry_is_here:
            parts.append(-self.dry[token])
        total = None
        for part in parts:
            total = part if total is None else f32(total + part)
        if token in self.logit_bias and bias_is_here:
            own = self.logit_bias[token]
            total = own if total is None else f32(own + total)
        return total

    def fading(self, token):
        """`s` of a fading window (docs/numbers.md, From logit to adjusted logit)."""
        params = self.params
        beyond = self.last[token] - params.penalty_last_n
        return f32(1) if beyond <= 0 else f32(1) - f32(f32(beyond) / f32(params.penalty_decay_n + 1))


def decided(given, engine, engines):
    """What a parameter says, or if it is absent whether the engine is one of these."""
    return engine in engines if given is None else given


def seen(text):
    """How far back the last occurrence of each token is, and how often the token counts (docs/history.md, Windows of penalties)."""
    params, last, counts = text.params, {}, {}
    counts_prompt = decided(params.penalties_count_prompt, params.engine, orders.COUNT_PROMPT)
    begin = min(params.prompt_ignore_length, len(text.prompt))
    if params.penalty_last_n:
        begin = max(begin, len(text.tokens) - params.penalty_last_n - params.penalty_decay_n)
    for place in range(begin, len(text.tokens)):
        token = text.tokens[place]
        last[token] = len(text.tokens) - place
        if counts_prompt or place >= len(text.prompt):
            counts[token] = counts.get(token, 0) + 1
    return last, counts


def sequence_biases(text):
    """docs/history.md, What forbids, favours or forces tokens, `sequence_bias`."""
    found = {}
    for (*before, last), bias in text.params.sequence_bias:
        if ends_with(text.tokens, before):
            found.setdefault(last, []).append(f32(bias))
    return found


def length_share(text):
    """`share` of step 6, or None (docs/numbers.md, From logit to adjusted logit)."""
    if text.params.length_penalty is None or text.params.ignore_eos:
        return None
    start, factor = text.params.length_penalty
    if text.position < start or as_f32(factor) == 1:
        return None
    return f32(min(dry.power(as_f32(factor), text.position - start) - 1, MOST))
