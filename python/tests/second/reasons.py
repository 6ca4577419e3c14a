"""What removed a token: docs/sampling.md, Why not this token, and RemovedBy of the schema."""

import dataclasses

import numpy as np

from croupier import pb
from second import bounds, cases, comparison, history, marks, orders, row, wire

NOTHING = "UNSPECIFIED"


def removed_by(case, result, token):
    """The first cause, and the sampler where it is one."""
    text, logits, mask = case.text(), cases.as_f32_row(case.row()), case.mask()
    forced = history.forced(text)
    if np.isneginf(logits[token]):
        return "RAW_LOGIT", NOTHING
    if mask is not None and not mask[token]:
        return "TOKEN_MASK", NOTHING
    if forced is not None and token != forced:
        return "FORCED_TOKEN", NOTHING
    bans = [name for name, tokens in history.bans(text, case.vocab).items() if token in tokens and forced is None]
    if bans:
        return bans[0], NOTHING
    return ("PENALTIES", NOTHING) if np.isneginf(result.adjusted[token]) else by_sampler(text, result, token)


def by_sampler(text, result, token):
    left = result.left
    if orders.temperature(text.in_force, text.position) == 0:
        return (NOTHING if token == result.token else "GREEDY"), NOTHING
    ids, masses, _ = left.before.get("synthid", (left.ids, left.masses, left.total))
    if token not in ids:
        return "SAMPLER", left.gone[token].upper()
    if masses[ids.index(token)] == 0:
        return "PRECISION", NOTHING
    if token not in result.survivors():
        return "WATERMARK", NOTHING
    is_race = text.params.gumbel is not None and marks.race(left, text) is not None
    return ("WATERMARK" if is_race and token != result.token else NOTHING), NOTHING


def why_not(case, result, token):
    """In the words of `said`."""
    cause, sampler = removed_by(case, result, token)
    survivors, is_left = result.survivors(), cause == NOTHING
    mass = result.left.masses[result.left.ids.index(token)] if is_left else 0
    # The wire has no -0.
    raw, adjusted = (float(logits[token]) + 0.0 for logits in (cases.as_f32_row(case.row()), result.adjusted))
    return dict(
        token=token, by=cause, sampler=sampler, raw=wire.bits(raw), adjusted=wire.bits(adjusted),
        probability=wire.bits(mass / result.left.total), rank=survivors.index(token) + 1 if is_left else 0)


def said(why):
    return dict(
        token=why.token_id, by=pb.RemovedBy.Name(why.removed_by).removeprefix("REMOVED_BY_"),
        sampler=pb.SamplerKind.Name(why.sampler).removeprefix("SAMPLER_KIND_"), raw=wire.bits(why.raw_logit),
        adjusted=wire.bits(why.adjusted_logit), probability=wire.bits(why.probability), rank=why.rank)


@dataclasses.dataclass(frozen=True)
class Why:
    """A row of which is asked what became of its tokens, up to 64."""

    case: cases.Case

    def tokens(self):
        return list(range(min(self.case.vocab, 64)))


def expected(each):
    case = each.case
    result = row.sample(cases.as_f32_row(case.row()), case.text(), case.mask())
    whys = [why_not(case, result, token) for token in each.tokens()] if result.status == "OK" else []
    return {"status": result.status, **{f"why {why['token']}": why for why in whys}}


def differences(connection, some):
    """Of the rows of one message those that differ, written out."""
    message = comparison.request([each.case for each in some])
    for each, sent in zip(some, message.rows):
        sent.params.report.why_not_token_ids.extend(each.tokens())
    wrong = []
    for each, answer in zip(some, connection.sample(message).rows):
        of_second = expected(each)
        whys = [said(why) for why in answer.token.report.why_not]
        of_server = {"status": wire.status(answer), **{f"why {why['token']}": why for why in whys}}
        if of_second != of_server:
            wrong.append(comparison.written(each, of_second, of_server))
    return wrong


def whys(seed, count, params_of):
    """Some of one vocabulary."""
    [some] = cases.messages(seed, 1, count, params_of)
    return [Why(bounds.going_on(case)) for case in some]
