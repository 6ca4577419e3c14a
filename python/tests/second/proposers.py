"""The sidecar's own proposals: docs/speculative.md, Proposers in the sidecar, and ProposerParams of the schema."""

from second.numbers import as_f32, f32

MOST_VOTERS = 64
DEFAULTS = {
    "NGRAM": dict(max_draft_tokens=8, min_match=2, max_match=5),
    "SUFFIX": dict(max_draft_tokens=8, min_match=1, max_match=24, min_token_prob=0.1)}
# Stands behind what is predicted.
END = None


def room(text):
    """The number of draft tokens that `max_tokens` leaves room for. The last token needs no draft (WorkResult.proposed_token_ids)."""
    return text.params.max_tokens - text.position - 1 if text.params.max_tokens else 1 << 32


def proposed(text, advised, predicted=()):
    """Proposed draft tokens after the text, whose output was predicted, at most as many as advised."""
    rule = text.params.proposer
    if rule is None:
        return []
    rule = {**DEFAULTS[rule["kind"]], **rule}
    most = min(rule["max_draft_tokens"], room(text), *([] if advised is None else [advised]))
    # As if the prompt had been continued with what is predicted before.
    tokens = [*text.prompt[-rule["max_match"] :], *predicted, END, *text.tokens] if predicted else text.tokens
    length, places = longest_match(tokens, rule)
    if not places:
        return []
    return followed(tokens, places[0], most) if rule["kind"] == "NGRAM" else voted(tokens, places, min(most, length), rule)


def longest_match(tokens, rule):
    """The length of the longest match, and the places after its occurrences, the latest first."""
    for length in range(min(rule["max_match"], len(tokens) - 1), rule["min_match"] - 1, -1):
        places = [place for place in range(len(tokens) - 1, length - 1, -1) if tokens[place - length : place] == tokens[-length:]]
        if places:
            return length, places
    return 0, []


def followed(tokens, place, count):
    """Prompt lookup. A match that reaches the end of the text continues in the draft."""
    draft = []
    for i in range(place, place + count):
        token = [*tokens, *draft][i]
        if token is END:
            break
        draft.append(token)
    return draft


def voted(tokens, places, count, rule):
    """Suffix matching."""
    voters, draft = places[:MOST_VOTERS], []
    everyone = len(voters)
    while len(draft) < count:
        votes = [[*tokens, *draft][place + len(draft)] for place in voters]
        # Of tokens with equally many votes, the one that was seen last wins.
        winner = max(votes, key=votes.count)
        if winner is END or f32(votes.count(winner)) / f32(everyone) < f32(as_f32(rule["min_token_prob"])):
            break
        voters = [place for place, vote in zip(voters, votes) if vote == winner]
        draft.append(winner)
    return draft
