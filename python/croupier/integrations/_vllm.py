"""What the adapters for vLLM's two model runners have in common."""

from __future__ import annotations

import logging
from typing import Any

from ..client import Stream, connect
from ..errors import CroupierError, LogitsLost, RowError
from ..schema import pb
from . import needed
from ._extra import parsed

_log = logging.getLogger(__name__)
_EXTRA = "croupier"
#: Between seeds of requests that have none.
_STRIDE = 0x9E3779B97F4A7C15


def sampling_params(request: Any, penalties: bool = True) -> Any:
    """The `SamplingParams` of a request's. Raises `ValueError` for fields in `extra_args["croupier"]` that do not exist.

    When a text ends is left to vLLM, and so are its masks and logit_bias, which come before; `penalties`: those do not.
    """
    params = pb.SamplingParams(engine_order=pb.ENGINE_ORDER_VLLM, temperature=request.temperature, top_p=request.top_p,
                               # 0 and -1 are all.
                               top_k=max(request.top_k, 0), min_p=request.min_p,
                               # None, whatever the server's defaults or a preset say, and no loop of theirs ends a text. Their
                               # stop_token_ids cannot be turned off.
                               max_tokens=0, repetition_detection=pb.RepetitionDetectionParams(),
                               # Drafts are vLLM's own.
                               proposer=pb.ProposerParams(), draft_length=pb.DraftLengthParams(max_draft_tokens=0))
    if penalties:
        params.presence_penalty, params.frequency_penalty = request.presence_penalty, request.frequency_penalty
        params.repetition_penalty = request.repetition_penalty
    if request.temperature < 1e-5:
        params.temperature = 0
    if request.seed is not None:
        params.seed = request.seed % 2**64
    extra = (request.extra_args or {}).get(_EXTRA)
    if extra is None:
        return params
    chosen = parsed(extra, f'extra_args["{_EXTRA}"]')
    for name in ("max_tokens", "stop_token_ids", "repetition_detection", "proposer", "draft_length"):
        if name in (descriptor.name for descriptor, _ in chosen.ListFields()):
            raise ValueError(f'extra_args["{_EXTRA}"] has {name}, which is for vLLM to do')
    for descriptor, _ in chosen.ListFields():
        params.ClearField(descriptor.name)
    if chosen.sampler_order or chosen.engine_order:
        params.ClearField("engine_order")
    params.MergeFrom(chosen)
    return params


class Request:
    """What is known of one request."""

    def __init__(self, params: Any) -> None:
        self.params = params
        self.text: Any = None
        #: Croupier refused it, so vLLM samples it.
        self.is_refused = False


class Chooser:
    """A stream, and how rows become rows of one token.

    address: the server; else `additional_config["croupier_address"]` of vLLM's configuration.
    data_path: as of `croupier.Stream`. "device_memory" leaves logits on the GPU, where the server samples on the same one.

    Each tensor-parallel rank has a stream of its own and gets the same tokens: requests without a seed have one by their number
    and the engine's seed. A row that has no token, such as one with a NaN, and a request whose parameters Croupier refuses are
    logged and left to vLLM's sampler. When the server cannot be reached for `reconnect_within` seconds the engine fails.
    """

    address: str | None = None
    data_path = "auto"
    reconnect_within = 30.0

    @classmethod
    def validate_params(cls, request: Any) -> None:
        """At a request's arrival."""
        sampling_params(request)

    def _set_up(self, vllm_config: Any) -> None:
        self.torch = needed("torch", "torch", type(self).__name__)
        extra = getattr(vllm_config, "additional_config", None) or {}
        address = self.address or (extra.get("croupier_address") if isinstance(extra, dict) else None)
        if not address:
            raise ValueError('no server is named: give vLLM --additional-config \'{"croupier_address": "unix:..."}\'')
        self._address = address
        self._seed = getattr(getattr(vllm_config, "model_config", None), "seed", None) or 0
        self._max_rows = getattr(getattr(vllm_config, "scheduler_config", None), "max_num_seqs", None) or 256
        self._connected: Stream | None = None
        self._requests: dict[int, Any] = {}
        self._seen = 0

    def _params(self, request: Any, penalties: bool = True) -> Any:
        """Of a request that arrives, with a seed."""
        self._seen += 1
        own = sampling_params(request, penalties)
        if not own.HasField("seed"):
            own.seed = (self._seed + self._seen * _STRIDE) % 2**64
        return own

    def _stream(self, vocab_size: int) -> Stream:
        if self._connected is None:
            # Not before: vLLM makes processors in processes that it forks.
            self._connected = connect(self._address, vocab_size, data_path=self.data_path, max_rows=self._max_rows,
                                      reconnect_within=self.reconnect_within)
        return self._connected

    def _choose(self, logits: Any, rows: list[int], requests: list[Any]) -> Any:
        """Leaves one token of each of these rows."""
        for request in requests:
            if request.text.finish_reason is not None:
                _log.warning("left to vLLM's sampler from now on: the server ended a text (%s) that vLLM goes on with; its defaults or a "
                             "preset have stop_token_ids", request.text.finish_reason)
                request.is_refused, request.text = True, None
        going = [(row, request) for row, request in zip(rows, requests) if request.text]
        if not going:
            return logits
        rows, requests = [row for row, _ in going], [request for _, request in going]
        before = [len(request.text.tokens) for request in requests]
        self._sample(logits if rows == list(range(len(logits))) else logits[rows], requests)
        done = [(row, r.text.tokens[-1]) for row, r, count in zip(rows, requests, before) if r.text and len(r.text.tokens) > count]
        if done:
            index = self.torch.tensor(done, device=logits.device)
            logits[index[:, 0]] = -float("inf")
            logits[index[:, 0], index[:, 1]] = 0.0
        return logits

    def _sample(self, logits: Any, requests: list[_Request]) -> None:
        texts = [request.text for request in requests]
        while True:
            try:
                self._connected.sample(self._rows(logits), texts)
            except LogitsLost:
                continue
            except RowError as error:
                _log.warning("left to vLLM's sampler: %s", error)
            except CroupierError as error:
                refused = [request for request in requests if request.text.id not in self._connected.sequences]
                if not refused:
                    raise
                for request in refused:
                    _log.warning("left to vLLM's sampler from now on: %s", error)
                    request.is_refused, request.text = True, None
            return

    def _rows(self, logits: Any) -> Any:
        if self._connected.data_path == "device_memory":
            return logits.contiguous()
        rows = self._connected.rows(len(logits))
        # From the GPU to where the server reads it.
        self.torch.from_numpy(rows.array).copy_(logits)
        return rows

    def _close(self, request: Any) -> None:
        if request.text is not None:
            self._connected.close(request.text)
