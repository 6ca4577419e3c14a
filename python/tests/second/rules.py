"""Random parameters for texts with drafts, and for the rules of acceptance."""


def params(drawing, rule):
    given = drawing.samplers("CROUPIER", False, drawing.one_of(0, 0.12, 0.25))
    if drawing.chance(0.5):
        given.update(drawing.penalties(), **drawing.steering())
    for name in ("forced_first_token", "forced_last_token", "min_tokens", "infill"):
        given.pop(name, None)
    if drawing.chance(0.1):
        given["temperature"] = 0.0
        given.pop("temperature_tokens", None)
    elif drawing.chance(0.2):
        given.update(drawing.mark(drawing.one_of("kgw", "synthid", "gumbel" if rule in ("REJECTION", "BLOCK") else "kgw")))
    return given


def rule_of(drawing, rule):
    return {"acceptance": {"rule": rule, **acceptance(drawing, rule)}}


def acceptance(drawing, rule):
    if rule == "SYNTHETIC":
        return {"synthetic_rate": drawing.between(0.3, 1)}
    if rule == "TYPICAL" and drawing.chance(0.7):
        # 0 accepts every token with a share above 0.
        epsilon = 0.0 if drawing.chance(0.15) else drawing.between(0, 1)
        return {"typical_epsilon": epsilon, "typical_alpha": drawing.between(0.1, 3)}
    if rule == "RELAXED" and drawing.chance(0.7):
        return {"relaxed_top_n": drawing.random.randint(1, 5), "relaxed_delta": drawing.between(0, 1),
                "relaxed_in_thinking_only": drawing.chance(0.5)}
    return {}
