"""What a measured verification reports about its tests: DraftTest of the schema, docs/numbers.md, Verification, docs/speculative.md."""

from second import drafts, row, wire
from second.drafts import TWO_51, share
from second.numbers import as_f32
from second.verification import NoToken, Verification

LEAST_IN_COMMON = 2.0**-32
OVERLAPS = ("late_overlap", "early_overlap", "next_overlap")


def in_common(target, draft, factor=1.0):
    """docs/numbers.md, Verification, in common."""
    if len(draft[0]) == 1:
        [token] = draft[0]
        return min(factor * share(target[0].get(token, 0), target[1]), 1.0)
    common = factor - drafts.residual(target, draft, factor)[1] * 2.0**-51
    return common if common > LEAST_IN_COMMON else 0.0


def average_share(draft):
    """docs/numbers.md, Verification, expected draft probability."""
    shares = [share(mass, draft[1]) for mass in draft[0].values()]
    return sum(round(each * each * TWO_51) for each in shares) * 2.0**-51


def variance_of_share(draft):
    """docs/numbers.md, Verification, variance of the draft probability."""
    shares, mean = [share(mass, draft[1]) for mass in draft[0].values()], average_share(draft)
    return max(sum(round(each * each * each * TWO_51) for each in shares) * 2.0**-51 - mean * mean, 0.0)


def share_of(tokens, draft):
    """The share of the draft distribution on tokens that pass (docs/numbers.md, Verification, expected acceptance)."""
    return share(sum(mass for token, mass in draft[0].items() if token in tokens), draft[1])


class Measured(Verification):
    """A verification that records its tests, in order."""

    def __init__(self, *given):
        super().__init__(*given)
        self.tests = []

    def siblings(self, node, children):
        """REJECTION: siblings after the accepted one are not tested."""
        accepted, token = super().siblings(node, children)
        target = row.distribution(self.target(node))
        for i in children:
            self.test(i, target, i == accepted, in_common(target, self.draft.distribution(i)))
            if i == accepted:
                break
            target = self.left_for_later(target, self.draft.distribution(i))
        return accepted, token

    def left_for_later(self, target, draft):
        """What later siblings are tested against."""
        return self.left_over(target, draft)

    def passes(self, node):
        """For rules that judge each token independently (docs/numbers.md, Verification, expected acceptance)."""
        is_accepted, parent = super().passes(node), self.draft.parents[node]
        rate = as_f32(self.acceptance.get("synthetic_rate", 1))
        expected = rate * share_of(self.passing(parent), self.draft.distribution(node))
        self.test(node, row.distribution(self.target(parent)), is_accepted, expected)
        return is_accepted

    def block(self):
        """Tests each token with the factor of the tokens before it, up to one that the target excludes (VerifyResult.tests). Tokens after
        the first rejected one have no rank."""
        verdict = super().block()
        length, accepted = self.block_length()[0], len(verdict.path)
        for node, factor in zip(range(length), self.block_factors(length)):
            if factor == 0:
                break
            target = row.distribution(self.target(node - 1))
            self.test(node, target, node < accepted, in_common(target, self.draft.distribution(node), factor), node == accepted)
        return verdict

    def longest(self):
        verdict = super().longest()
        self.tests.sort(key=lambda test: self.turns().index(test["index"]))
        return verdict

    def turns(self, node=-1):
        """The draft tokens after this one in the order of their tests: siblings together, then the descendants of each
        (VerifyResult.tests)."""
        children = self.draft.children(node)
        return [*children, *(each for child in children for each in self.turns(child))]

    def test(self, node, target, is_accepted, expected, has_rank=True):
        """Records a test, as a DraftTest. `target` is what is left of the target's distribution for this token."""
        token, draft = self.draft.tokens[node], self.draft.distribution(node)
        result = self.target(self.draft.parents[node])
        told = dict(
            index=node, accepted=is_accepted, rejected_rank=result.rank("PROCESSED", token) if has_rank and not is_accepted else 0,
            expected_acceptance=expected, total_variation=1.0 - in_common(target, draft),
            target_probability=share(target[0].get(token, 0), target[1]), draft_probability=share(draft[0][token], draft[1]),
            expected_draft_probability=average_share(draft), draft_probability_variance=variance_of_share(draft))
        self.tests.append(told if self.tests else {**told, **self.overlaps(node)})

    def overlaps(self, node):
        """The overlaps of the first test (docs/speculative.md, Rows that are one place off)."""
        if self.finish(node):
            return {}
        later = [self.draft.distribution(child) for child in self.draft.children(node)[:1]]
        own, out = row.distribution(self.target(self.draft.parents[node])), {}
        if later:
            out["early_overlap"] = in_common(own, later[0])
        try:
            after = row.distribution(self.target(node))
        except NoToken:
            return out
        out["late_overlap"] = in_common(after, self.draft.distribution(node))
        return {**out, **({"next_overlap": in_common(after, later[0])} if later else {})}

    def told(self):
        """The tests with the names of `said`. If a race draws the tokens, nothing is measured (docs/watermarks.md, Drafts)."""
        return [in_bits(test) for test in self.tests] if self.params.gumbel is None else []


def in_bits(test):
    return {name: wire.bits(value) if isinstance(value, float) else value for name, value in test.items()}


def said(test):
    """The content of a DraftTest message."""
    names = ("index", "accepted", "rejected_rank", "expected_acceptance", "total_variation", "target_probability", "draft_probability",
             "expected_draft_probability", "draft_probability_variance", *(name for name in OVERLAPS if test.HasField(name)))
    return in_bits({name: getattr(test, name) for name in names})
