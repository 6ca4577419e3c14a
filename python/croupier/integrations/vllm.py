"""vLLM: a logits processor of its V1 model runner that has Croupier choose the tokens.

    VLLM_USE_V2_MODEL_RUNNER=0 vllm serve MODEL --logits-processors croupier.integrations.vllm:CroupierLogitsProcessor \\
        --additional-config '{"croupier_address": "unix:/run/croupier/croupier.sock"}'

vLLM samples after its processors. This one asks Croupier for each row's token and leaves only that one finite, so
vLLM's sampler has nothing left to choose. The parameters are the request's own, and the fields of `SamplingParams` in
its `extra_args["croupier"]`, over HTTP `"vllm_xargs": {"croupier": ...}`. These include samplers that vLLM lacks. Masks
of vLLM (grammars, allowed tokens, bad words, min_tokens, logit_bias) come before it and apply. `vllm_v2` is the same
for the newer model runner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..schema import pb
from . import needed
from ._vllm import Chooser, Request

_interface = needed("vllm.v1.sample.logits_processor", "vllm", __name__)
if TYPE_CHECKING:
    from vllm.v1.sample.logits_processor import LogitsProcessor
else:
    LogitsProcessor = _interface.LogitsProcessor


class _Request(Request):
    """One request, wherever it is in the batch."""

    def __init__(self, request: Any, params: pb.SamplingParams, prompt: list[int], output: list[int]) -> None:
        super().__init__(request, params)
        #: `output` is vLLM's own list, which grows.
        self.prompt, self.output = prompt, output


class CroupierLogitsProcessor(Chooser, LogitsProcessor):  # type: ignore[misc, unused-ignore]  # Where there is no vLLM it is Any.
    """Subclass it to set what is not in the configuration: see `Chooser`."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._set_up(vllm_config)

    def is_argmax_invariant(self) -> bool:
        """False, so that it also runs for greedy requests. It comes after vLLM's masks and before its penalties, which
        cannot change a row of one token."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Handles removed, added and moved requests, in this order, as vLLM requires."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._forget(index)
        for index, params, prompt, output in batch_update.added:
            self._forget(index)
            self._requests[index] = _Request(params, self._params(params), prompt or [], output)
        for one, other, direction in batch_update.moved:
            moved, there = self._requests.pop(one, None), self._requests.pop(other, None)
            if moved is not None:
                self._requests[other] = moved
            if there is not None:
                if direction == _interface.MoveDirectionality.SWAP:
                    self._requests[one] = there
                else:
                    self._close(there)

    def apply(self, logits: Any) -> Any:
        """Leaves one token of each row."""
        self._stream(logits.shape[-1])
        rows = [index for index in sorted(self._requests) if index < len(logits)]
        requests = [self._requests[index] for index in rows]
        for request in requests:
            if not request.is_refused:
                self._catch_up(request)
        return self._choose(logits, rows, requests)

    def _catch_up(self, request: _Request) -> None:
        """Opens the text, or opens it again if vLLM has other tokens than it was given, because vLLM discards what it
        samples in the middle of a prompt."""
        output, text = request.output, request.text
        count = len(output)
        # With asynchronous scheduling the latest tokens are not known yet and are -1, but their number is known.
        while count and output[count - 1] < 0:
            count -= 1
        # It is enough to compare the latest known token, because those before it were compared earlier.
        if text is not None and len(output) == len(text.tokens) and output[max(count - 1, 0) : count] == text.tokens[max(count - 1, 0) : count]:
            return
        known = list(output[:count])
        if text is not None:
            known += text.tokens[count : len(output)]
        self._open(request, request.prompt, known)

    def _forget(self, index: int) -> None:
        request = self._requests.pop(index, None)
        if request is not None:
            self._close(request)
