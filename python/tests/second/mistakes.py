"""Mistakes, each of which the comparison must detect."""

import dataclasses

import numpy as np

from second import adjust, drafts, endings, history, measures, numbers, proposers, reasons, rounds, row, thinking, verification


def another_constant():
    constants = list(numbers.POLYNOMIAL)
    constants[3] = np.nextafter(constants[3], np.float32(1))
    return numbers, "POLYNOMIAL", constants


def larger_ids_first(ids, x):
    return sorted(range(len(ids)), key=lambda i: (-float(x[i]), -ids[i]))


def penalties_in_another_order(past, steps=adjust.steps):
    order = steps(past)
    repetition, presence = order.index(adjust.repetition), order.index(adjust.presence)
    order[repetition], order[presence] = order[presence], order[repetition]
    return order


def biases_always_first(self, token, late, bias=history.History.bias):
    if late:
        return None
    self.bias_is_late = False
    return bias(self, token, late)


def residual_without_factor(target, draft, factor=1.0, residual=drafts.residual):
    return residual(target, draft)


def an_end_among_forced_tokens(tokens, begin, rule, _, is_over=thinking.is_over):
    return is_over(tokens, begin, rule, False)


def filters_one_token_late(text, filters=thinking.filters):
    return filters(dataclasses.replace(text, output=text.output[:-1]))


def filters_of_the_drafts_first_row(self, node, text_at=verification.Verification.text_at):
    return dataclasses.replace(text_at(self, node), params=self.text.in_force)


def one_repetition_more(output, rule, is_loop=endings.is_loop):
    return is_loop(output, rule and {**rule, "min_count": rule["min_count"] + 1})


def rank_of_what_is_left(result, mode, token, rank=row.Result.rank):
    return result.left.ids.index(token) + 1 if mode == "PROCESSED" and token in result.left.ids else rank(result, mode, token)


def masks_of_other_rows(text, draft, rows, masks):
    return measures.Measured(text, draft, rows, masks[::-1])


def texts_that_stay(text, *_):
    return text


def bans_in_another_order(text, vocab, bans=history.bans):
    return dict(reversed(bans(text, vocab).items()))


def masks_are_allowed_lists(self, token, removed_by=reasons.Reasons.removed_by):
    cause, sampler = removed_by(self, token)
    return "ALLOWED_TOKEN_IDS" if cause == "TOKEN_MASK" else cause, sampler


def survivors_by_ids(result, survivors=row.Result.survivors):
    return sorted(survivors(result))


def state_of_all(_, state):
    return {name: value.hex() for name, value in state.items()}


def ends_of_one_token(each, draft, proposed=rounds.proposed):
    return proposed(each, dataclasses.replace(draft, parents=[-1] * len(draft.tokens)))


def room_for_one_more(text, room=proposers.room):
    return room(text) + 1


def first_match(tokens, rule, longest_match=proposers.longest_match):
    length, places = longest_match(tokens, rule)
    return length, places[::-1]


def whole_chance(target, draft, _=1.0, in_common=measures.in_common):
    return in_common(target, draft)


def all_tokens_alike(tokens, draft):
    return len(tokens & draft[0].keys()) / len(draft[0])


def tests_in_the_order_of_the_draft(self):
    return list(range(len(self.draft.tokens)))


def nothing_is_taken(_, target, *__):
    return target


def verified_and_forgotten(each, _, finish, following=rounds.following):
    return following(each, each.case.text(), finish)


def as_if_verified(each):
    return each.expected()["next"]
