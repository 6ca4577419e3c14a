"""Random parameters for texts that think and end, and for texts that have not ended yet."""

import dataclasses

from second import orders, thinking
from second.params import Params, Text

# So few tokens that they often repeat.
VOCABS = (2, 3, 5, 20)
ANY = 4294967295


def params(drawing, _=None):
    """Parameters for thinking and endings, with others that decide about tokens where one is forced."""
    given = {"temperature": drawing.one_of(0.0, 1.0, 1.0, 3.0), **drawing.steering(0.07)}
    given.pop("max_tokens", None)
    given.pop("forced_last_token", None)
    if drawing.chance(0.6):
        given["thinking_budget"] = thoughts(drawing, given, drawing.one_of(0, 1, 2, 3, 5, ANY))
    return {**given, **endings(drawing, given.get("min_tokens", 0))}


def thoughtful(params_of):
    """A function that draws the same parameters, but for texts that think most of the time, with other filters than in answers."""
    def draw(drawing, *rule):
        given = params_of(drawing, *rule)
        return {**given, "thinking_budget": thoughts(drawing, given, drawing.one_of(5, ANY, ANY, ANY))}
    return draw


def thoughts(drawing, given, budget):
    """The thinking budget of a text with these parameters, often with its own filters."""
    return {**stretches(drawing, budget), **(filters(drawing, given) if budget and drawing.chance(0.8) else {})}


def stretches(drawing, budget):
    """Stretches of thinking. Their start, end and forced tokens are often parts of each other."""
    tokens, whole = drawing.tokens, drawing.random.randint
    rule = dict(start_token_ids=tokens(whole(1, 2)), end_token_ids=tokens(whole(1, 3)), budget=budget)
    if drawing.chance(0.5):
        rule["forced_token_ids"] = tokens(whole(1, 4))
    if drawing.chance(0.3):
        rule["other_ends"] = [tokens(whole(1, 3)) for _ in range(2)]
    return rule


def filters(drawing, given):
    """Filters of thoughts that are compatible with the given parameters, including values at the edges of their ranges."""
    near, one = drawing.or_between, drawing.one_of
    choices = {
        "temperature": lambda: near([0.0, 0.0, 1.0, 0.3, 0.005, 1e-5, 1e5], 0.1, 3), "top_k": lambda: one(0, 1, 2, 3, 10),
        "top_p": lambda: near([0.0, 0.3, 0.9, 1.0], 0, 1), "min_p": lambda: near([0.0, 0.05, 0.3, 1.0], 0, 1)}
    drawn = {name: choices[name]() for name in thinking.FILTERS if drawing.chance(0.6)}
    return {name: value for name, value in drawn.items() if goes_with(given, name, value)}


def goes_with(given, name, value):
    """Whether the server accepts this filter for thoughts (ThinkingBudgetParams)."""
    params, changed = Params(**given), Params(**{**given, name: value})
    samplers = orders.order(changed)
    if name not in samplers and orders.is_on(name, changed, "dynamic_temperature" in samplers):
        return False
    if name == "top_p":
        return params.top_p_decay == 1
    if name != "temperature":
        return True
    is_greedy, was_greedy = (orders.temperature(each, 0) == 0 for each in (changed, params))
    if params.temperature_tokens or (is_greedy and (params.synthid or params.gumbel)):
        return False
    if params.dynatemp_high and value and "dynamic_temperature" not in samplers:
        return False
    return is_greedy == was_greedy or not (params.mirostat or params.adaptive_target >= 0)


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
    """The case with its output cut off before the token that ends the text."""
    text = Text(case.params, case.prompt, [], case.eos, case.seed)
    for token in case.output:
        if text.finish(token) != "UNSPECIFIED":
            break
        text = text.behind(token, {})
    return dataclasses.replace(case, output=text.output)
