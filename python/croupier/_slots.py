"""Tokens in shared memory: what rank 0 shares with the other ranks, and how these wait there for the tokens of a step.

The layout is that of `TokenSlots` in the schema.
"""

from __future__ import annotations

import base64
import ctypes
import json
import platform
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from ._regions import Region
from ._rows import RowKeeper
from ._types import Part
from .errors import CroupierError
from .schema import pb

if TYPE_CHECKING:
    import numpy.typing as npt

    Words = npt.NDArray[np.uint32]

#: Bytes of a slot, and bytes of the header before the first slot.
_SLOT = 16
_LAST = 1 << 16
_LOCK = threading.Lock()
#: Largest number of rows of a step for which there are places.
_MOST = 1 << 16
#: The number of the system call futex(2), on platforms where it is known.
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0)
_libc = ctypes.CDLL(None, use_errno=True) if _FUTEX else None


class Places:
    """The places for the tokens of sharded steps, used in turn."""

    def __init__(self, region: Region, first: int, size: int, count: int) -> None:
        self.region, self.first, self.size, self.count = region, first, size, count

    def offset(self, step_id: int) -> int:
        """The offset of a step's place."""
        return self.first + step_id % self.count * self.size

    def field(self, step_id: int) -> bytes:
        """The field that announces the place in a step."""
        slots = pb.TokenSlots(region_id=self.region.id, generation=self.region.generation, offset=self.offset(step_id))
        return pb.Step(token_slots=slots).SerializeToString()

    def words(self, step_id: int) -> Words:
        """The words of a step's place."""
        return np.frombuffer(self.region.memory, np.uint32, self.size // 4, self.offset(step_id))

    def works(self, step_id: int) -> list[list[Words]]:
        """The slots of each work of a step that has been answered."""
        words = self.words(step_id)
        slots = words[4 : 4 + 4 * int(words[2])].reshape(-1, 4).copy()
        works: list[list[Words]] = [[]]
        for slot in slots:
            works[-1].append(slot)
            if slot[1] & _LAST:
                works.append([])
        return works[:-1]

    def wait(self, step_id: int, most: float) -> list[list[int]] | None:
        """The tokens of each work of a step, as soon as they are there. A work that failed has none. None if they are
        not there in time."""
        wanted, until = step_id & 0xFFFFFFFF, time.monotonic() + most
        words = self.words(step_id)
        while (seen := int(words[0])) != wanted:
            if seen and (seen - wanted) & 0xFFFFFFFF < 1 << 31:
                raise _gone(step_id)
            left = until - time.monotonic()
            if left <= 0:
                return None
            _sleep(words, seen, left)
        _fence()
        tokens = [[int(slot[0]) for slot in slots if slot[1] & 0xFF == pb.ROW_STATUS_OK] for slots in self.works(step_id)]
        _fence()
        if int(words[0]) != wanted:
            # A later step has begun to write there.
            raise _gone(step_id)
        return tokens


def _gone(step_id: int) -> CroupierError:
    return CroupierError(f"the tokens of step {step_id} are gone: a later step has overwritten them")


def _fence() -> None:
    """Keeps later reads from being done earlier."""
    with _LOCK:
        pass


class _Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def _sleep(words: Words, seen: int, most: float) -> None:
    """Sleeps while the first word has the value that was seen. It may return early."""
    if _libc is None:
        time.sleep(min(most, 50e-6))
        return
    wait = _Time(int(most), int(most % 1 * 1e9))
    # FUTEX_WAIT, for memory that processes share.
    _libc.syscall(ctypes.c_long(_FUTEX), ctypes.c_void_p(words.ctypes.data), ctypes.c_int(0), ctypes.c_uint32(seen),
                  ctypes.byref(wait), None, ctypes.c_int(0))


class Sharing(RowKeeper):
    """The part of a session that is shared with ranks."""

    def _token_bytes(self) -> int:
        """Bytes of the region that tokens take, after the rows."""
        return self._token_count() * self._token_size() if self.shards and self.limits.rows <= _MOST else 0

    def _token_size(self) -> int:
        # One slot for each row, and one for each work that has no row.
        return (1 + 2 * self.limits.rows) * _SLOT

    def _token_count(self) -> int:
        return self.slots + 1

    def _token_places(self, region: Region | None) -> Places | None:
        if region is None or not self._token_bytes():
            return None
        return Places(region, region.first + self.slots * self.slot_bytes, self._token_size(), self._token_count())

    def _slots_of(self, part: Part) -> bytes:
        """The field that requests a sharded step's tokens in the region, too."""
        # The server refuses more works than this anyway.
        return b"" if self.tokens is None or len(part.emits) > self.limits.rows else self.tokens.field(part.step_id)

    def shard_token(self, address: str) -> str:
        """The token that another rank needs to attach and to send its columns."""
        if not self.shards:
            raise CroupierError("the stream has no ranks; connect with vocab_shards")
        if self.offer is None:
            raise CroupierError("the stream is not connected yet, and ranks can only attach to a connected stream")
        region, tokens = self.region, self.tokens
        place = [region.id, region.generation, region.first, self.slot_bytes, self.stride] if region else None
        facts = {"address": address, "token": self.offer.token.hex(), "columns": self.shards, "dtype": self.dtype,
                 "step": self.sharded + 1, "region": place, "slots": self.slots, "max_rows": self.max_rows,
                 "max_message_bytes": self.limits.message_bytes,
                 "tokens": [tokens.first, tokens.size, tokens.count] if tokens else None}
        return base64.urlsafe_b64encode(json.dumps(facts).encode()).decode()
