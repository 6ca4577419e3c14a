"""SGLang: a sampler backend that lets Croupier choose the tokens.

    CROUPIER_SGLANG_ADDRESS=unix:/run/croupier/croupier.sock python -m sglang.launch_server --sampling-backend croupier ...

The package's entry point in `sglang.srt.plugins` registers the backend in each of SGLang's processes if that variable
is set. In a program of your own, call `register(address)`.

SGLang does not tell its sampler which request a row belongs to, nor what came before, so each row is a text of its own.
Temperature, top_k, top_p, min_p and seed are the request's. Penalties, grammars and logit_bias are SGLang's and come
before. Other parameters that need no history come from the request's `custom_params["croupier"]`, as fields of
`SamplingParams`. This works only if custom logit processors are enabled and the request has one, because SGLang passes
custom_params on only then. A request whose parameters are wrong is aborted, which its client sees as HTTP 400. A
request with return_sampling_mask is aborted too, which its client sees as HTTP 500.

It does not work with speculative decoding, whose verification draws tokens without SGLang's sampler.
"""

from __future__ import annotations

import http
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from .._types import Sequence
from ..client import Stream
from ..errors import LogitsLost, OpenError, RowError
from ..schema import pb
from . import _orders, needed
from ._extra import parsed
from ._logits import connected, rows_of
from ._seeds import MASK, mixed

_sampler = needed("sglang.srt.layers.sampler", "sglang", __name__)
_log = logging.getLogger(__name__)
#: The range of temperatures above 0 that the server accepts.
_LEAST_TEMPERATURE, _MOST_TEMPERATURE = 1e-5, 1e5
#: Parameters that do not need the tokens before the row.
_WITHOUT_HISTORY = frozenset((
    "temperature top_k top_p min_p allowed_token_ids banned_token_ids seed dynatemp_low dynatemp_high dynatemp_exponent smoothing_factor "
    "smoothing_curve typical_p tfs top_a top_n_sigma min_k min_k_tau epsilon_cutoff eta_cutoff top_h xtc_probability xtc_threshold "
    "xtc_ignore_token_ids min_keep sampler_order engine_order p_less p_less_norm logit_bias skew xtc_expected").split())


def extra_params(custom: Any) -> pb.SamplingParams | None:
    """The `SamplingParams` in a request's custom_params. Raises `ValueError` if they are wrong or need the tokens
    before."""
    extra = (custom or {}).get("croupier")
    if extra is None:
        return None
    params = parsed(extra, 'custom_params["croupier"]')
    for descriptor, _ in params.ListFields():
        if descriptor.name not in _WITHOUT_HISTORY:
            instead = "; give the request json_schema, regex or ebnf" if descriptor.name == "grammar" else ""
            raise ValueError(f'custom_params["croupier"] has {descriptor.name}, which needs earlier tokens or is handled by SGLang itself{instead}')
    return params


if TYPE_CHECKING:
    from sglang.srt.layers.sampler import Sampler
else:
    Sampler = _sampler.Sampler


class CroupierSampler(Sampler):  # type: ignore[misc, unused-ignore]  # Where there is no SGLang it is Any.
    """Replaces SGLang's `Sampler`.

    Each tensor-parallel rank has a stream of its own. Requests with a sampling_seed (deterministic inference), or with
    a seed in their custom_params, get the token of that seed and position, whatever else is in the batch. The others
    get the token of `random_seed`, which is the same on all tensor-parallel ranks, and the number of the step.

    max_rows: rows of one message; larger batches are sent as several. Default: as many as the first batch has, and at
    least 256, as far as the server has room for them.
    """

    def __init__(self, address: str, data_path: str = "auto", random_seed: int = 0, reconnect_within: float = 30.0,
                 max_rows: int | None = None) -> None:
        if algorithm := _speculative_algorithm():
            raise ValueError(f"--speculative-algorithm is {algorithm}, but SGLang does not use its sampler when it verifies drafts: leave "
                             "it out, or choose another --sampling-backend")
        super().__init__()
        self.torch = needed("torch", "torch", type(self).__name__)
        self._address = address
        self._options: dict[str, Any] = dict(data_path=data_path, reconnect_within=reconnect_within, max_rows=max_rows)
        self._seed, self._steps, self._is_amid, self._has_told_of_masks = random_seed, 0, False, False
        # Connected in the process that samples. It is set in this way so that torch.nn does not treat it as an
        # attribute.
        self.__dict__["_stream"] = None

    def forward(self, logits_output: Any, sampling_info: Any, return_logprob: bool, top_logprobs_nums: Any, token_ids_logprobs: Any,
                positions: Any, *, logprob_logits: Any = None) -> Any:
        """As `Sampler.forward`: returns the next token ids, and puts logprobs into `logits_output`."""
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        tokens = self._choose(logits, sampling_info, positions)
        if return_logprob:
            base = logits if logprob_logits is None else self._preprocess_logits(logprob_logits, sampling_info)
            # As in SGLang: raw logprobs if all requests are greedy or the setting says so, else at the request's
            # temperature.
            if not (sampling_info.is_all_greedy or getattr(_sampler, "SGLANG_RETURN_ORIGINAL_LOGPROB", False)):
                base = base / sampling_info.temperatures
            logprobs = self.torch.nn.functional.log_softmax(base, dim=-1)
            found = self.output_logprob_processor.compute_logprobs(logprobs, top_logprobs_nums, token_ids_logprobs, tokens)
            found.write_output_to(logits_output)
        self._sync_token_ids_across_tp(tokens, sampling_info)
        asking = getattr(sampling_info, "sampling_mask_batch_indices", None)
        if asking is not None:
            self._give_no_masks(logits_output, len(asking))
        return tokens

    def _give_no_masks(self, logits_output: Any, count: int) -> None:
        """Ends requests with return_sampling_mask, and no others: SGLang ends such a request if it gets no mask."""
        if not self._has_told_of_masks:
            self._has_told_of_masks = True
            _log.warning("return_sampling_mask is not supported by the sampling backend croupier: SGLang aborts requests that have it")
        if (_parallel("pp_size") or 1) > 1:
            # Other stages of a pipeline expect only a mask, and fail if they receive nothing.
            torch, device = self.torch, logits_output.next_token_logits.device
            logits_output.sampling_mask_output = _sampler.SamplingMaskOutput(
                token_ids=torch.tensor([[0]] * count, dtype=torch.int32, device=device),
                lengths=torch.tensor([0] * count, dtype=torch.int32, device=device),
                selected_logprobs=torch.tensor([0] * count, dtype=torch.float32, device=device),
                support_logprobs=None,
                statuses=torch.tensor([int(_sampler.SamplingMaskStatus.INVALID)] * count, dtype=torch.int32, device=device))

    def _choose(self, logits: Any, info: Any, positions: Any) -> Any:
        count = len(logits)
        self._steps += 1
        if not count:
            return self.torch.tensor([], dtype=self.torch.int64, device=logits.device)
        stream = self._stream_for(count, logits.shape[-1])
        custom = [*(info.custom_params or ()), *[None] * count][:count]
        extra = [self._extra(each) for each in custom]
        plain = self._params(logits.shape[-1], info, self._seeds(info, positions, extra))
        self._is_amid = True
        tokens, why = self._tokens(stream, logits, [_merged(*pair) for pair in zip(plain, extra)])
        left = [row for row, token in enumerate(tokens) if token is None]
        if left:
            # A request's other parameters must not end the engine, which wants a token for the request even if that is
            # aborted.
            again, still = self._tokens(stream, logits[left], [_merged(plain[row], None) for row in left], is_plain=True)
            for row, token, reason in zip(left, again, still):
                tokens[row] = _largest(logits[row : row + 1]) if token is None else token
                if token is None:
                    _make_do(custom[row], reason)
                elif extra[row] is not None:
                    _abort(custom[row], why[row])
        self._is_amid = False
        return self.torch.tensor(tokens, dtype=self.torch.int64, device=logits.device)

    def _tokens(self, stream: Stream, logits: Any, params: list[pb.SamplingParams], is_plain: bool = False) -> tuple[list[int | None], list[str]]:
        """The token of each row, and why it has none. Raises where the server refuses even a plain text."""
        texts: dict[int, Sequence] = {}
        why, failures = ["no token"] * len(params), {}
        try:
            for row, each in enumerate(params):
                try:
                    texts[row] = stream.open(params=each)
                except ValueError as error:
                    # The text is too large for a message.
                    why[row] = str(error)
            if texts:
                self._sample(stream, logits if len(texts) == len(params) else logits[list(texts)], list(texts.values()))
        except (OpenError, RowError) as error:
            if is_plain and isinstance(error, OpenError):
                raise
            failures = dict(error.failures)
        finally:
            _clear(stream)
        for row, text in texts.items():
            why[row] = str(failures.get(text.id, why[row]))
        return [texts[row].tokens[0] if row in texts and texts[row].tokens else None for row in range(len(params))], why

    @staticmethod
    def _extra(custom: Any) -> pb.SamplingParams | None:
        try:
            return extra_params(custom)
        except ValueError as error:
            _abort(custom, str(error))
            return None

    def _stream_for(self, count: int, vocab_size: int) -> Stream:
        stream: Stream | None
        stream, self.__dict__["_stream"] = self.__dict__["_stream"], None
        if stream is not None and self._is_amid:
            # Whoever handles the interruption may hold the step's rows, and with them the only slot.
            stream.end()
            stream = None
        if stream is None:
            # Nothing of a row continues in the next step, so nothing is lost with a stream. It is not known how large
            # batches will become.
            ranks = (_parallel("tp_size") or 1) * (_parallel("dp_size") or 1)
            stream, self._max_rows = connected(self._address, vocab_size, max(count, 256), ranks, default_params=_stream_params(),
                                               **self._options)
        self._is_amid, self.__dict__["_stream"] = False, stream
        return stream

    def _seeds(self, info: Any, positions: Any, extra: list[pb.SamplingParams | None]) -> list[int]:
        """The seed of each row. Each row is a text of its own, so a request's seed must give another seed at each
        position."""
        own = [None] * len(extra) if info.sampling_seed is None else info.sampling_seed.tolist()
        own = [each.seed if each is not None and each.HasField("seed") else seed for each, seed in zip(extra, own)]
        # Positions are on the GPU, so they are read only if one is needed.
        places = [0] * len(own) if own.count(None) == len(own) else positions.tolist()
        step = mixed(self._seed, self._steps)
        return [mixed(step, row) if seed is None else mixed(seed & MASK, place) for row, (seed, place) in enumerate(zip(own, places))]

    def _params(self, vocab_size: int, info: Any, seeds: list[int]) -> list[pb.SamplingParams]:
        temperatures, top_ks = info.temperatures.reshape(-1).tolist(), info.top_ks.tolist()
        top_ps, min_ps = info.top_ps.tolist(), info.min_ps.tolist()
        params = []
        for row, seed in enumerate(seeds):
            # SGLang accepts any number above 0. Croupier uses the nearest one in its range: near either end only one
            # token is left, or there is no difference. A NaN, which Python's JSON allows and which is not below 0
            # either, becomes the least temperature: as the second argument of max it loses all comparisons.
            temperature = min(max(_LEAST_TEMPERATURE, temperatures[row]), _MOST_TEMPERATURE)
            own = pb.SamplingParams(seed=seed, temperature=temperature, top_p=top_ps[row], min_p=min_ps[row])
            # 1 is greedy. More than the vocabulary has means all.
            own.top_k = top_ks[row] if 0 < top_ks[row] < vocab_size else 0
            if top_ks[row] == 1:
                own.temperature = 0
            params.append(own)
        return params

    def _sample(self, stream: Stream, logits: Any, texts: list[Sequence]) -> None:
        while True:
            try:
                stream.sample(rows_of(self.torch, stream, self._address, logits, self._max_rows), texts)
                return
            except LogitsLost:
                continue


def _clear(stream: Stream) -> None:
    """Leaves nothing for the next step. An interrupted step would be in its way, and no text continues in it. All open
    texts are closed, because if one text could not be opened, nobody has the others."""
    stream.give_up()
    for text in list(stream.sequences.values()):
        stream.close(text)


def _stream_params() -> pb.SamplingParams:
    """The parameters that apply if a request sets nothing else: SGLang's order with a place for every sampler, whatever
    the server's defaults are."""
    params = _orders.without_ends()
    params.MergeFrom(pb.SamplingParams(engine_order=pb.ENGINE_ORDER_CROUPIER, sampler_order=_orders.SGLANG))
    return params


def _merged(plain: pb.SamplingParams, extra: pb.SamplingParams | None) -> pb.SamplingParams:
    """The first parameters, overridden by the second ones. Only the seed stays, because it is already that of the
    position."""
    params = pb.SamplingParams()
    params.CopyFrom(plain)
    if extra is not None:
        for descriptor, _ in extra.ListFields():
            params.ClearField(descriptor.name)
        params.MergeFrom(extra)
        params.seed = plain.seed
    if params.min_p > 0 and not params.sampler_order and not params.engine_order:
        params.sampler_order.extend(_orders.SGLANG_WITH_MIN_P)
    return params


def _abort(custom: Any, why: str) -> None:
    """Ends a request whose custom_params are wrong."""
    why = f'custom_params["croupier"]: {why}'
    if _end(custom, why, http.HTTPStatus.BAD_REQUEST, "BadRequestError"):
        _log.error("a request was aborted: %s", why)
    else:
        _log.error("a token was sampled without custom_params, because this SGLang does not say which request they belong to: %s", why)


def _make_do(custom: Any, why: str) -> None:
    """Ends a request whose row has no token, for example because of a NaN, if the request is known. SGLang names it
    only if it has custom_params and a logit processor of its own, so other requests have to continue."""
    if _end(custom, f"a row has no token: {why}", http.HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError"):
        _log.error("a request was aborted, because its row has no token: %s", why)
    else:
        _log.error("a row has no token, and SGLang does not say which request it belongs to; the request continues with the token of "
                   "the largest logit: %s", why)


def _end(custom: Any, why: str, status: http.HTTPStatus, kind: str) -> bool:
    """Ends the request to which these custom_params belong, as SGLang ends a wrong request. SGLang has put its own
    request object among them. Returns whether there was one."""
    try:
        request = custom["__req__"]
        reason = needed("sglang.srt.managers.schedule_batch", "sglang", __name__).FINISH_ABORT(why, status, kind)
        # It may already end with this step.
        request.to_finish = request.to_finish or reason
        return True
    except (ImportError, AttributeError, KeyError, ReferenceError, TypeError):
        return False


def _largest(row: Any) -> int:
    """The token of the largest logit. NaNs come before masked tokens, because a grammar forbids the latter."""
    return int(np.nan_to_num(row.float().cpu().numpy(), nan=-1e30).argmax())


def register(address: str, name: str = "croupier", **options: Any) -> None:
    """Registers the backend in this process, before SGLang reads its arguments. The options are those of
    `CroupierSampler`."""
    _sampler.register_sampler_backend(name, lambda: CroupierSampler(address, **({"random_seed": _random_seed()} | options)))


def _random_seed() -> int:
    """SGLang's own seed, which all ranks share, mixed with the number of the data-parallel replica, because the
    replicas' batches have different rows."""
    seed = int(_argument("get_device", "random_seed") or 0)
    for rank in ("dp_rank", "attn_dp_rank"):
        seed = mixed(seed & MASK, _parallel(rank) or 0)
    return seed


def _speculative_algorithm() -> str | None:
    """SGLang's speculative algorithm, according to its arguments. None if it does not speculate, or does not say so
    yet."""
    found = _argument("get_spec", "speculative_algorithm")
    return None if found is None or str(found).upper() == "NONE" else str(found)


def _argument(part: str, name: str) -> Any:
    """The value that SGLang has derived from an argument: for example it draws a seed if none is given, and may name
    only a way to capture hidden states in place of an algorithm. Versions without such parts of a configuration change
    the arguments themselves. None if there is neither."""
    try:
        return getattr(getattr(needed("sglang.srt.runtime_context", "sglang", __name__), part)(), name)
    except (AttributeError, ImportError, RuntimeError, ValueError):
        try:
            return getattr(_sampler.get_server_args(), name)
        except (AttributeError, RuntimeError, ValueError):
            return None


def _parallel(name: str) -> int | None:
    """What SGLang knows about its ranks. None if it does not know, as in versions that keep this elsewhere."""
    try:
        found = getattr(_sampler.get_parallel(), name)
        return None if found is None else int(found)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None
