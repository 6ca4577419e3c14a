"""vLLM: a logits processor of its V2 model runner that has Croupier choose the tokens.

    vllm serve MODEL --logits-processors croupier.integrations.vllm_v2:CroupierLogitsProcessor \\
        --additional-config '{"croupier_address": "unix:/run/croupier/croupier.sock"}'

As `vllm` for the V1 runner, except that V2 applies a request's penalties before its processors, so vLLM applies these.
It does not work with speculative decoding, where a request has a row for each draft token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import needed
from ._vllm import Chooser, Request

_interface = needed("vllm.v1.worker.gpu.sample.logits_processor", "vllm", __name__)
if TYPE_CHECKING:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor
else:
    LogitsProcessor = _interface.LogitsProcessor


class CroupierLogitsProcessor(Chooser, LogitsProcessor):  # type: ignore[misc, unused-ignore]  # Where there is no vLLM it is Any.
    """Subclass it to set what is not in the configuration: see `Chooser`."""

    has_penalties = False

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        if getattr(vllm_config, "speculative_config", None):
            raise ValueError("croupier.integrations.vllm_v2 does not support speculative decoding in vLLM")
        self._set_up(vllm_config)
        self._states = req_states

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """A request comes to a slot. The slot may have had another request, because nobody is told when a request
        leaves."""
        before = self._requests.get(req_idx)
        if before is not None:
            self._close(before)
        self._requests[req_idx] = Request(sampling_params, self._params(sampling_params))
        return True

    def apply(self, logits: Any, ctx: Any) -> Any:
        """Leaves one token of each row."""
        self._stream(logits.shape[-1])
        rows, places = [], []
        for row, (slot, length) in enumerate(zip(ctx.idx_mapping_np[: len(logits)].tolist(), ctx.seq_lens_upper_bound_np.tolist())):
            # In the middle of a prompt, sampled tokens do not count.
            if slot in self._requests and length >= int(self._states.prefill_len.np[slot]):
                rows.append(row)
                places.append((slot, length))
        self._catch_up([place for place in places if not self._requests[place[0]].is_refused])
        return self._choose(logits, rows, [self._requests[slot] for slot, _ in places])

    def _catch_up(self, places: list[tuple[int, int]]) -> None:
        """Opens texts with the tokens that the runner has. It opens a text again if the runner does not have the tokens
        that it was given: after a preemption, or if vLLM has forced a token after its processors ran, for example for a
        thinking budget. It is enough to compare the latest token, because those before it were compared earlier."""
        counts = [length - int(self._states.prompt_len.np[slot]) for slot, length in places]
        texts = [self._requests[slot].text for slot, _ in places]
        known = {at for at, text in enumerate(texts) if text is not None and len(text.tokens) == counts[at]}
        compared = [at for at in known if counts[at]]
        if compared:
            # All at once, because each access to the GPU waits for it.
            slots, lasts = [places[at][0] for at in compared], [places[at][1] - 1 for at in compared]
            latest = self._states.all_token_ids.gpu[slots, lasts].tolist()
            known -= {at for at, token in zip(compared, latest) if texts[at].tokens[-1] != token}
        for at, (slot, length) in enumerate(places):
            if at not in known:
                tokens, prompt = self._states.all_token_ids.gpu[slot, :length].tolist(), length - counts[at]
                self._open(self._requests[slot], tokens[:prompt], tokens[prompt:])
