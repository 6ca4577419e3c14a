"""Infill: docs/sampling.md, Filling in."""

import numpy as np


def infill(left, text):
    """docs/sampling.md, Filling in, its four steps."""
    ends, count = set(text.ends()), len(left.ids)
    ending = [i for i in range(count) if left.ids[i] in ends]
    of_ends = sum(left.masses[i] for i in ending)
    if 3 * count * of_ends > left.total - of_ends:
        keep_enough(left, ending, text)
        return
    counts = merged(left, ends, text.texts)
    kept = [i for i in counts if i in ending or 5 * counts[i] >= left.total]
    others = len([i for i in kept if i not in ending])
    if others == 0:
        end_the_text(left, text)
        return
    together = sum(counts[i] for i in kept)
    keep_enough(left, [i for i in kept if i in ending or (others + 1) * counts[i] >= together], text)


def keep_enough(left, places, text):
    """docs/sampling.md, Filling in, `min_keep`."""
    if len(places) >= min(text.params.min_keep, len(left.ids)):
        left.keep(places)


def merged(left, ends, texts):
    """Step 2: the candidates that remain after merging, with their masses."""
    counts = dict(enumerate(left.masses))
    own = {i: texts[token] for i, token in enumerate(left.ids) if token not in ends and token < len(texts)}
    for one in own:
        for other in own:
            if other == one or one not in counts or other not in counts or not own[other].startswith(own[one]):
                continue
            gone, stays = (one, other) if counts[other] > counts[one] else (other, one)
            counts[stays] += counts.pop(gone)
    return counts


def end_the_text(left, text):
    """Step 3: the first token that ends the text and may be emitted, even if filters removed it."""
    first = next((token for token in text.ends() if left.row[token] > -np.inf), None)
    if first is not None and min(text.params.min_keep, len(left.ids)) <= 1:
        left.set([first], left.row[[first]], left.temperature)
