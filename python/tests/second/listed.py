"""A row as a list of its largest logits: docs/data-paths.md, Top-n rows, and TopNRows of the schema."""

import dataclasses
import functools

import numpy as np

from croupier import pb
from second import cases, row, thinking
from second.candidates import token_order
from second.params import Params

# What is requested in addition to the token. docs/data-paths.md says that everything else needs the whole row.
TOP_OF_RAW = 2
LOGPROBS = cases.Asked(support=False, survivors=0, entropy=False)
ASKED = {
    "nothing": dataclasses.replace(cases.NOTHING, state=True), "TEMPERED": LOGPROBS,
    "RAW": dataclasses.replace(LOGPROBS, top_n=TOP_OF_RAW, logprobs=0), "PROCESSED": cases.Asked(entropy=False)}
# Raw logprobs are rounded, so `is_far` compares them separately.
NOT_COMPARED = ("logprob", "top_logprobs", "rounded")


@dataclasses.dataclass(frozen=True, eq=False)
class List:
    """A row of which `count` logits are sent. With `is_in_order`, of the tokens equal to the last one those with the smallest ids are
    sent."""

    sent: np.ndarray
    count: int
    is_in_order: bool
    is_marked: bool
    seed: int

    @functools.cached_property
    def logits(self):
        return cases.as_f32_row(self.sent)

    @functools.cached_property
    def tokens(self):
        """The listed tokens, in random order (TopNRows.token_ids)."""
        x, chance = self.logits, np.random.default_rng(self.seed)
        names = np.arange(len(x)) if self.is_in_order else chance.permutation(len(x))
        ordered = token_order(names.tolist(), x)
        return [int(token) for token in chance.permutation(ordered[: self.count])]

    @functools.cached_property
    def rest(self):
        """TopNRows.rest_logsumexp."""
        others = np.delete(self.logits.astype(np.float64), self.tokens)
        if not (others > -np.inf).any():
            return -np.inf
        return float(others.max() + np.log(np.exp(others - others.max()).sum()))

    def cut(self):
        """The row as if all other logits were -infinity."""
        out = np.full(len(self.logits), -np.inf, np.float32)
        out[self.tokens] = self.logits[self.tokens]
        return out

    def above(self):
        """The listed tokens whose logits are above the smallest one."""
        x = self.logits[self.tokens]
        return [token for token in self.tokens if self.logits[token] > x.min()]

    def is_enough(self, text):
        """Whether the table on that page promises that the list is enough to draw from: for a single parameter, or because no other token
        can be emitted."""
        if self.rest == -np.inf:
            return True
        params, above = text.params if text.params.thinking_budget is None else filters_alone(text), len(self.above())
        if params == {"temperature": 0.0}:
            return above > 0
        if params.keys() == {"top_k"}:
            return above >= params["top_k"] or (self.is_in_order and self.count >= params["top_k"])
        listed = self.logits[self.tokens]
        return params.keys() == {"min_p"} and len(row.sample(self.cut(), text).survivors()) < int((listed > -np.inf).sum())

    def put(self, rows):
        """Adds the list to a TopNRows message."""
        rows.counts.append(len(self.tokens))
        rows.token_ids.extend(self.tokens)
        rows.logits += self.sent[self.tokens].tobytes()
        rows.rest_logsumexp.append(self.rest)
        rows.beyond.append(pb.BEYOND_TOP_N_MARK if self.is_marked else pb.BEYOND_TOP_N_REFUSE)
        rows.ties_in_order = self.is_in_order

    def is_far(self, told, exact):
        """Whether a raw logprob differs although no other token counts, or by more than the error of the sum and 1e-6 (docs/data-paths.md,
        Top-n rows). Both arguments have the names of `wire.told`."""
        logprob, of_row = (float(np.array(each["logprob"], np.uint32).view(np.float32)) for each in (told, exact))
        if not told["rounded"] or self.rest == -np.inf:
            return told["rounded"] or logprob != of_row
        error = abs(float(np.float32(self.rest)) - self.rest)
        return abs(logprob - of_row) > 1e-6 + error + float(np.spacing(np.float32(abs(of_row))))


def filters_alone(text):
    """The parameters of a row of a thought that differ from their defaults; none if the row is of the answer or its token is forced."""
    given = {name: value for name, value in text.in_force.items() if name != "thinking_budget" and value != getattr(Params(), name)}
    return given if thinking.filters(text) and thinking.forced(text) is None else {}


def some_count(chance, vocab):
    """The number of logits in a list, often small."""
    return int(chance.integers(1, vocab + 1)) if chance.random() < 0.7 else min(vocab, int(chance.integers(1, 6)))


def asking(case, asked):
    return dataclasses.replace(case, mode="PROCESSED" if asked == "nothing" else asked, asked=ASKED[asked])


def compared(asked, said):
    """The part of a token's or a row's result that is compared."""
    return {name: value for name, value in said.items() if asked != "RAW" or name not in NOT_COMPARED}
