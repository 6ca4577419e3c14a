"""How long a draft should be: docs/speculative.md, How long should a draft be."""

from second import proposers
from second.numbers import as_f32, f32

FIRST_CHANCE = 0.6
PRIOR = 2.0
WINDOW = 64
KEPT = f32(1) - f32(1) / f32(WINDOW)
MOST = 64


class Acceptance:
    """A text's record of its drafts."""

    def __init__(self):
        # By depth: the number of tested and of accepted draft tokens. Old ones count less.
        self.tested, self.accepted = [f32(0)] * MOST, [f32(0)] * MOST
        self.without_draft = 0
        self.last_advised = None

    def fade(self):
        self.tested, self.accepted = ([f32(count * KEPT) for count in counts] for counts in (self.tested, self.accepted))

    def see(self, outcomes):
        """Records the outcomes of a step, by depth. They are empty if nothing was drafted."""
        if outcomes:
            self.fade()
            self.without_draft = self.without_draft if outcomes[0] else 0
        elif self.last_advised == 0:
            self.fade()
            self.without_draft += 1
        for depth, is_accepted in enumerate(outcomes[:MOST]):
            self.tested[depth] += f32(1)
            self.accepted[depth] += f32(is_accepted)
            if not is_accepted:
                break

    def chances(self):
        chance = FIRST_CHANCE
        for tested, accepted in zip(self.tested, self.accepted):
            chance = (float(accepted) + PRIOR * chance) / (float(tested) + PRIOR)
            yield chance

    def advised(self, text):
        """The advised length of the next draft; None if the text does not ask for advice."""
        rule = text.params.draft_length or {"max_draft_tokens": 0}
        most = rule.get("max_draft_tokens", 16)
        if most == 0:
            return None
        cost = as_f32(rule.get("draft_cost", 0)) + as_f32(rule.get("verify_cost", 0))
        length = best_length(self.chances(), cost, most)
        if length == 0 and self.without_draft >= WINDOW and cost < 1:
            length = 1
        self.last_advised = min(length, proposers.room(text))
        return self.last_advised


def best_length(chances, cost, most):
    """The length with the best rate; the shortest of equal ones."""
    reached, emitted, best, best_rate = 1.0, 1.0, 0, 1.0
    for length, chance in zip(range(1, most + 1), chances):
        reached *= chance
        emitted += reached
        if emitted / (1.0 + length * cost) > best_rate:
            best, best_rate = length, emitted / (1.0 + length * cost)
    return best


def outcomes(draft, tests):
    """For each depth, whether one of its tested tokens was accepted."""
    depths = [draft.depth(test["index"]) for test in tests]
    return [any(test["accepted"] for test, at in zip(tests, depths) if at == depth) for depth in range(max(depths, default=-1) + 1)]
