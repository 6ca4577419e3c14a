"""DRY: docs/history.md, DRY."""

from second.numbers import f32

WINDOW = 32768
MOST = 1e30


def power(base, exponent):
    """The power by repeated squaring, from the exponent's lowest bit up (docs/numbers.md, From logit to adjusted logit)."""
    product = 1.0
    while exponent:
        if exponent & 1:
            product *= base
        base *= base
        exponent >>= 1
    return product


def penalties(text):
    """DRY's penalty for each token (docs/numbers.md, From logit to adjusted logit; docs/history.md, DRY)."""
    params = text.params
    if params.dry_multiplier == 0:
        return {}
    spared = {word[0] for word in params.dry_sequence_breakers if len(word) == 1}
    found = {}
    for token, length in longest_repeats(text).items():
        is_breaker = token in spared or any(word in spelling(text, token) for word in params.dry_sequence_breaker_texts)
        if params.engine == "KOBOLD_CPP" or not is_breaker:
            found[token] = f32(min(params.dry_multiplier * power(params.dry_base, length - params.dry_allowed_length), MOST))
    return found


def longest_repeats(text):
    """For each token that would continue a repeat, the length of the longest one (docs/history.md, DRY, and Engines' rules)."""
    params, tokens = text.params, text.tokens
    window = WINDOW if params.dry_penalty_last_n == -1 else params.dry_penalty_last_n
    begin = max(0, len(tokens) - window)
    limit = behind_last_breaker(text, begin)
    if params.engine == "KOBOLD_CPP" and limit <= params.dry_allowed_length and limit < len(tokens) - begin:
        return {}
    if params.dry_max_ngram:
        limit = min(limit, params.dry_max_ngram + 1)
    found = {}
    for place, length in repeats(tokens, begin, limit, params):
        if length >= params.dry_allowed_length:
            follower = tokens[place + 1]
            found[follower] = max(found.get(follower, 0), length)
    return found


def repeats(tokens, begin, limit, params):
    """Earlier places of the last token, the latest first, with the length of each repeat (docs/history.md, DRY, bounds)."""
    occurrences = 0
    for place in range(len(tokens) - 2, begin - 1, -1):
        if tokens[place] != tokens[-1]:
            continue
        occurrences += 1
        if params.dry_max_occurrences and occurrences > params.dry_max_occurrences:
            return
        length = 0
        while length < limit and place - length >= begin and tokens[place - length] == tokens[-1 - length]:
            length += 1
        yield place, length
        if params.dry_early_exit_match_len and length >= max(2, params.dry_early_exit_match_len):
            return


def behind_last_breaker(text, begin):
    """The number of tokens in the window after the breaker that ends last (docs/history.md, DRY, Breakers)."""
    tokens, breakers = text.tokens, text.params.dry_sequence_breakers
    for end in range(len(tokens), begin, -1):
        if any(len(word) <= end and tokens[end - len(word) : end] == list(word) for word in breakers) or ends_a_text(text, end):
            return len(tokens) - end
    return len(tokens) - begin


def ends_a_text(text, end):
    """Whether a breaker that is a text ends in the last of the first `end` tokens (docs/history.md, DRY, Breakers)."""
    if not text.params.dry_sequence_breaker_texts:
        return False
    spelled = ""
    for token in text.tokens[:end]:
        spelled = spelled + spelling(text, token) if spelling(text, token) else ""
    ends = range(len(spelled) - len(spelling(text, text.tokens[end - 1])) + 1, len(spelled) + 1)
    return any(spelled[:to].endswith(word) for to in ends for word in text.params.dry_sequence_breaker_texts)


def spelling(text, token):
    return text.texts[token] if token < len(text.texts) else ""
