"""Verifications, their drafts, and scores, with rows that are sent as lists: docs/data-paths.md, Top-n rows."""

import dataclasses
import itertools

import numpy as np

from second import cases, comparison, listed, rounds, scores
from second.params import Params

VOCABS = (2, 5, 20, 60)
# In these modes the report is computed from the distribution that the token is drawn from, so both are cut alike.
OF_THE_DRAW = ("nothing", "PROCESSED")
# These may be missing: a list may not determine a rank, and the overlaps look at another row, which may be cut (DraftTest).
NOT_COMPARED = ("rejected_rank", "late_overlap", "next_overlap")


class Lists:
    """A round or a score whose rows are sent as lists. Its rows have no NaN or +infinity, because a list might not contain it."""

    def rows(self):
        return [np.nan_to_num(logits, nan=0, posinf=3, neginf=-np.inf) for logits in super().rows()]

    def lists(self, rows, purpose):
        chance = np.random.default_rng([self.case.logits_seed, purpose])
        may_be_marked = self.asked in OF_THE_DRAW and purpose == 8
        return [
            listed.List(logits, listed.some_count(chance, self.case.vocab), self.is_in_order,
                        bool(may_be_marked and chance.random() < 0.5), int(chance.integers(1 << 32)))
            for logits in rows]

    def sent_rows(self):
        return self.lists(self.rows(), 8)

    def all_sent(self):
        return self.sent_rows()

    def as_cut(self, said, is_truncated):
        """The results that are allowed if rows were cut. If only the report of a token was cut, the result is lossless
        (VerifyResult.lossless)."""
        if not is_truncated or "lossless" not in said:
            return [{**said, **({"truncated": True} if is_truncated else {})}]
        drawn = [False] if self.asked == "nothing" else [False, said["lossless"]]
        return [{**said, "truncated": True, "lossless": lossless} for lossless in drawn]

    def text_alone(self):
        """The text without the parameters that do not concern its rows."""
        params = Params(**{name: value for name, value in self.case.params.items() if name != "acceptance"})
        return dataclasses.replace(self.case.text(), params=params)

    def cuts(self):
        """The ways in which the server may read the rows: each marked row whole or cut. Readings with more cut rows come first."""
        sent = self.sent_rows()
        marked = [place for place, one in enumerate(sent) if one.is_marked]
        for count in range(len(marked), 0, -1):
            for places in itertools.combinations(marked, count):
                yield [one.cut() if place in places else one.logits for place, one in enumerate(sent)]

    def compared(self, said):
        """The requested part of a result, with the names of `rounds` or `scores`."""
        out = {**said, "next": listed.compared(self.asked, said["next"])}
        if "told" in said:
            out["told"] = [listed.compared(self.asked, one) for one in said["told"]]
        if "tests" in said:
            out["tests"] = [{name: value for name, value in test.items() if name not in NOT_COMPARED} for test in said["tests"]]
        return out


@dataclasses.dataclass(frozen=True)
class ListedRound(Lists, rounds.Round):
    asked: str
    is_in_order: bool

    def sent_draft_rows(self):
        return self.lists(self.draft_rows(), 9)

    def all_sent(self):
        return [*self.sent_rows(), *(self.sent_draft_rows() if self.kind == "kept" else [])]

    def is_enough(self):
        """Whether the server must not refuse any of the round's work (docs/data-paths.md, Top-n rows)."""
        sent = self.all_sent()
        is_judged_otherwise = self.case.params.acceptance["rule"] == "RELAXED" and self.case.params.temperature == 0
        if self.case.is_masked or is_judged_otherwise or self.asked not in OF_THE_DRAW:
            return all(one.rest == -np.inf for one in sent)
        return all(one.is_enough(self.text_alone()) for one in sent)

    def expected(self, rows=None):
        return rounds.expected(self, rows)

    def unchanged(self):
        return rounds.following(self, self.case.text(), "UNSPECIFIED")


@dataclasses.dataclass(frozen=True)
class ListedScore(Lists, scores.Score):
    is_in_order: bool

    @property
    def asked(self):
        return self.case.mode

    def is_enough(self):
        """Whether the server must not refuse the score. For raw logprobs, the token and the requested number of tokens must be above the
        smallest listed logit. Otherwise the conditions are those for drawing the token."""
        pairs = list(zip(self.sent_rows(), self.tokens))
        if self.asked == "RAW":
            return all(token in one.above() and len(one.above()) >= min(listed.TOP_OF_RAW, self.case.vocab) for one, token in pairs)
        if self.case.is_masked or self.asked == "TEMPERED":
            return all(one.rest == -np.inf for one, _ in pairs)
        return all(one.is_enough(self.text_alone()) and token in one.above() for one, token in pairs)

    def expected(self, rows=None):
        return {**scores.scored(self, rows), "next": self.unchanged()}

    def unchanged(self):
        return comparison.expected(dataclasses.replace(self.case, is_masked=False))


def some_rounds(seed, count, kind, is_tree, rule, params_of):
    own = np.random.default_rng(seed)
    is_in_order = bool(own.random() < 0.5)
    for each in rounds.rounds(seed, count, kind, is_tree, rule, params_of, VOCABS):
        asked = str(own.choice(list(listed.ASKED)))
        yield ListedRound(listed.asking(each.case, asked), kind, each.parents, asked, is_in_order)


def some_scores(seed, count, params_of):
    own = np.random.default_rng(seed)
    is_in_order = bool(own.random() < 0.5)
    for each in scores.scores(seed, count, params_of):
        yield ListedScore(listed.asking(each.case, each.case.mode), each.length, is_in_order)


def differences(connection, some):
    """The works of one stream that differ, written out: they are refused without need, or have another result than the whole rows."""
    observed = (rounds if isinstance(some[0], ListedRound) else scores).observed(connection, some)
    return [comparison.written(each, *pair) for each, seen in zip(some, observed) for pair in pairs_that_differ(each, seen)]


def pairs_that_differ(each, said):
    """A list of one pair, or an empty list."""
    seen, is_cut = each.compared(said), said.get("truncated", False)
    exact = each.expected()
    whole = each.compared(exact)
    if seen["status"] == "BEYOND_TOP_N":
        return [] if is_refused_rightly(each, seen) else [(whole, seen)]
    if whole == seen:
        return [(exact, said)] if is_far(each, said, exact) else []
    may_be_cut = not each.is_enough() and (is_cut or seen["status"] != "OK")
    for rows in each.cuts() if may_be_cut else ():
        if seen in each.as_cut(each.compared(each.expected(rows)), is_cut):
            return []
    return [(whole, seen)]


def is_far(each, said, exact):
    """Whether the raw logprob of any token is off."""
    if each.asked != "RAW" or said["status"] != "OK":
        return False
    places = [-1, *said["path"]] if "path" in said else range(-1, len(each.tokens) - 1)
    sent = each.sent_rows()
    return any(sent[place + 1].is_far(*pair) for place, pair in zip(places, zip(said["told"], exact["told"])))


def is_refused_rightly(each, seen):
    """Whether a refusal was allowed, changed nothing, and left draft tokens as those of whole rows."""
    drafted, of_second = seen.get("drafted", []), each.expected().get("drafted", [])
    is_same = drafted == of_second[: len(drafted)] and seen["next"] == listed.compared(each.asked, each.unchanged())
    return is_same and not each.is_enough() and not all(one.is_marked for one in each.all_sent())
