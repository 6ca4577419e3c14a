"""Rows as lists of their largest logits: docs/data-paths.md, Top-n rows, and TopNRows of the schema."""

import dataclasses

import numpy as np

from croupier import pb
from second import bounds, cases, comparison, row, thinking, wire
from second.candidates import token_order
from second.params import Params

# What is asked for beside the token: docs/data-paths.md says that the rest needs the whole row.
ASKED = {
    "nothing": (), "TEMPERED": ("logprob", "rank", "top", "top_logprobs", "logprobs"), "RAW": ("rank", "top"),
    "PROCESSED": ("logprob", "rank", "top", "top_logprobs", "logprobs", "support", "survivors")}

TOP_OF_RAW = 2


@dataclasses.dataclass(frozen=True)
class Listed:
    """A case of which `count` logits are sent. With `is_in_order` those with the smallest ids of the tokens equal to the last."""

    case: cases.Case
    count: int
    is_in_order: bool
    is_marked: bool
    asked: str

    def logits(self):
        return cases.as_f32_row(self.case.row())

    def tokens(self):
        """In any order (TopNRows.token_ids)."""
        x, chance = self.logits(), np.random.default_rng(self.case.logits_seed)
        names = np.arange(len(x)) if self.is_in_order else chance.permutation(len(x))
        ordered = token_order(names.tolist(), x)
        return [int(token) for token in chance.permutation(ordered[: self.count])]

    def rest(self):
        """TopNRows.rest_logsumexp."""
        others = np.delete(self.logits().astype(np.float64), self.tokens())
        if not (others > -np.inf).any():
            return -np.inf
        return float(others.max() + np.log(np.exp(others - others.max()).sum()))

    def cut(self):
        """The row as if all other logits were -infinity."""
        out = np.full(self.case.vocab, -np.inf, np.float32)
        out[self.tokens()] = self.logits()[self.tokens()]
        return out

    def needs_an_answer(self):
        """Whether the page's table promises that the list is enough: for a parameter alone, or as no other token can be emitted."""
        text, x = self.case.text(), self.logits()[self.tokens()]
        params = text.params if text.params.thinking_budget is None else filters_alone(text)
        if self.rest() == -np.inf or self.case.is_masked or self.asked not in ("nothing", "PROCESSED"):
            return self.rest() == -np.inf
        above = int((x > x.min()).sum())
        if params == {"temperature": 0.0}:
            return above > 0
        if params.keys() == {"top_k"}:
            return above >= params["top_k"] or (self.is_in_order and self.count >= params["top_k"])
        return params.keys() == {"min_p"} and len(row.sample(self.cut(), self.case.text()).survivors()) < int((x > -np.inf).sum())


def filters_alone(text):
    """The parameters of a row of a thought that are not what their absence is; nothing where it is of the answer, or forced."""
    given = {name: value for name, value in text.in_force.items() if name != "thinking_budget" and value != getattr(Params(), name)}
    return given if thinking.filters(text) and thinking.forced(text) is None else {}


def listed(seed, count, params_of):
    """Lists by chance of one vocabulary and dtype, without rows that have no token because of one logit."""
    own = np.random.default_rng(seed)
    [some] = cases.messages(seed, 1, count, params_of)
    is_in_order = bool(own.random() < 0.5)
    for case in some:
        if np.isfinite(cases.as_f32_row(case.row())).any() and not special(case):
            size = int(own.integers(1, case.vocab + 1)) if own.random() < 0.7 else min(case.vocab, int(own.integers(1, 6)))
            asked = str(own.choice(list(ASKED)))
            case = dataclasses.replace(bounds.going_on(case), mode="PROCESSED" if asked == "nothing" else asked)
            yield Listed(case, size, is_in_order, bool(own.random() < 0.5), asked)


def special(case):
    row_sent = cases.as_f32_row(case.row())
    return np.isnan(row_sent).any() or np.isposinf(row_sent).any()


def request(some):
    """One message."""
    message = comparison.request([each.case for each in some])
    message.ClearField("logits")
    for each, sent in zip(some, message.rows):
        tokens, params = each.tokens(), sent.params
        message.top_n.counts.append(len(tokens))
        message.top_n.token_ids.extend(tokens)
        message.top_n.logits += each.case.row()[tokens].tobytes()
        message.top_n.rest_logsumexp.append(each.rest())
        message.top_n.beyond.append(pb.BEYOND_TOP_N_MARK if each.is_marked else pb.BEYOND_TOP_N_REFUSE)
        params.report.entropy = False
        if each.asked != "PROCESSED":
            params.ClearField("report")
        if each.asked == "nothing":
            params.ClearField("logprobs")
        elif each.asked == "RAW":
            params.logprobs.ClearField("token_ids")
            params.logprobs.top_n = min(TOP_OF_RAW, each.case.vocab)
    message.top_n.ties_in_order = some[0].is_in_order
    return message


def expected(each, logits):
    """What is compared of these logits."""
    text = each.case.text()
    result = row.sample(logits, text, each.case.mask())
    return {"status": result.status, **(comparison.of_token(each.case, text, result) if result.status == "OK" else {})}


def compared(each, said):
    out = {name: value for name, value in said.items() if name in ("status", "token", "finish", "state", *ASKED[each.asked])}
    return {**out, "top": out["top"][:TOP_OF_RAW]} if each.asked == "RAW" and "top" in out else out


def differences(connection, some):
    """Of the lists of one message those that differ, written out: refused though they need not be, or another result than the row's."""
    wrong = []
    for each, answer in zip(some, connection.sample(request(some)).rows):
        of_server = compared(each, comparison.observed(answer))
        is_enough = each.needs_an_answer()
        if of_server["status"] == "BEYOND_TOP_N" and not each.is_marked and not is_enough:
            continue
        is_cut = not is_enough and (answer.truncated or (each.is_marked and of_server["status"] != "OK"))
        of_second = compared(each, expected(each, each.cut() if is_cut else each.logits()))
        if of_second != of_server or (is_enough and answer.truncated) or is_far(each, answer, is_cut):
            wrong.append(comparison.written(each, of_second, of_server))
    return wrong


def is_far(each, answer, is_cut):
    """Whether a raw logprob is off by more than the error of the sum and 1e-6 (docs/data-paths.md, Top-n rows)."""
    if each.asked != "RAW" or is_cut or answer.status != pb.ROW_STATUS_OK:
        return False
    exact = expected(each, each.logits())["logprob"]
    if not answer.token.rounded_logprobs:
        return wire.bits(answer.token.logprob) != exact
    of_row, rest = float(np.array(exact, np.uint32).view(np.float32)), each.rest()
    return abs(answer.token.logprob - of_row) > 1e-6 + abs(float(np.float32(rest)) - rest) + float(np.spacing(np.float32(abs(of_row))))
