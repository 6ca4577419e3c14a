"""The causes that remove tokens: docs/sampling.md, Why not this token, and RemovedBy of the schema."""

import functools

import numpy as np

from second import history, marks, orders, wire

NOTHING = "UNSPECIFIED"


class Reasons:
    """The causes in a row that has a token: the text's next row, a row of a verification, or a scored row."""

    def __init__(self, result):
        self.result, self.left = result, result.left
        self.forced = history.forced(result.text)
        self.bans = {} if self.forced is not None else history.bans(result.text, len(result.logits))
        self.survivors = result.survivors()

    @functools.cached_property
    def is_race(self):
        return self.result.text.params.gumbel is not None and marks.race(self.left, self.result.text) is not None

    def removed_by(self, token):
        """The first cause, and the sampler if the cause is one."""
        result = self.result
        if np.isneginf(result.logits[token]):
            return "RAW_LOGIT", NOTHING
        if result.mask is not None and not result.mask[token]:
            return "TOKEN_MASK", NOTHING
        if self.forced is not None and token != self.forced:
            return "FORCED_TOKEN", NOTHING
        bans = [name for name, tokens in self.bans.items() if token in tokens]
        if bans:
            return bans[0], NOTHING
        return ("PENALTIES", NOTHING) if np.isneginf(result.adjusted[token]) else self.by_sampler(token)

    def by_sampler(self, token):
        left, text = self.left, self.result.text
        if orders.temperature(text.in_force, text.position) == 0:
            return (NOTHING if token == self.result.token else "GREEDY"), NOTHING
        ids, masses, _ = left.before.get("synthid", (left.ids, left.masses, left.total))
        if token not in ids:
            return "SAMPLER", left.gone[token].upper()
        if masses[ids.index(token)] == 0:
            return "PRECISION", NOTHING
        if token not in self.survivors:
            return "WATERMARK", NOTHING
        return ("WATERMARK" if self.is_race and token != self.result.token else NOTHING), NOTHING

    def why_not(self, token):
        """The answer, with the names of `wire.why`."""
        cause, sampler = self.removed_by(token)
        is_left = cause == NOTHING
        mass = self.left.masses[self.left.ids.index(token)] if is_left else 0
        # The wire has no -0.
        raw, adjusted = (float(logits[token]) + 0.0 for logits in (self.result.logits, self.result.adjusted))
        return dict(
            token=token, by=cause, sampler=sampler, raw=wire.bits(raw), adjusted=wire.bits(adjusted),
            probability=wire.bits(mass / self.left.total), rank=self.survivors.index(token) + 1 if is_left else 0)


def why_not(result, tokens):
    """The answers for these tokens."""
    reasons = Reasons(result) if tokens else None
    return [reasons.why_not(token) for token in tokens]
