"""The rows of a stream: where they are, who holds them, and how they are kept when the connection is lost."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ._arrays import DTYPES, format_named, writable
from ._checks import MOST, MOST_64, token_ids, whole
from ._options import check_options, check_slot
from ._regions import Region
from ._texts import Texts
from ._types import Part, Rows, Slots, Step
from .errors import CroupierError, LogitsLost
from .schema import pb

if TYPE_CHECKING:
    from ._forms import Dtype, Work
    from ._slots import Places

LOG = logging.getLogger("croupier")
_PAGE = 4096
#: Number of batches whose works are kept in serialised form. All but the last one are found only by searching.
_KEPT = 8
_NO_REGION = "the stream is not connected, so it has no rows on the GPU; step(None) connects again"
#: The message of `LogitsLost`.
LOST = "the server is gone, and the region with the logits too; write the logits again and send the step again"


class RowKeeper(Texts):
    """The part of a session that manages rows. It also holds state that the other parts share."""

    def __init__(self, vocab_size: int, dtype: Dtype, model: str, eos_token_ids: Iterable[int], default_params: pb.SamplingParams | None,
                 data_path: str, max_rows: int, slots: int, vocab_shards: Iterable[int] | None = None,
                 draft_vocabulary: Iterable[int] | None = None, device: str | None = None) -> None:
        self.dtype = format_named(dtype)
        check_options(data_path, vocab_shards, draft_vocabulary, device)
        vocab_size, max_rows, slots = (whole(name, value, 1, MOST) for name, value in (("vocab_size", vocab_size), ("max_rows", max_rows),
                                                                                ("slots", slots)))
        wire, self.numpy = DTYPES[self.dtype]
        self.vocab_size, self.wanted = vocab_size, data_path
        self.device = device or ""
        super().__init__(pb.StreamConfig(vocab_size=vocab_size, logits_dtype=wire, model=model,
                                         eos_token_ids=token_ids("eos_token_ids", eos_token_ids), default_params=default_params,
                                         wants_regions=data_path != "inline"))
        self.shards = None if vocab_shards is None else [whole(f"vocab_shards[{rank}]", columns, 1, MOST)
                                                         for rank, columns in enumerate(vocab_shards)]
        if self.shards is not None:
            self.config.vocab_shards.columns.extend(self.shards)
        # The number of columns that are sent from here.
        self.columns = self.shards[0] if self.shards else vocab_size
        if draft_vocabulary is not None:
            self.config.draft_vocabulary.extend(token_ids("draft_vocabulary", draft_vocabulary))
            if not self.config.draft_vocabulary:
                raise ValueError("draft_vocabulary is empty, must have the token of each column of the draft model's rows")
        # The number of columns of rows for draft work.
        self.draft_columns = len(self.config.draft_vocabulary) or self.columns
        self.offer: pb.ShardOffer | None = None
        # Rows begin at a multiple of 64 bytes.
        together = 64 // self.numpy.itemsize
        self.stride = -(-vocab_size // together) * together
        self.max_rows, self.slots = max_rows, slots
        self.slot_bytes = -(-max_rows * self.stride * self.numpy.itemsize // _PAGE) * _PAGE
        if slots * self.slot_bytes > MOST_64 // 2:
            raise ValueError(f"max_rows is {max_rows} and slots {slots}, which would take {slots * self.slot_bytes} bytes; give smaller ones")
        # Steps whose results have not been taken, and messages without an answer, in the order of their answers.
        self.steps: deque[Step] = deque()
        self.waiting: deque[Part] = deque()
        self.region: Region | None = None
        self.tokens: Places | None = None
        self.taken = Slots(0)
        self.reason = "data_path is inline" if data_path == "inline" else ""
        self.sharded = self.numbers = 0
        self.works: deque[tuple[list[Work], bytes]] = deque(maxlen=_KEPT)
        self.places: dict[tuple[int, int], bytes] = {}
        self.lost = False
        # Whether the server asked to leave, and the texts with drafts that it keeps: texts whose last work emitted
        # nothing.
        self.is_asked_to_leave = False
        self.drafted: set[int] = set()
        # The number of connections so far. Each connection has lost the drafts that the ones before kept.
        self.connections = 0

    def rows(self, count: int, columns: int | None = None) -> Rows:
        """Rows to write into: a slot if there is one that is large enough, else memory of their own. They have all
        columns that are sent from here, unless there shall be another number."""
        # Read only once, because another thread may end the stream.
        count, region, columns = whole("count", count, 0), self.region, self.columns if columns is None else columns
        # Without a region, other rows are moved into the next one when they are sent.
        if region is None and self.wanted == "device_memory":
            raise CroupierError(_NO_REGION)
        on_device = region is not None and region.on_device
        if on_device and count > self.max_rows:
            raise ValueError(f"{count} rows are more than max_rows, {self.max_rows}; rows on a GPU can only be sent from the region")
        if region is not None and count > self.max_rows:
            check_slot(self.wanted, count, self.max_rows)
            self._say_inline(f"a step had more rows than max_rows, {self.max_rows}; connect with a larger one", logging.WARNING)
        if region is None or count > self.max_rows:
            return Rows(writable(np.empty((count, columns), self.numpy)), owner=weakref.ref(self))
        rows = Rows(None, region=region, owner=weakref.ref(self))
        if not self.taken.take(rows) or rows.slot is None:
            raise CroupierError(self._no_slot())
        offset = region.first + rows.slot * self.slot_bytes
        rows.raw = writable(region.view(self.numpy, count, self.stride, columns, offset))
        return rows

    @property
    def insists(self) -> bool:
        """Whether whole rows must be sent in a region."""
        return self.wanted in ("shared_memory", "device_memory")

    @property
    def free(self) -> list[int]:
        """Free slots."""
        return self.taken.free()

    def _no_slot(self) -> str:
        waiting = {part.logits.slot for part in self.waiting if part.logits is not None} - {None}
        held = self.slots - len(waiting)
        return (f"every slot is taken: {len(waiting)} by steps without a result, {held} by rows that were not sent; "
                "take a result, send or discard rows, or connect with more slots")

    def keep_rows(self) -> None:
        """Saves the rows of steps without an answer as they are now, if the caller can still change them or they would
        be lost with the connection."""
        parts = [part for step in self.steps for part in step.parts if part.result is None]
        for rows in {id(part.logits): part.logits for part in parts if part.logits is not None}.values():
            if (region := rows.region) is None:
                rows.raw = np.array(rows.raw)
            elif not region.on_device and rows.saved is None:
                copy = np.array(rows.raw)
                rows.saved = None if region.is_lost() else copy
        for part in parts:
            if isinstance(part.source, np.ndarray):
                part.source = np.array(part.source)

    def discard(self, rows: Rows) -> None:
        """Gives back the place of rows that will not be sent. The place of rows that were sent comes back with the
        result."""
        rows.check_owner(self)
        if not rows.is_spent:
            rows.give_back()

    def synchronize(self) -> None:
        """Waits until the GPU has written everything that was requested, because the server does not wait for that.
        Does nothing without device memory."""
        if (region := self.region) is not None:
            region.synchronize()

    def _kept(self, rows: Rows) -> Rows:
        """The rows, moved into the current region."""
        region = rows.region
        is_due = region is None and self.region is not None and self.insists
        if not is_due and (region is None or region is self.region):
            return rows
        if region is not None and region.on_device:
            # Nobody knows what a GPU had still to write there when the server went away.
            raise LogitsLost(LOST)
        kept = self.rows(*rows.raw.shape)
        kept.raw[:] = rows.raw if rows.saved is None else rows.saved
        # Checked after copying: if the pages are there now, the copy is complete.
        if region is not None and rows.saved is None and region.is_lost():
            self.discard(kept)
            raise LogitsLost(LOST)
        return kept

    def _say_inline(self, why: str, level: int = logging.INFO) -> None:
        """Logs once why logits are sent in messages although they need not be. It is a warning if the program's author
        can change it."""
        if why != self.reason:
            self.reason = why
            LOG.log(level, "logits are sent in messages: %s", why)
