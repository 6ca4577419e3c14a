"""What the adapters for vLLM's two model runners share."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence as Listing
from typing import Any

from .._params import as_wire
from .._types import Sequence
from ..client import Stream
from ..errors import CroupierError, LogitsLost, RowError
from ..schema import pb
from . import _orders, needed
from ._ahead import refusal
from ._extra import parsed
from ._logits import connected, rows_of
from ._seeds import MASK, mixed

_log = logging.getLogger(__name__)
_EXTRA = "croupier"
_ADDRESS = "CROUPIER_VLLM_ADDRESS"
#: Parameters that vLLM has too, with its defaults.
_FILTERS: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
_PENALTIES: dict[str, Any] = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
#: Fields that have no effect here, and why.
_USELESS = {
    **dict.fromkeys("max_tokens min_tokens stop_token_ids stop_token_sequences ignore_eos repetition_detection proposer draft_length acceptance".split(),
                    "which vLLM handles itself"),
    **dict.fromkeys("min_eos_p infill length_penalty".split(), "which needs the tokens that end a text, and only vLLM knows these"),
    "forced_last_token": "which needs max_tokens, and vLLM handles that itself",
    "grammar": "which vLLM handles itself: give the request structured_outputs",
    **dict.fromkeys("logprobs report return_sampler_state".split(), "which vLLM does not return"),
}


def sampling_params(request: Any, penalties: bool = True) -> pb.SamplingParams:
    """The `SamplingParams` for a request's parameters. Raises `ValueError` if `extra_args["croupier"]` is wrong or has
    a field without effect.

    vLLM decides when a text ends, and applies its masks and logit_bias before. `penalties`: whether Croupier applies
    the penalties. With a preset, the request only sets what differs from vLLM's defaults, because vLLM does not tell
    what its client has set.
    """
    # Turns these off, whatever the server's defaults or a preset say, and keeps a loop in the text from ending it.
    # Their stop_token_ids and stop_token_sequences cannot be turned off.
    params = pb.SamplingParams(max_tokens=0, repetition_detection=pb.RepetitionDetectionParams(),
                               # vLLM makes its own drafts.
                               proposer=pb.ProposerParams(), draft_length=pb.DraftLengthParams(max_draft_tokens=0))
    chosen = _extra_of(request)
    for name, default in (_FILTERS | _PENALTIES).items():
        value = as_wire(name, getattr(request, name))
        if not chosen.preset or value != default:
            # What vLLM has already applied is not applied again.
            setattr(params, name, value if penalties or name in _FILTERS else default)
    if request.temperature < 1e-5:
        params.temperature = 0
    if request.seed is not None:
        params.seed = request.seed & MASK
    for descriptor, _ in chosen.ListFields():
        params.ClearField(descriptor.name)
    params.MergeFrom(chosen)
    # A preset or the server's defaults may turn on a sampler that learns, and the text may have to be opened again. If
    # no such sampler is on, the server has nothing to send.
    params.return_sampler_state = True
    return params


def stream_params() -> pb.SamplingParams:
    """The parameters that apply if neither a request nor its preset sets them: vLLM's defaults, and its order and
    rules, with a place for every sampler."""
    params = _orders.without_ends()
    params.MergeFrom(pb.SamplingParams(engine_order=pb.ENGINE_ORDER_VLLM, sampler_order=_orders.VLLM, **_FILTERS, **_PENALTIES))
    return params


def _extra(request: Any) -> Any:
    return (request.extra_args or {}).get(_EXTRA)


def _extra_of(request: Any) -> pb.SamplingParams:
    """The parameters for Croupier that a request carries."""
    extra = _extra(request)
    if extra is None:
        return pb.SamplingParams()
    where = f'extra_args["{_EXTRA}"]'
    chosen = parsed(extra, where)
    for descriptor, value in chosen.ListFields():
        if descriptor.name in _USELESS and not _is_off(value):
            raise ValueError(f"{where} has {descriptor.name}, {_USELESS[descriptor.name]}; leave it out")
    return chosen


def _is_off(value: Any) -> bool:
    """Whether a value turns something off. That does no harm, and overrides a preset."""
    if isinstance(value, pb.GrammarParams):
        return value.WhichOneof("kind") is None
    return isinstance(value, (int, float)) and not value


def _ending(request: Any) -> int:
    """A token with which vLLM ends a request. If it knows none, as with ignore_eos, the closest substitute."""
    eos, stops = getattr(request, "eos_token_id", None), getattr(request, "stop_token_ids", None)
    ending: int = eos if eos is not None else min(stops or getattr(request, "all_stop_token_ids", None) or [0])
    return ending


def _replica(vllm_config: Any) -> int:
    """The number of this engine in data parallelism. All engines share the seed."""
    parallel = getattr(vllm_config, "parallel_config", None)
    # For a dense model, each engine is told that its rank is 0, but the index is right.
    found = getattr(parallel, "data_parallel_index", None)
    return int(found if found is not None else getattr(parallel, "data_parallel_rank", None) or 0)


def _ranks(vllm_config: Any) -> int:
    """The number of ranks on this machine. Each has a stream of its own."""
    parallel = getattr(vllm_config, "parallel_config", None)
    ranks = (getattr(parallel, name, None) or 1 for name in ("tensor_parallel_size", "data_parallel_size_local"))
    return math.prod(ranks)


class Request:
    """The state of one request."""

    def __init__(self, request: Any, params: pb.SamplingParams) -> None:
        self.params = params
        self.text: Sequence | None = None
        #: Whether Croupier no longer samples it.
        self.is_refused = False
        #: The token that the request then gets, because vLLM cannot do what it asked for. None: vLLM samples it.
        self.ending = _ending(request) if _extra(request) else None


class Chooser:
    """A stream, and the reduction of rows to one token each.

    address: the server. Otherwise `additional_config["croupier_address"]` of vLLM's configuration is used, or else the
    variable CROUPIER_VLLM_ADDRESS.
    data_path: as for `croupier.Stream`. With "device_memory" logits stay on the GPU, if the server samples on the same
    one.
    max_rows: rows of one message; larger batches are sent as several. Default: vLLM's max_num_seqs, if the server has
    room for them, or else as many as it has room for.

    Each tensor-parallel rank has a stream of its own and gets the same tokens: requests without a seed get one from
    their number, the engine's seed and its data-parallel rank. If the server cannot be reached for `reconnect_within`
    seconds, the engine fails.

    If Croupier has no token for a row, for example because of a NaN, or refuses a request, an error is logged. A
    request without `extra_args["croupier"]` is then left to vLLM's sampler. One that has them is ended, because it must
    not be sampled without what it asked for.
    """

    address: str | None = None
    data_path = "auto"
    max_rows: int | None = None
    reconnect_within = 30.0
    #: Whether Croupier applies the penalties.
    has_penalties = True

    @classmethod
    def validate_params(cls, request: Any) -> None:
        """Called when a request arrives. The server is asked if this process knows it; vLLM does not pass its
        configuration here."""
        params = sampling_params(request, cls.has_penalties)
        address = cls.address or os.environ.get(_ADDRESS)
        if address and _extra(request) and (why := refusal(address, params, stream_params())):
            raise ValueError(f'extra_args["{_EXTRA}"]: {why.removeprefix("params.")}')

    def _set_up(self, vllm_config: Any) -> None:
        self.torch = needed("torch", "torch", type(self).__name__)
        extra = getattr(vllm_config, "additional_config", None) or {}
        address = self.address or (extra.get("croupier_address") if isinstance(extra, dict) else None) or os.environ.get(_ADDRESS)
        if not address:
            raise ValueError('no server address is set: give vLLM --additional-config \'{"croupier_address": "unix:..."}\', or set '
                             f"{_ADDRESS}")
        if getattr(vllm_config, "watermark_config", None) is not None:
            raise ValueError("watermark_config is set, but vLLM cannot mark what Croupier draws: leave it out, and set "
                             f'extra_args["{_EXTRA}"]["watermark"] in requests, or a watermark in the server\'s [defaults]')
        self._address = address
        seed = getattr(getattr(vllm_config, "model_config", None), "seed", None) or 0
        self._seed = mixed(seed & MASK, _replica(vllm_config))
        self._wanted = getattr(getattr(vllm_config, "scheduler_config", None), "max_num_seqs", None) or 256
        self._streams = _ranks(vllm_config)
        self._connected: Stream | None = None
        self._requests: dict[int, Any] = {}
        self._seen = 0

    def _params(self, request: Any) -> pb.SamplingParams:
        """The parameters of an arriving request, with a seed."""
        self._seen += 1
        own = sampling_params(request, self.has_penalties)
        if not own.HasField("seed"):
            own.seed = mixed(self._seed, self._seen)
        return own

    def _stream(self, vocab_size: int) -> Stream:
        if self._connected is None:
            # Not earlier, because vLLM creates processors in processes that it forks.
            self._connected, self._max_rows = connected(
                self._address, vocab_size, self._wanted, self._streams, max_rows=self.max_rows, data_path=self.data_path,
                reconnect_within=self.reconnect_within, default_params=stream_params())
        return self._connected

    def _open(self, request: Request, prompt: list[int], output: list[int]) -> None:
        """Opens a request's text, or opens it again with other tokens."""
        # In the middle of a prompt, and when it recomputes after a preemption, vLLM discards tokens, and what was
        # learned from them must be discarded too. If vLLM only replaced a token, the state is the closest that there
        # is.
        text = request.text
        state = text.state if text is not None and len(text.tokens) == len(output) else None
        self._close(request)
        assert self._connected is not None
        try:
            request.text = self._connected.open(request.params, prompt=prompt, output=output, sampler_state=state)
        except ValueError as error:
            # The text is too large for a message.
            self._refuse(request, str(error))

    def _choose(self, logits: Any, rows: list[int], requests: Listing[Request]) -> Any:
        """Leaves one token of each of these rows, except for requests that are left to vLLM's sampler."""
        for request in requests:
            if request.text is not None and request.text.finish_reason is not None:
                self._refuse(request, f"the server ended the text ({request.text.finish_reason}) but vLLM continues it; the server's "
                                      "defaults or a preset set stop_token_ids or stop_token_sequences")
        going = [(row, request) for row, request in zip(rows, requests) if request.text is not None]
        before = [len(request.text.tokens) for _, request in going if request.text is not None]
        if going:
            chosen = [row for row, _ in going]
            self._sample(logits if chosen == list(range(len(logits))) else logits[chosen], [request for _, request in going])
        for (_, request), count in zip(going, before):
            if request.text is not None and len(request.text.tokens) == count and request.ending is not None:
                self._refuse(request, "a row has no token")
        done = [(row, request.ending) for row, request in zip(rows, requests) if request.is_refused and request.ending is not None]
        done += [(row, request.text.tokens[-1]) for (row, request), count in zip(going, before)
                 if request.text is not None and len(request.text.tokens) > count]
        if done:
            index = self.torch.tensor(done, device=logits.device)
            logits[index[:, 0]] = -float("inf")
            logits[index[:, 0], index[:, 1]] = 0.0
        return logits

    def _sample(self, logits: Any, requests: list[Request]) -> None:
        texts = [request.text for request in requests if request.text is not None]
        assert self._connected is not None
        while True:
            try:
                self._connected.sample(rows_of(self.torch, self._connected, self._address, logits, self._max_rows), texts)
            except LogitsLost:
                continue
            except RowError as error:
                _log.error("Croupier returned no token for a row: %s", error)
            except CroupierError:
                refused = [(request, request.text.refused) for request in requests if request.text is not None and request.text.refused]
                if not refused:
                    raise
                for request, why in refused:
                    self._refuse(request, why)
            return

    def _refuse(self, request: Request, why: str) -> None:
        """Stops sampling a request."""
        what = "left to vLLM's sampler from now on" if request.ending is None else "ended, because vLLM cannot sample it as requested"
        _log.error("Croupier: a request is %s: %s", what, why)
        self._close(request)
        request.is_refused, request.text = True, None

    def _close(self, request: Request) -> None:
        if request.text is not None and self._connected is not None:
            self._connected.close(request.text)
