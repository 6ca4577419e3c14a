"""The remaining tokens of a row, in token order."""

import numpy as np

from second import numbers
from second.numbers import f32


def token_order(ids, x):
    """Logit descending, then token id ascending; -0 equals +0 (docs/numbers.md, Order)."""
    return sorted(range(len(ids)), key=lambda i: (-float(x[i]), ids[i]))


class Candidates:
    """Tokens with their logits `x` in token order, and with their exponents and masses at the current temperature."""

    def __init__(self, logits, temperature=1.0):
        """The tokens of a row whose logits are above minus infinity. The row is kept too."""
        ids = np.flatnonzero(~np.isneginf(logits)).tolist()
        self.row = logits
        # Tokens, masses and total before each sampler, by its name.
        self.before = {}
        # The first sampler that removed a token.
        self.gone = {}
        self.set(ids, logits[ids], temperature)

    def set(self, ids, x, temperature=1.0):
        """Sets new logits (docs/numbers.md, Chains)."""
        order = token_order(ids, x)
        self.ids, self.x = [ids[i] for i in order], np.asarray(x, f32)[order]
        self.at(temperature)

    def at(self, temperature):
        """docs/numbers.md, From adjusted logit to mass."""
        self.temperature = temperature
        with np.errstate(over="ignore"):
            self.y = ((self.x - self.x[0]) * numbers.scale(temperature)).astype(f32)
        self.masses = numbers.masses(self.y)
        self.total = sum(self.masses)

    def temper(self, temperature):
        """Consecutive temperatures are multiplied (docs/numbers.md, Chains)."""
        self.at(self.temperature * temperature)

    def tempered_distances(self):
        """`d` of the samplers that compute new logits (docs/numbers.md, Chains)."""
        with np.errstate(over="ignore"):
            return ((self.x - self.x[0]) * f32(1 / self.temperature)).astype(f32)

    def remember(self, sampler):
        self.before[sampler] = (list(self.ids), list(self.masses), self.total)

    def keep(self, places):
        if len(places) < len(self.ids):
            self.ids, self.x = [self.ids[i] for i in places], self.x[places]
            self.at(self.temperature)

    def keep_first(self, count, min_keep=1):
        self.keep(list(range(min(max(count, min_keep, 1), len(self.ids)))))

    def keep_where(self, wanted, min_keep):
        self.keep([i for i, stays in enumerate(wanted) if stays or i < max(min_keep, 1)])

    def keep_from_mass(self, threshold, min_keep):
        """A cutoff above the largest probability counts as the largest (docs/sampling.md, From logits to token)."""
        least = min(numbers.ceil(threshold), self.masses[0])
        self.keep_where([mass >= least for mass in self.masses], min_keep)

    def entropy(self):
        return numbers.entropy(self.masses, self.y)

    def logprobs(self):
        """docs/numbers.md, Logprobs."""
        return {token: numbers.logprob(y, self.total) for token, y in zip(self.ids, self.y)}
