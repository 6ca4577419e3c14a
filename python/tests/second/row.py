"""The result of a row: docs/numbers.md and docs/sampling.md, From logits to token."""

import dataclasses
import functools

import numpy as np

from second import adjust, filters, infill, marks, mirostat, numbers, orders, reshaping
from second.candidates import Candidates

SAMPLERS = {
    sampler.__name__: sampler
    for sampler in (
        filters.min_eos_p, reshaping.temperature, reshaping.dynamic_temperature, reshaping.smoothing, filters.top_n_sigma, filters.min_k,
        filters.top_h, filters.top_k, filters.top_p, filters.min_p, filters.typical_p, filters.tfs, filters.top_a, filters.epsilon_cutoff,
        filters.eta_cutoff, filters.p_less, reshaping.xtc, mirostat.mirostat, infill.infill, reshaping.adaptive_p, reshaping.skew)
}


@dataclasses.dataclass
class Result:
    """A row's token, and the data for reporting about it. `left` holds the candidates that the token was drawn from, `logits` the logits
    as sent, `adjusted` the input of the samplers. `text` and `mask` are those that the row was sampled with."""

    status: str
    token: int = -1
    left: Candidates = None
    logits: np.ndarray = None
    adjusted: np.ndarray = None
    temperature: float = 1.0
    text: object = None
    mask: np.ndarray = None

    @functools.cached_property
    def raw(self):
        return Candidates(self.logits)

    @functools.cached_property
    def tempered(self):
        return Candidates(self.adjusted, self.temperature or 1.0)

    def logprobs(self, mode):
        """docs/numbers.md, Logprobs."""
        return {"RAW": self.raw, "PROCESSED": self.left, "TEMPERED": self.tempered}[mode].logprobs()

    def rank(self, mode, token):
        """docs/numbers.md, Logprobs."""
        ordered = self.raw if mode == "RAW" else self.tempered
        removed = np.flatnonzero(np.isneginf(ordered.row)).tolist()
        return [*ordered.ids, *removed].index(token) + 1

    def survivors(self):
        """The tokens with a mass above 0, in the token order of the last logits (docs/sampling.md, Why not this token)."""
        return [token for token, mass in zip(self.left.ids, self.left.masses) if mass]


def chain(adjusted, text):
    """What the samplers, applied in order, leave of the adjusted logits (docs/sampling.md, Order)."""
    left = Candidates(adjusted)
    if text.params.engine in orders.FIRST_TOKENS:
        left.keep_first(orders.FIRST_TOKENS[text.params.engine])
    for name in orders.steps(text.in_force):
        before = left.ids
        SAMPLERS[name](left, text)
        for token in set(before) - set(left.ids):
            left.gone.setdefault(token, name)
    if text.params.synthid is not None:
        left.remember("synthid")
        marks.tournament(left, text)
    return left


def greedy(adjusted):
    """The first token in token order, with probability 1 (docs/numbers.md, From adjusted logit to mass)."""
    left = Candidates(adjusted)
    left.keep_first(1)
    return left


def before_skew(left, params):
    """The distribution that is drawn from: if a skew is the last step, the one before it (docs/numbers.md, Draw)."""
    return left.before["skew"] if is_skewed(left, params) else (left.ids, left.masses, left.total)


def is_skewed(left, params):
    """Whether a skew is the last step. It never is in a greedy row."""
    return "skew" in left.before and orders.steps(params)[-1] == "skew" and params.synthid is None


def drawn(left, text, number):
    """docs/numbers.md, Draw."""
    token = marks.race(left, text) if text.params.gumbel is not None else None
    if token is not None:
        return token
    if is_skewed(left, text.in_force):
        return numbers.draw_skewed(*before_skew(left, text.in_force), number, text.params.skew)
    return numbers.draw(left.ids, left.masses, left.total, number)


def sample(logits, text, mask=None):
    """docs/sampling.md, From logits to token."""
    adjusted, status = adjust.adjust(logits, text, mask)
    if status != "OK":
        return Result(status)
    temperature = orders.temperature(text.in_force, text.position)
    told = dict(logits=logits, adjusted=adjusted, temperature=temperature, text=text, mask=mask)
    if temperature == 0:
        left = greedy(adjusted)
        return Result(status, left.ids[0], left, **told)
    left = chain(adjusted, text)
    token = drawn(left, text, numbers.uniform(text.seed, text.position, numbers.DRAW))
    return Result(status, token, left, **told)


def behind(text, result, token):
    """The text with this token, drawn or not, and with the updated states of samplers (docs/sampling.md, Samplers that remember)."""
    is_greedy = orders.temperature(text.in_force, text.position) == 0
    state = {} if is_greedy else mirostat.learned(text, token, result.left, before_skew(result.left, text.in_force))
    return text.behind(token, state)


def distribution(result):
    """The masses by token, and their total."""
    left = result.left
    return {token: mass for token, mass in zip(left.ids, left.masses) if mass}, left.total
