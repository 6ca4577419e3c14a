"""Hugging Face transformers: `model.generate` with Croupier as the sampler.

    from croupier.integrations.huggingface import croupier_generate

    model.generate(**inputs, custom_generate=croupier_generate, croupier="unix:/run/croupier/croupier.sock", do_sample=True)

The loop is still that of transformers, with its caches, streamers, stopping criteria and compiled models. The sampling
fields of `GenerationConfig` are converted to `SamplingParams`. Fields that cannot be converted are refused by name.
Logits processors that do not come from the config run before.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .._params import as_wire, params_of
from ..client import Stream, connect
from ..errors import LogitsLost
from ..schema import pb
from . import _orders, needed

if TYPE_CHECKING:
    from .._forms import Parameters
    from .._types import Sequence

#: Fields that are refused, because they change tokens in a way that Croupier does not have. Each has the values that
#: change nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
    "constraints": (),
    "force_words_ids": (),
    "dola_layers": (),
    "use_mtp": (False,),
    "prompt_lookup_num_tokens": (),
    "assistant_early_exit": (),
    "guidance_scale": (1,),
    "remove_invalid_values": (False,),
    "watermarking_config": (),
    "output_scores": (False,),
}
_INSTEAD = {
    "prompt_lookup_num_tokens": "; use croupier.Speculation",
    "remove_invalid_values": "; a row with a NaN raises RowError",
    "watermarking_config": '; give croupier_params={"watermark": ...}',
    "output_scores": "; use output_logits",
}
#: Processors that Croupier replaces: the field that makes transformers add one, its values without one, and the
#: processor's attribute with the field's value, if it has one. A processor that the field does not explain is the
#: caller's own.
_REPLACED: dict[str, tuple[str, tuple[Any, ...], str | None]] = {
    "SequenceBiasLogitsProcessor": ("sequence_bias", (), None),
    "EncoderRepetitionPenaltyLogitsProcessor": ("encoder_repetition_penalty", (1,), None),
    "RepetitionPenaltyLogitsProcessor": ("repetition_penalty", (1,), "penalty"),
    "EncoderNoRepeatNGramLogitsProcessor": ("encoder_no_repeat_ngram_size", (0,), "ngram_size"),
    "NoRepeatNGramLogitsProcessor": ("no_repeat_ngram_size", (0,), "ngram_size"),
    "NoBadWordsLogitsProcessor": ("bad_words_ids", (), None),
    "MinLengthLogitsProcessor": ("min_length", (0,), "min_length"),
    "MinNewTokensLengthLogitsProcessor": ("min_new_tokens", (0,), "min_new_tokens"),
    "ForcedBOSTokenLogitsProcessor": ("forced_bos_token_id", (), None),
    "ForcedEOSTokenLogitsProcessor": ("forced_eos_token_id", (), None),
    "ExponentialDecayLengthPenalty": ("exponential_decay_length_penalty", (), None),
    "SuppressTokensLogitsProcessor": ("suppress_tokens", (), None),
    "SuppressTokensAtBeginLogitsProcessor": ("begin_suppress_tokens", (), None),
    "TemperatureLogitsWarper": ("temperature", (1,), "temperature"),
    "TopHLogitsWarper": ("top_h", (), "top_h"),
    "TopKLogitsWarper": ("top_k", (0,), "top_k"),
    "TopPLogitsWarper": ("top_p", (1,), "top_p"),
    "MinPLogitsWarper": ("min_p", (), "min_p"),
    "TypicalLogitsWarper": ("typical_p", (1,), "mass"),
    "EpsilonLogitsWarper": ("epsilon_cutoff", (0,), "epsilon"),
    "EtaLogitsWarper": ("eta_cutoff", (0,), None),
    # It changes no token.
    "LogitNormalization": ("renormalize_logits", (False,), None),
}
#: Further attributes of such a processor, with the values that generate gives them.
_USUAL: dict[str, Any] = {"prompt_ignore_length": None, "min_tokens_to_keep": 1, "filter_value": -float("inf")}
_WARPERS = ("temperature", "top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
#: Transformers adds such a warper only between 0 and 1, or below 1. What is off there must be set to off here.
_AS_OFF: dict[str, Callable[[float], float]] = {"top_p": lambda value: min(value, 1.0), "typical_p": lambda value: min(value, 1.0),
           "epsilon_cutoff": lambda value: value if 0 < value < 1 else 0.0, "eta_cutoff": lambda value: value if 0 < value < 1 else 0.0}
#: The values that generate uses or derives if nobody sets a field. They do not override a preset.
_DEFAULTS = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
             "repetition_penalty": 1.0, "min_tokens": 0}


def sampling_params(config: Any, input_length: int, *, is_encoder_decoder: bool = False) -> pb.SamplingParams:
    """The `SamplingParams` of a `GenerationConfig`, for texts that begin with `input_length` tokens. Raises
    `ValueError` for fields that cannot be converted.

    max_time and other stopping criteria are not part of it: generate checks them. Neither are eos tokens, which belong
    to the stream. Pass stop strings as `stopping_criteria=[StopStringCriteria(tokenizer, stop_strings)]`, because
    generate loses `tokenizer=` with a callable.
    """
    for name, neutral in _REFUSED.items():
        value = getattr(config, name, None)
        if value is not None and value not in neutral:
            raise ValueError(f"generation_config.{name} is {value!r}, which Croupier does not support{_INSTEAD.get(name, '')}")
    params = pb.SamplingParams(engine_order=pb.ENGINE_ORDER_TRANSFORMERS)
    if config.do_sample:
        for name in _WARPERS:
            value = getattr(config, name, None)
            if value is not None:
                setattr(params, name, as_wire(name, _AS_OFF[name](value) if name in _AS_OFF else value))
    else:
        params.temperature = 0
    _lengths(params, config, input_length)
    _bans(params, config, input_length)
    if config.repetition_penalty is not None:
        params.repetition_penalty = config.repetition_penalty
    for name, off in (("encoder_repetition_penalty", 1), ("encoder_no_repeat_ngram_size", 0)):
        if is_encoder_decoder and getattr(config, name, None) not in (None, off):
            raise ValueError(f"generation_config.{name} is set, which Croupier does not support for encoder-decoder models: it does not know the "
                             "encoder's tokens")
    if config.encoder_repetition_penalty not in (None, 1):
        params.encoder_repetition_penalty = config.encoder_repetition_penalty
    bias = config.sequence_bias or {}
    for tokens, value in bias.items() if isinstance(bias, dict) else bias:
        params.sequence_bias.add(token_ids=tokens, bias=value)
    return params


def _lengths(params: pb.SamplingParams, config: Any, input_length: int) -> None:
    # Without a limit there is none, whatever the server's defaults are.
    params.max_tokens = 0 if config.max_length is None else max(config.max_length - input_length, 1)
    least = max(config.min_new_tokens or 0, (config.min_length or 0) - input_length, 0)
    params.min_tokens = min(least, params.max_tokens) if params.max_tokens else least
    if config.forced_bos_token_id is not None and input_length == 1:
        params.forced_first_token = config.forced_bos_token_id
    if config.forced_eos_token_id is not None:
        forced = _tokens(config.forced_eos_token_id)
        if len(forced) != 1:
            raise ValueError(f"generation_config.forced_eos_token_id is {forced!r}, which Croupier does not support: give one token")
        params.forced_last_token = forced[0]
    if config.exponential_decay_length_penalty is not None:
        start, factor = config.exponential_decay_length_penalty
        params.length_penalty.start, params.length_penalty.factor = start, factor


# The least possible bias. No other logit is so small.
_LEAST_BIAS = -1e6


def _bans(params: pb.SamplingParams, config: Any, input_length: int) -> None:
    eos = _tokens(config.eos_token_id)
    for word in config.bad_words_ids or ():
        # As in transformers, eos may end a text.
        if len(word) > 1 or word[0] not in eos:
            params.bad_words.add(token_ids=word)
        if len(word) > 1:
            # As in transformers, a word may begin in the prompt, where bad_words does not look.
            params.sequence_bias.add(token_ids=word, bias=_LEAST_BIAS)
    params.banned_token_ids.extend(_tokens(config.suppress_tokens))
    if config.begin_suppress_tokens:
        start = 0 if input_length > 1 or config.forced_bos_token_id is None else 1
        params.token_ban_ranges.add(token_ids=_tokens(config.begin_suppress_tokens), start=start, length=1)
    for name, own in (("no_repeat_ngram_size", "size"), ("encoder_no_repeat_ngram_size", "prompt_size")):
        size = getattr(config, name, None)
        if size:
            setattr(params.no_repeat_ngram, own, size)


def _tokens(value: Any) -> list[int]:
    if value is None:
        return []
    # It may be a tensor, a list or a number.
    return [int(token) for token in np.atleast_1d(np.asarray(value)).tolist()]


def croupier_generate(model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any,
                      synced_gpus: bool = False, streamer: Any = None, croupier: str | Stream | None = None,
                      croupier_params: Parameters | None = None, croupier_seed: int | None = None, **model_kwargs: Any) -> Any:
    """For `model.generate(..., custom_generate=croupier_generate, croupier=...)`. `streamer` and `synced_gpus` work as
    usual.

    croupier: the server's address, or a `croupier.Stream` for the model's vocabulary and eos tokens, which is cheaper
    for many calls.
    croupier_params: a `SamplingParams`, or its fields as a dict, as `Stream.open` takes them. They take precedence over
    the generation config. With a preset, fields of the config that have transformers' default are not sent, except for
    do_sample and lengths.
    croupier_seed: the seed of the first text. The other texts have the seeds that follow. Default: drawn by torch, so
    `torch.manual_seed` decides.
    """
    torch, library = needed("torch", "torch", "croupier_generate"), needed("transformers", "transformers", "croupier_generate")
    if croupier is None:
        raise ValueError("croupier is missing: give generate croupier=, the server's address or a croupier.Stream")
    kept = _kept_back()
    streamer, synced_gpus = streamer or kept.get("streamer"), synced_gpus or _is_synced(model, kept.get("synced_gpus"))
    if model_kwargs.pop("assistant_model", None) is not None or kept.get("assistant_model") is not None:
        raise ValueError("assistant_model is given, which Croupier does not support; to draft with a model use croupier.Speculation")
    config = generation_config
    params = sampling_params(config, input_ids.shape[1], is_encoder_decoder=model.config.is_encoder_decoder)
    _merge(params, params_of({} if croupier_params is None else croupier_params, {}))
    if croupier_seed is None:
        croupier_seed = int(torch.randint(2**62, ()).item())
    mask = None if model.config.is_encoder_decoder else model_kwargs.get("attention_mask")
    sampler = _Sampler(torch, croupier, params, croupier_seed, _prompts(input_ids, mask), config)
    others = [each for each in logits_processor if not _is_replaced(each, config)]
    # Only one token is left, so it is the largest.
    greedy = copy.copy(config)
    greedy.do_sample = False
    try:
        return type(model)._sample(
            model, input_ids, logits_processor=library.LogitsProcessorList([*others, sampler]),
            stopping_criteria=library.StoppingCriteriaList([*stopping_criteria, sampler.finished]), generation_config=greedy,
            synced_gpus=synced_gpus, streamer=streamer, **model_kwargs)
    finally:
        sampler.close()


def _kept_back() -> dict[str, Any]:
    """Arguments of `generate` that it does not pass on to a callable, because `_sample` has parameters of the same
    names, or because generate handles them itself. They would be silently ignored."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "generate" and "custom_generate" in frame.f_locals:
            return {name: frame.f_locals.get(name) for name in ("streamer", "synced_gpus", "assistant_model")}
        frame = frame.f_back
    return {}


def _is_synced(model: Any, asked: bool | None) -> bool:
    """Whether other processes wait for this one's forward passes, determined as transformers does."""
    if asked is not None:
        return asked
    found = getattr(model, "_extract_generation_mode_kwargs", None)
    return bool(found and found(None, {}, None, None, None).get("synced_gpus"))


def _merge(params: pb.SamplingParams, chosen: pb.SamplingParams) -> None:
    """Overrides what the config sets by what the caller has chosen."""
    fields = [descriptor.name for descriptor, _ in chosen.ListFields()]
    for name in ("logprobs", "report"):
        if name in fields:
            raise ValueError(f"croupier_params has {name}, which generate does not return; leave it out, or use output_logits")
    if chosen.preset:
        # The preset's order applies, or else the stream's.
        for name in ("engine_order", *(name for name, default in _DEFAULTS.items() if getattr(params, name) == default)):
            params.ClearField(name)
    elif not chosen.engine_order:
        # With a place for the samplers that transformers does not have.
        params.sampler_order.extend(_orders.TRANSFORMERS)
    for name in fields:
        # Lists and messages replace existing ones.
        params.ClearField(name)
    params.MergeFrom(chosen)


def _is_replaced(processor: Any, config: Any) -> bool:
    """Whether the processor exists because the config says so. A processor that the caller gives replaces the one in
    transformers' list. In that case the config's value would be used for sampling, which is not what transformers
    does."""
    kind = type(processor).__name__
    field, off, attribute = _REPLACED.get(kind, ("", (), None))
    value = getattr(config, field, None) if field else None
    if value is None or value in off or field in _WARPERS and not config.do_sample:
        return False
    has = _USUAL if attribute is None else {attribute: value} | _USUAL
    for name, usual in has.items():
        found = getattr(processor, name, usual)
        # A tensor is generate's own: it says how much of each text is padding, which Croupier never receives.
        if not hasattr(found, "shape") and found != usual:
            raise ValueError(f"logits_processor has a {kind} with {name} {found!r}, and "
                             f"generation_config.{field} is {value!r}: give only one of them, the other would be ignored")
    return True


def _prompts(input_ids: Any, mask: Any) -> list[list[int]]:
    """The beginnings of the texts, without padding."""
    rows: list[list[int]] = input_ids.tolist()
    if mask is None or tuple(mask.shape) != tuple(input_ids.shape):
        return rows
    return [[token for token, seen in zip(row, visible) if seen] for row, visible in zip(rows, mask.tolist())]


class _Sampler:
    """A logits processor that leaves one token of each row."""

    def __init__(self, torch: Any, where: str | Stream, params: pb.SamplingParams, seed: int, prompts: list[list[int]], config: Any) -> None:
        self.torch, self.where, self.params, self.seed, self.prompts = torch, where, params, seed, prompts
        self.eos = _tokens(config.eos_token_id)
        pad = _tokens(config.pad_token_id)
        self.pad = pad[0] if pad else 0
        self.stream: Stream | None = None
        self.texts: list[Sequence] = []
        #: Texts that a stopping criterion ended.
        self.stopped: set[int] = set()

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if self.stream is None:
            self._open(scores.shape[-1])
        else:
            last = input_ids[:, -1].tolist()
            self.stopped |= {at for at, text in enumerate(self.texts) if not text.finish_reason and text.tokens[-1] != last[at]}
        going = [at for at, text in enumerate(self.texts) if not text.finish_reason and at not in self.stopped]
        if going:
            self._sample(scores if len(going) == len(self.texts) else scores[going], [self.texts[at] for at in going])
        chosen = [self.texts[at].tokens[-1] if at in going else self.pad for at in range(len(self.texts))]
        left = self.torch.full_like(scores, -float("inf"))
        return left.scatter_(1, self.torch.tensor(chosen, device=scores.device)[:, None], 0.0)

    def finished(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """A stopping criterion: texts that Croupier has ended."""
        done = [bool(text.finish_reason) for text in self.texts]
        return self.torch.tensor(done, device=input_ids.device, dtype=self.torch.bool)

    def close(self) -> None:
        """Closes the texts."""
        if self.stream is None:
            return
        if self.stream is not self.where:
            self.stream.end()
            return
        # An interrupted step would be in the way of the next call's steps.
        self.stream.give_up()
        for text in self.texts:
            self.stream.close(text)

    def _open(self, vocab_size: int) -> None:
        if isinstance(self.where, str):
            order = pb.SamplingParams(engine_order=pb.ENGINE_ORDER_TRANSFORMERS, sampler_order=_orders.TRANSFORMERS)
            # One slot is enough, because a step's tokens are taken before the next is written.
            self.stream = connect(self.where, vocab_size, eos_token_ids=self.eos, max_rows=len(self.prompts), slots=1, default_params=order)
        else:
            config = self.where._session.config
            if config.vocab_size != vocab_size or sorted(config.eos_token_ids) != sorted(self.eos):
                raise ValueError(f"the stream has vocab_size {config.vocab_size} and eos_token_ids {list(config.eos_token_ids)}, but the model has "
                                 f"{vocab_size} and {self.eos}")
            self.stream = self.where
        for at, prompt in enumerate(self.prompts):
            # A preset or the server's defaults may turn on a sampler that learns, and the server may be killed.
            own = pb.SamplingParams(seed=(self.seed + at) % 2**64, return_sampler_state=True)
            # A seed in croupier_params applies to all texts.
            own.MergeFrom(self.params)
            self.texts.append(self.stream.open(prompt=prompt, params=own))

    def _sample(self, scores: Any, texts: list[Sequence]) -> None:
        assert self.stream is not None
        while True:
            try:
                self.stream.sample(self._rows(self.stream, scores), texts)
                return
            except LogitsLost:
                continue

    def _rows(self, stream: Stream, scores: Any) -> Any:
        if stream.data_path == "device_memory":
            return scores.contiguous()
        rows = stream.rows(len(scores))
        if rows.array.dtype == np.float32:
            # Copy directly to where the server reads it.
            self.torch.from_numpy(rows.array).copy_(scores)
            return rows
        stream.discard(rows)
        return scores.float().cpu().numpy()
