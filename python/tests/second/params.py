"""The parameters of a text, and the other inputs of sampling."""

import dataclasses
import functools

from second import endings, numbers, thinking

# Defaults as on the wire; None means absent.
SAMPLERS = dict(
    sampler_order=(), temperature=1.0, temperature_end=1.0, temperature_tokens=0, min_eos_p=0.0, dynatemp_low=0.0, dynatemp_high=0.0,
    dynatemp_exponent=1.0, smoothing_factor=0.0, smoothing_curve=1.0, top_n_sigma=0.0, min_k=False, min_k_tau=3.0, top_h=0.0, top_k=0,
    top_p=1.0, min_p=0.0, typical_p=1.0, tfs=1.0, top_a=0.0, epsilon_cutoff=0.0, eta_cutoff=0.0, p_less=False, p_less_norm=False,
    xtc_probability=0.0, xtc_threshold=0.1, xtc_ignore_token_ids=(), xtc_expected=None, mirostat=0, mirostat_tau=5.0, mirostat_eta=0.1,
    adaptive_target=-1.0, adaptive_decay=0.9, top_p_decay=1.0, top_p_min=1e-6, top_p_reset_token_ids=(), infill=False, skew=0.0,
    min_keep=1)
HISTORY = dict(
    repetition_penalty=1.0, encoder_repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0, penalties_count_prompt=None,
    subtract_penalties_first=None, bias_after_penalties=None,
    penalty_last_n=0, penalty_decay_n=0, prompt_ignore_length=0, logit_bias=(), sequence_bias=(), allowed_token_ids=(),
    banned_token_ids=(), bad_words=(), token_ban_ranges=(), min_tokens=0, max_tokens=0, ignore_eos=False, stop_token_ids=(),
    no_repeat_ngram=None, length_penalty=None, dry_multiplier=0.0, dry_base=1.75, dry_allowed_length=2, dry_penalty_last_n=-1,
    dry_sequence_breakers=(), dry_sequence_breaker_texts=(), dry_max_ngram=0, dry_max_occurrences=0, dry_early_exit_match_len=0, forced_first_token=None,
    forced_last_token=None, stop_token_sequences=(), repetition_detection=None, thinking_budget=None)
DEFAULTS = {"engine": "CROUPIER", **SAMPLERS, **HISTORY, "kgw": None, "synthid": None, "gumbel": None, "acceptance": None,
            "proposer": None, "draft_length": None}


def as_sent(given):
    """Rounds every float to f32."""
    return {name: numbers.as_f32(value) if isinstance(value, float) else value for name, value in given.items()}


OF_SERVER = as_sent(DEFAULTS)


class Params(dict):
    """The given parameters as items, and all parameters as attributes, as on the wire."""

    def __init__(self, **given):
        unknown = given.keys() - DEFAULTS.keys()
        assert not unknown, unknown
        super().__init__(as_sent(given))

    def __getattr__(self, name):
        if name not in OF_SERVER:
            raise AttributeError(name)
        return self[name] if name in self else OF_SERVER[name]

    def __repr__(self):
        return f"Params({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def filtered_alone(self):
        """The parameters at temperature 1, with only top-k, top-p and min-p (docs/numbers.md, Verification, RELAXED)."""
        gone = SAMPLERS.keys() - {"top_k", "top_p", "top_p_decay", "top_p_min", "top_p_reset_token_ids", "min_p"}
        return Params(**{name: value for name, value in self.items() if name not in gone})

    def with_filters(self, given):
        """The parameters with these filters, whether or not a text thinks."""
        if self.thinking_budget is None:
            return self
        rule = {name: value for name, value in self.thinking_budget.items() if name not in thinking.FILTERS}
        return Params(**{**self, "thinking_budget": rule, **given})


@dataclasses.dataclass(frozen=True)
class Text:
    """The inputs of sampling besides the logits. `texts` are the texts of the vocabulary's tokens, for infill and DRY."""

    params: Params
    prompt: list
    output: list
    eos: list
    seed: int
    state: dict = dataclasses.field(default_factory=dict)
    texts: tuple = ()

    @property
    def position(self):
        return len(self.output)

    @property
    def tokens(self):
        return [*self.prompt, *self.output]

    @functools.cached_property
    def in_force(self):
        """The parameters of the row after the text (docs/history.md, Drawn otherwise while it thinks)."""
        return self.params.with_filters(thinking.filters(self))

    def ends(self):
        """The tokens that end the text, in the order of docs/sampling.md, Filling in."""
        return [*([] if self.params.ignore_eos else self.eos), *self.params.stop_token_ids]

    def behind(self, token, state):
        return dataclasses.replace(self, output=[*self.output, token], state=state)

    def finish(self, token):
        """How the text ends with this token, or "UNSPECIFIED"."""
        return endings.finish(self, token)
