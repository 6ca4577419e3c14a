"""What a measured verification tells of its tests: DraftTest of the schema, docs/numbers.md, Verification, docs/speculative.md."""

from second import comparison, drafts, row, rounds, wire
from second.drafts import share
from second.verification import NoToken, Verification

LEAST_IN_COMMON = 2.0**-32
OVERLAPS = ("late_overlap", "early_overlap", "next_overlap")


def in_common(target, draft):
    """docs/numbers.md, Verification, in common."""
    if len(draft[0]) == 1:
        [token] = draft[0]
        return min(share(target[0].get(token, 0), target[1]), 1.0)
    common = 1.0 - drafts.residual(target, draft)[1] * 2.0**-51
    return common if common > LEAST_IN_COMMON else 0.0


class Measured(Verification):
    """REJECTION, with its tests."""

    def __init__(self, *given):
        super().__init__(*given)
        self.tests = []

    def siblings(self, node, children):
        accepted, token = super().siblings(node, children)
        target = row.distribution(self.target(node))
        for i in children:
            self.tests.append(self.test(i, target, i == accepted))
            if i == accepted:
                break
            target = self.left_over(target, self.draft.distribution(i))
        return accepted, token

    def test(self, node, target, is_accepted):
        token, draft = self.draft.tokens[node], self.draft.distribution(node)
        common, result = in_common(target, draft), self.target(self.draft.parents[node])
        told = dict(
            index=node, accepted=is_accepted, rejected_rank=0 if is_accepted else result.rank("PROCESSED", token),
            expected_acceptance=common, total_variation=1.0 - common, target_probability=share(target[0].get(token, 0), target[1]),
            draft_probability=share(draft[0][token], draft[1]),
            expected_draft_probability=sum(share(mass, draft[1]) ** 2 for mass in draft[0].values()))
        return told if self.tests else {**told, **self.overlaps(node)}

    def overlaps(self, node):
        """Of the first test (docs/speculative.md, Rows that are one place off)."""
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


def expected(each):
    draft, failure = rounds.draft_of(each)
    if failure != "OK":
        return {"drafted": draft.tokens, "status": failure}
    verification = Measured(each.case.text(), draft, each.rows(), each.target_masks())
    verdict = verification.run()
    if verdict.status != "OK":
        return {"drafted": draft.tokens, "status": verdict.status}
    if each.case.params.gumbel is not None:
        # docs/watermarks.md, Drafts: nothing is measured.
        return {"drafted": draft.tokens, "status": "OK"}
    return {"drafted": draft.tokens, "status": "OK", **{f"test {i}": in_bits(test) for i, test in enumerate(verification.tests)}}


def in_bits(test):
    return {name: wire.bits(value) if isinstance(value, float) else value for name, value in test.items()}


def told(answer):
    """Of the server's answer to a verification."""
    return {f"test {i}": in_bits(fields(test)) for i, test in enumerate(answer.verify.tests)}


def fields(test):
    names = ("index", "accepted", "rejected_rank", "expected_acceptance", "total_variation", "target_probability", "draft_probability",
             "expected_draft_probability", *(name for name in OVERLAPS if test.HasField(name)))
    return {name: getattr(test, name) for name in names}


def differences(connection, some):
    """Of measured rounds of one stream those that differ, written out."""
    compared = [(each, expected(each), seen) for each, seen in zip(some, rounds.observed(connection, some, told))]
    return [comparison.written(*each) for each in compared if each[1] != each[2]]
