"""vLLM: a logits processor of its V2 model runner that has Croupier choose the tokens.

    vllm serve MODEL --logits-processors croupier.integrations.vllm_v2:CroupierLogitsProcessor \\
        --additional-config '{"croupier_address": "unix:/run/croupier/croupier.sock"}'

As `vllm` for the V1 runner, but that V2 applies a request's penalties before its processors: those are vLLM's. Not with speculative
decoding, where a request has a row for each draft token.
"""

from __future__ import annotations

from typing import Any

from . import needed
from ._vllm import Chooser, Request

_interface = needed("vllm.v1.worker.gpu.sample.logits_processor", "vllm", __name__)


class CroupierLogitsProcessor(Chooser, _interface.LogitsProcessor):
    """Subclass it to set what is not in the configuration: see `Chooser`."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        if getattr(vllm_config, "speculative_config", None):
            raise ValueError("croupier.integrations.vllm_v2 does not go together with speculative decoding of vLLM")
        self._set_up(vllm_config)
        self._states = req_states

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """A request comes to a slot, which had another one perhaps: nobody is told when that left."""
        before = self._requests.get(req_idx)
        if before is not None:
            self._close(before)
        self._requests[req_idx] = Request(self._params(sampling_params, penalties=False))
        return True

    def apply(self, logits: Any, ctx: Any) -> Any:
        """Leaves one token of each row."""
        stream = self._stream(logits.shape[-1])
        slots = [int(slot) for slot in ctx.idx_mapping_np[: len(logits)]]
        lengths = [int(length) for length in ctx.seq_lens_upper_bound_np[: len(slots)]]
        rows = []
        for row, (slot, length) in enumerate(zip(slots, lengths)):
            request = self._requests.get(slot)
            # Amid a prompt nothing is sampled that counts.
            if request is None or request.is_refused or length < int(self._states.prefill_len.np[slot]):
                continue
            self._catch_up(stream, request, slot, length)
            rows.append(row)
        return self._choose(logits, rows, [self._requests[slots[row]] for row in rows]) if rows else logits

    def _catch_up(self, stream: Any, request: Request, slot: int, length: int) -> None:
        """Opens the text with what the runner has, and again where it has not the tokens that were given, as after a preemption."""
        prompt = int(self._states.prompt_len.np[slot])
        if request.text is not None and len(request.text.tokens) == length - prompt:
            return
        self._close(request)
        tokens = self._states.all_token_ids.gpu[slot, :length].tolist()
        request.text = stream.open(params=request.params, prompt=tokens[:prompt], output=tokens[prompt:])
