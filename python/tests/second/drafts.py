"""Drafts, and the shares and residuals for verifying them: docs/numbers.md, Verification."""

import dataclasses

from second.numbers import ONE

TWO_51 = 2.0**51


@dataclasses.dataclass(frozen=True)
class Draft:
    """Tokens, their parents (-1: none), and the distributions they were drawn from, None for certain tokens (docs/speculative.md)."""

    tokens: list
    parents: list
    distributions: list

    def depth(self, node):
        return 0 if self.parents[node] < 0 else self.depth(self.parents[node]) + 1

    def index(self, node):
        """The index of the random numbers for a token's draw and its acceptance (docs/numbers.md, Draw)."""
        depth = self.depth(node)
        return depth + (sum(self.depth(other) == depth for other in range(node)) << 16)

    def children(self, node):
        return [i for i, parent in enumerate(self.parents) if parent == node]

    def path(self, node):
        return [] if node < 0 else [*self.path(self.parents[node]), node]

    def is_chain(self):
        return self.parents == list(range(-1, len(self.parents) - 1))

    def distribution(self, node):
        given = self.distributions[node]
        return ({self.tokens[node]: ONE}, ONE) if given is None else given

    def is_certain(self, node):
        return len(self.distribution(node)[0]) == 1


def share(mass, total):
    """docs/numbers.md, Verification."""
    return mass * (1 / total)


def residual(target, draft, factor=1.0):
    """Weights by token, and their sum (docs/numbers.md, Verification)."""
    (target_masses, target_total), (draft_masses, draft_total) = target, draft
    a, b = factor * (1 / target_total) * TWO_51, (1 / draft_total) * TWO_51
    weights = {token: round(max(mass * a - draft_masses.get(token, 0) * b, 0.0)) for token, mass in target_masses.items()}
    weights = {token: weight for token, weight in weights.items() if weight}
    return weights, sum(weights.values())
