"""What the clients for threads and for asyncio have in common: all that needs no socket."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ._session import Rows, Sequence, Session, bf16, widened
from ._top_n import TopN, largest
from .schema import pb


class Front:
    """A stream's options, texts and rows. Options are told at `croupier.Stream`."""

    def __init__(self, address: str, vocab_size: int, *, dtype: str = "f32", model: str = "",
                 eos_token_ids: Iterable[int] = (), default_params: Any = None, data_path: str = "auto",
                 max_rows: int = 64, slots: int = 2, reconnect_within: float = 30.0,
                 vocab_shards: Iterable[int] | None = None, device: str | None = None) -> None:
        self._session = Session(vocab_size, dtype, model, eos_token_ids, default_params, data_path, max_rows, slots,
                                vocab_shards, device)
        self._address, self._patience = address, reconnect_within

    @property
    def data_path(self) -> str:
        """How logits go: "shared_memory", "device_memory" or "inline"."""
        region = self._session.region
        if region is None:
            return "inline"
        return "device_memory" if region.on_device else "shared_memory"

    @property
    def shard_token(self) -> str:
        """What the other ranks attach with, see `attach`. After a reconnect it is another one.

        Who has it can send logits for this stream: hand it to its ranks and nobody else.
        """
        return self._session.shard_token(self._address)

    @property
    def sequences(self) -> dict[int, Sequence]:
        """Those that are open, by id."""
        return self._session.sequences

    def open(self, *, prompt: Iterable[int] = (), output: Iterable[int] = (), sequence_id: int | None = None,
             params: Any = None, **fields: Any) -> Sequence:
        """A new text, or one that goes on after `output`. Parameters as fields of `SamplingParams`, or as one.

        It is opened with the next step.
        """
        chosen = pb.SamplingParams(**fields)
        if params is not None:
            chosen.MergeFrom(params)
        return self._session.open(chosen, prompt, output, sequence_id)

    def close(self, sequence: Sequence) -> None:
        """Forgets a text, with the next step."""
        self._session.close(sequence)

    def rows(self, count: int) -> Rows:
        """Rows to write logits into, in shared or device memory where there is some; then give them to `sample` or `step`."""
        return self._session.rows(count)

    def top_n(self, logits: Any, n: int, beyond: str | Iterable[str] = "refuse") -> TopN:
        """The `n` largest of each row, for links that are too thin: give them to `sample` or `step` in the place of the rows.
        Tokens are those of the whole rows, or refused where parameters reach beyond. `step` takes `(rows, top_n)` too."""
        session = self._session
        rows = np.atleast_2d(np.asarray(logits))
        # What is sent is chosen, not what it is rounded from.
        if session.dtype == "bf16":
            rows = widened(rows if rows.dtype == session.numpy else bf16(rows))
        return largest(rows.astype(session.numpy if session.dtype == "f16" else "<f4"), n, beyond)

    def discard(self, rows: Rows) -> None:
        """Gives back rows that will not be sent."""
        self._session.discard(rows)
