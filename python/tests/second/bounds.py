"""Parameters by chance of texts that think and end, and texts that have not ended yet."""

import dataclasses

from second.params import Text

# So few tokens that they often come again.
VOCABS = (2, 3, 5, 20)


def params(drawing, _=None):
    """With what else decides about a token where one is forced, or what ends a text."""
    given = {"temperature": drawing.one_of(0.0, 1.0, 1.0, 3.0), **drawing.steering(0.07)}
    given.pop("max_tokens", None)
    given.pop("forced_last_token", None)
    if drawing.chance(0.6):
        given["thinking_budget"] = thinking(drawing)
    return {**given, **endings(drawing, given.get("min_tokens", 0))}


def thinking(drawing):
    """Often with beginnings, ends and forced tokens that are parts of each other."""
    tokens, whole = drawing.tokens, drawing.random.randint
    given = dict(start_token_ids=tokens(whole(1, 2)), end_token_ids=tokens(whole(1, 3)), budget=drawing.one_of(0, 1, 2, 3, 5, 4294967295))
    if drawing.chance(0.5):
        given["forced_token_ids"] = tokens(whole(1, 4))
    if drawing.chance(0.3):
        given["other_ends"] = [tokens(whole(1, 3)) for _ in range(2)]
    return given


def endings(drawing, at_least):
    whole, given = drawing.random.randint, {}
    if drawing.chance(0.4):
        given["stop_token_sequences"] = [drawing.tokens(whole(1, 4)) for _ in range(whole(1, 4))]
    if drawing.chance(0.4):
        longest = whole(1, 4)
        given["repetition_detection"] = dict(max_pattern_size=longest, min_count=whole(2, 4))
        if drawing.chance(0.5):
            given["repetition_detection"]["min_pattern_size"] = whole(1, longest)
    if drawing.chance(0.3):
        given["max_tokens"] = max(at_least, 1) + whole(0, 20)
        if drawing.chance(0.3):
            given["forced_last_token"] = drawing.random.randrange(drawing.vocab)
    return given


def going_on(case):
    """The case with its output only as far as the text had not ended."""
    text = Text(case.params, case.prompt, [], case.eos, case.seed)
    for token in case.output:
        if text.finish(token) != "UNSPECIFIED":
            break
        text = text.behind(token, {})
    return dataclasses.replace(case, output=text.output)
