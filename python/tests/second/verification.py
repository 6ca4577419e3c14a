"""Whether draft tokens are accepted: docs/numbers.md, Verification, and docs/speculative.md."""

import dataclasses
import functools
import math

from second import drafts, numbers, orders, row, thinking
from second.drafts import share
from second.numbers import as_f32, draw, uniform


@dataclasses.dataclass
class Verdict:
    status: str
    tokens: list = ()
    path: list = ()
    last: str = ""
    text: object = None
    finish: str = ""


class NoToken(Exception):
    """A row that was needed has no token."""


class Verification:
    """Verifies a draft against the rows after the text and after each draft token (docs/speculative.md, A round)."""

    def __init__(self, text, draft, rows, masks):
        self.text, self.draft, self.rows, self.masks = text, draft, rows, masks
        self.params = text.params
        self.acceptance = text.params.acceptance
        self.target = functools.cache(self.target)
        self.text_at = functools.cache(self.text_at)

    def text_at(self, node):
        """The text with the draft tokens up to this one appended."""
        if node < 0:
            return self.text
        parent = self.draft.parents[node]
        return row.behind(self.text_at(parent), self.target(parent), self.draft.tokens[node])

    def target(self, node):
        """The result of the plain row after a draft token."""
        result = row.sample(self.rows[node + 1], self.text_at(node), self.masks[node + 1])
        if result.status != "OK":
            raise NoToken(result.status)
        return result

    def finish(self, node):
        """How the text ends with this draft token, or None."""
        how = self.text_at(self.draft.parents[node]).finish(self.draft.tokens[node])
        return None if how == "UNSPECIFIED" else how

    def is_lossless(self, verdict):
        """docs/speculative.md, How draft tokens are accepted, and VerifyResult.lossless."""
        rule = self.acceptance["rule"]
        places = [-1, *verdict.path][: len(verdict.tokens)]
        if rule == "RELAXED" and self.draft.tokens:
            return all(self.is_strict(self.text_at(place)) for place in places)
        is_one = all(len(self.target(place).survivors()) == 1 for place in places)
        return rule in ("REJECTION", "BLOCK") or not self.draft.tokens or (rule in ("GREEDY", "TYPICAL") and is_one)

    def is_strict(self, text):
        """Whether RELAXED is strict after this text."""
        return self.acceptance.get("relaxed_in_thinking_only", False) and thinking.stretch(text) is None

    def number(self, node):
        """`u` for the acceptance of a draft token."""
        position = self.text.position + self.draft.depth(node)
        return numbers.upper_53(uniform(self.text.seed, position, numbers.ACCEPTANCE, self.draft.index(node)))

    def recovered(self, node, target):
        """A token drawn by the weights of a residual, after this node."""
        masses, total = target
        number = uniform(self.text.seed, self.text_at(node).position, numbers.RECOVERED)
        return draw(list(masses), list(masses.values()), total, number)

    def run(self):
        """docs/numbers.md, Verification, the rules."""
        draft, rule = self.draft, self.acceptance["rule"]
        nodes = range(len(draft.tokens))
        try:
            if rule == "BLOCK" and draft.is_chain() and not self.is_certain(nodes):
                return self.block()
            # Without draft tokens, the row is a plain row under every rule.
            return self.walk() if rule in ("REJECTION", "BLOCK") or not draft.tokens else self.longest()
        except NoToken as failure:
            return Verdict(str(failure))

    def is_certain(self, nodes):
        """Whether the draft is certain. If a mark draws the tokens, every draft counts as certain (docs/watermarks.md, Drafts)."""
        return self.params.gumbel is not None or all(self.draft.is_certain(node) for node in nodes)

    def ended(self, node):
        """The verdict if the text ends with this draft token, without a further token."""
        path, text = self.draft.path(node), self.text_at(node)
        return Verdict("OK", [self.draft.tokens[i] for i in path], path, "ACCEPTED", text, self.finish(node) or "UNSPECIFIED")

    def more(self, node, token, last):
        """The verdict with the draft tokens up to this one and a further token."""
        path, text = self.draft.path(node), self.text_at(node)
        tokens = [*(self.draft.tokens[i] for i in path), token]
        return Verdict("OK", tokens, path, last, row.behind(text, self.target(node), token), text.finish(token))

    def walk(self):
        """REJECTION: siblings are tested in turn, each against what the previous one left (docs/speculative.md, A round)."""
        node = -1
        while True:
            children = self.draft.children(node)
            if not children:
                return self.more(node, self.target(node).token, "BONUS")
            accepted, token = self.siblings(node, children)
            if accepted is None:
                return self.more(node, token, "RECOVERED")
            node = accepted
            if self.finish(node):
                return self.ended(node)

    def siblings(self, node, children):
        """The accepted sibling and None, or None and the token that replaces them."""
        plain = self.target(node)
        if self.is_certain(children):
            return next((i for i in children if self.draft.tokens[i] == plain.token), None), plain.token
        target = row.distribution(plain)
        for i in children:
            draft, token = self.draft.distribution(i), self.draft.tokens[i]
            if self.number(i) * share(draft[0].get(token, 0), draft[1]) < share(target[0].get(token, 0), target[1]):
                return i, None
            target = self.left_over(target, draft)
        return None, self.recovered(node, target)

    def left_over(self, target, draft, factor=1.0):
        """The residual, or the target's masses if all weights of the residual are 0 (docs/numbers.md, Verification)."""
        weights = drafts.residual(target, draft, factor)
        return weights if weights[1] else target

    def longest(self):
        """The longest path of accepted tokens. Of equally long ones, the path whose token comes first in the draft where they diverge."""
        accepted, best = {-1}, -1
        self.target(-1)
        for node, parent in enumerate(self.draft.parents):
            if parent not in accepted or (parent >= 0 and self.finish(parent)) or not self.passes(node):
                continue
            accepted.add(node)
            path, longest = self.draft.path(node), self.draft.path(best)
            if len(path) > len(longest) or (len(path) == len(longest) and path < longest):
                best = node
        if best >= 0 and self.finish(best):
            return self.ended(best)
        plain = self.target(best)
        token = plain.left.ids[0] if self.acceptance["rule"] == "GREEDY" else plain.token
        return self.more(best, token, "RECOVERED" if self.draft.children(best) else "BONUS")

    def passes(self, node):
        """Whether a rule that judges each token independently accepts this one (docs/numbers.md, Verification)."""
        is_among = self.draft.tokens[node] in self.passing(self.draft.parents[node])
        return is_among and (self.acceptance["rule"] != "SYNTHETIC" or self.number(node) < as_f32(self.acceptance["synthetic_rate"]))

    def passing(self, parent):
        """The tokens that the rule accepts after a draft token; SYNTHETIC accepts them at its rate."""
        return getattr(self, self.acceptance["rule"].lower())(parent)

    def greedy(self, parent):
        """GREEDY (docs/numbers.md, Verification)."""
        return set(self.target(parent).left.ids[:1])

    def typical(self, parent):
        """TYPICAL (docs/numbers.md, Verification)."""
        masses, total = row.distribution(self.target(parent))
        epsilon, alpha = as_f32(self.acceptance.get("typical_epsilon", 0.09)), as_f32(self.acceptance.get("typical_alpha", 0.3))
        least = min(epsilon, alpha * math.exp(-self.target(parent).left.entropy()))
        return {token for token, mass in masses.items() if share(mass, total) >= least}

    def relaxed(self, parent):
        """RELAXED (docs/numbers.md, Verification)."""
        text, result = self.text_at(parent), self.target(parent)
        if self.is_strict(text):
            return {result.token}
        if orders.temperature(text.in_force, text.position) == 0:
            result = row.sample(
                self.rows[parent + 1], dataclasses.replace(text, params=text.in_force.filtered_alone()), self.masks[parent + 1])
        masses, total = row.distribution(result)
        least = share(max(masses.values()), total) - as_f32(self.acceptance.get("relaxed_delta", 0.6))
        first = result.survivors()[: self.acceptance.get("relaxed_top_n", 10)]
        return {token for token in first if share(masses[token], total) >= least}

    def synthetic(self, parent):
        """SYNTHETIC (docs/numbers.md, Verification)."""
        return set(row.distribution(self.target(parent))[0])

    def block(self):
        """Block verification of a chain (docs/numbers.md, Verification)."""
        length, is_cut = self.block_length()
        p = self.block_factors(length)
        passed = [i for i in range(1, length + 1) if self.number(i - 1) < self.block_chance(i, length, p[i])]
        count = max(passed, default=0)
        node = count - 1
        if count == length:
            if is_cut or self.finish(node):
                return self.ended(node)
            return self.more(node, self.target(node).token, "BONUS")
        target = row.distribution(self.target(node))
        return self.more(node, self.recovered(node, self.left_over(target, self.draft.distribution(count), p[count])), "RECOVERED")

    def block_factors(self, length):
        """`p_0`, and the factor of each draft token of the block (docs/numbers.md, Verification)."""
        p = [1.0]
        for node in range(length):
            token, (masses, total) = self.draft.tokens[node], row.distribution(self.target(node - 1))
            draft_masses, draft_total = self.draft.distribution(node)
            p.append(min(p[-1] * (share(masses.get(token, 0), total) / share(draft_masses[token], draft_total)), 1.0))
        return p

    def block_chance(self, i, length, p):
        """The bound that `u` must be below (docs/numbers.md, Verification)."""
        if i == length or p == 1:
            return p
        _, weights = drafts.residual(row.distribution(self.target(i - 1)), self.draft.distribution(i), p)
        beyond = weights * 2.0**-51
        return beyond / (beyond + 1 - p)

    def block_length(self):
        """The number of draft tokens in the block, and whether a row without a token cut it short (docs/speculative.md, A round)."""
        for node in range(len(self.draft.tokens)):
            try:
                self.target(node - 1)
            except NoToken:
                if node == 0:
                    raise
                return node, True
            if self.finish(node):
                return node + 1, False
        return len(self.draft.tokens), False
