"""How texts end: docs/history.md, What forbids, favours or forces tokens."""

from second.thinking import ends_with


def finish(text, token):
    """Why the text ends with this token: the first reason that holds (Endings)."""
    params, output = text.params, [*text.output, token]
    if token in params.stop_token_ids:
        return "STOP_TOKEN"
    if token in text.eos and not params.ignore_eos:
        return "EOS"
    if len(output) >= params.min_tokens:
        if any(ends_with(output, stop) for stop in params.stop_token_sequences):
            return "STOP_SEQUENCE"
        if is_loop(output, params.repetition_detection):
            return "REPETITION"
    return "MAX_TOKENS" if 0 < params.max_tokens <= len(output) else "UNSPECIFIED"


def is_loop(output, rule):
    """Whether the output ends with repetitions of a pattern (RepetitionDetectionParams)."""
    if rule is None:
        return False
    sizes = range(rule.get("min_pattern_size", 1), rule["max_pattern_size"] + 1)
    return any(ends_with(output, output[-size:] * rule["min_count"]) for size in sizes if size <= len(output))
