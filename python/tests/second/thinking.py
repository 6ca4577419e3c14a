"""Stretches of thinking: docs/history.md, What forbids, favours or forces tokens, `thinking_budget`, and ThinkingBudgetParams."""

FILTERS = ("temperature", "top_k", "top_p", "min_p")


def ends_with(tokens, end):
    return len(tokens) >= len(end) and tokens[len(tokens) - len(end) :] == list(end)


def stretch(text):
    """The tokens of the stretch that the text is in, or None."""
    rule = text.params.thinking_budget
    if rule is None:
        return None
    begin, tokens = None, text.tokens
    for count in range(1, len(tokens) + 1):
        if begin is None:
            begin = count if ends_with(tokens[:count], rule["start_token_ids"]) else None
        elif is_over(tokens[:count], begin, rule, count > len(text.prompt)):
            begin = None
    return None if begin is None else tokens[begin:]


def is_over(tokens, begin, rule, is_output):
    """Whether the stretch that begins at `begin` ends with the last token. Nothing is forced in a prompt, and an end sequence within
    forced tokens does not count."""
    following, inside = follows(tokens[begin:-1], rule), tokens[begin:]
    if is_output and following == tokens[-1]:
        return ends_with(inside, rule.get("forced_token_ids") or rule["end_token_ids"])
    return any(ends_with(tokens, end) for end in [rule["end_token_ids"], *rule.get("other_ends", ())])


def follows(inside, rule):
    """The next forced token in a stretch. If the stretch ends with the first forced tokens, the remaining ones follow."""
    forced_tokens = rule.get("forced_token_ids") or rule["end_token_ids"]
    said = max(count for count in range(len(forced_tokens)) if ends_with(inside, forced_tokens[:count]))
    return forced_tokens[said] if len(inside) >= rule["budget"] else None


def forced(text):
    """The next forced token in the stretch that the text is in, or None."""
    inside = stretch(text)
    return None if inside is None else follows(inside, text.params.thinking_budget)


def filters(text):
    """The filters that replace the text's parameters in the row after it (docs/history.md, Drawn otherwise while it thinks)."""
    own = {name: value for name, value in (text.params.thinking_budget or {}).items() if name in FILTERS}
    return own if own and stretch(text) is not None else {}
