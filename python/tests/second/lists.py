"""Rows as lists, token by token: SampleRequest.top_n of the schema, and docs/data-paths.md, Top-n rows."""

import dataclasses

import numpy as np

from croupier import pb
from second import bounds, cases, comparison, listed, row, wire


@dataclasses.dataclass(frozen=True)
class Listed:
    """A case of which `count` logits are sent as a `List`."""

    case: cases.Case
    count: int
    is_in_order: bool
    is_marked: bool
    asked: str

    def list(self):
        return listed.List(self.case.row(), self.count, self.is_in_order, self.is_marked, self.case.logits_seed)

    def logits(self):
        return cases.as_f32_row(self.case.row())

    def cut(self):
        return self.list().cut()

    def needs_an_answer(self):
        """Whether docs/data-paths.md promises that the list is enough."""
        sent = self.list()
        if self.case.is_masked or self.asked not in ("nothing", "PROCESSED"):
            return sent.rest == -np.inf
        return sent.is_enough(self.case.text())


def some_lists(seed, count, params_of):
    """Random lists with one vocabulary and dtype, without rows that fail because of a single logit."""
    own = np.random.default_rng(seed)
    [some] = cases.messages(seed, 1, count, params_of)
    is_in_order = bool(own.random() < 0.5)
    for case in some:
        if np.isfinite(cases.as_f32_row(case.row())).any() and not special(case):
            size = listed.some_count(own, case.vocab)
            asked = str(own.choice(list(listed.ASKED)))
            yield Listed(listed.asking(bounds.going_on(case), asked), size, is_in_order, bool(own.random() < 0.5), asked)


def special(case):
    row_sent = cases.as_f32_row(case.row())
    return np.isnan(row_sent).any() or np.isposinf(row_sent).any()


def request(some):
    """The message with these lists."""
    message = comparison.request([each.case for each in some])
    message.ClearField("logits")
    for each in some:
        each.list().put(message.top_n)
    return message


def expected(each, logits):
    """The expected result with these logits."""
    text = each.case.text()
    result = row.sample(logits, text, each.case.mask())
    return {"status": result.status, **(comparison.of_token(each.case, text, result) if result.status == "OK" else {})}


def differences(connection, some):
    """The lists of one message that differ, written out: they are refused without need, or have another result than the whole row."""
    wrong = []
    for each, answer in zip(some, connection.sample(request(some)).rows):
        of_server = listed.compared(each.asked, comparison.of_row(answer, [answer.token]))
        is_enough = each.needs_an_answer()
        if of_server["status"] == "BEYOND_TOP_N" and not each.is_marked and not is_enough:
            continue
        is_cut = not is_enough and (answer.truncated or (each.is_marked and of_server["status"] != "OK"))
        of_second = listed.compared(each.asked, expected(each, each.cut() if is_cut else each.logits()))
        of_second.update({"truncated": True} if answer.truncated and is_cut else {})
        if of_second != of_server or (is_enough and answer.truncated) or is_far(each, answer, is_cut):
            wrong.append(comparison.written(each, of_second, of_server))
    return wrong


def is_far(each, answer, is_cut):
    """Whether the raw logprob is off."""
    if each.asked != "RAW" or is_cut or answer.status != pb.ROW_STATUS_OK:
        return False
    return each.list().is_far(wire.told(answer.token), expected(each, each.logits()))
