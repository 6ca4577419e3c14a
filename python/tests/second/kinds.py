"""Functions that draw random parameters of several kinds."""

from second import bounds, orders

REMEMBERING = {"mirostat": {"mirostat", "top_k", "skew", "temperature"}, "adaptive_p": {"adaptive_p", "min_p", "skew"},
               "top_p_decay": {"top_p", "temperature"}}


def everything(drawing):
    return {**drawing.samplers("CROUPIER", False, 0.15), **drawing.penalties(), **drawing.steering()}


def own_order(drawing):
    return {**drawing.samplers(drawing.one_of(*orders.ORDERS), True, 0.15), **drawing.penalties()}


def history(drawing):
    return {"temperature": drawing.one_of(0.0, 1.0), **drawing.penalties(0.4), **drawing.steering(0.2)}


def biased(drawing):
    """Biases after a penalty on some of their tokens."""
    given = {"repetition_penalty": 1.5, "bias_after_penalties": True}
    return {**history(drawing), **given, "logit_bias": [(token, 2.0) for token in drawing.token_set(20)]}


def breaking(drawing):
    """DRY whose breakers are short texts."""
    return {"dry_multiplier": 1.0, "dry_allowed_length": 1, "dry_sequence_breaker_texts": ["01", "110"][:drawing.one_of(1, 2)]}


def of_engine(name):
    return lambda drawing: {**drawing.samplers(name, False, 0.35), **drawing.penalties()}


def of_mark(kind):
    return lambda drawing: {**drawing.samplers("CROUPIER", drawing.chance(0.3), 0.08), **drawing.penalties(0.05), **drawing.mark(kind)}


def remembering(name):
    def draw(drawing):
        given = {}
        for sampler in sorted(REMEMBERING[name]):
            if sampler in (name, "top_p") or drawing.chance(0.4):
                given.update(drawing.sampler(sampler, "CROUPIER"))
        decay = dict(top_p_decay=drawing.between(0.5, 1), top_p_min=drawing.between(0, 0.5), top_p_reset_token_ids=drawing.token_set(2))
        return {**given, **(decay if name == "top_p_decay" else {})}
    return draw


def alone(drawing):
    """A single parameter for which docs/data-paths.md says which list is enough."""
    name = drawing.one_of("temperature", "top_k", "min_p")
    return {"temperature": 0.0} if name == "temperature" else drawing.sampler(name, "CROUPIER")


def thoughts_alone(drawing):
    return {"thinking_budget": {**bounds.stretches(drawing, bounds.ANY), **alone(drawing)}}
