"""The state of a rank above 0, without a socket: shards that wait for their answers, and slots."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from . import _regions
from ._regions import Region
from ._arrays import DTYPES, as_rows, filled, writable
from ._checks import MOST, MOST_64, text, whole
from ._options import check_slot
from ._slots import Places
from ._split import SPARE
from ._status import failed
from ._types import Rows, Slots, given_rows
from .errors import CroupierError
from .schema import pb

if TYPE_CHECKING:
    from ._forms import Numbers, OnDevice, Whole

METHOD = "/croupier.v1.Sampler/Attach"
#: Longest time to wait for the server's first answer, in seconds.
ATTACH_WITHIN = 30.0
#: The message if all slots are taken by rows that were not sent.
NO_SLOT = "every slot holds rows that were not sent; send or discard one of them first"
#: Seconds between checks of whether the group still exists, while waiting for tokens.
_MOMENT = 0.05


@dataclass(eq=False)
class Announced:
    """A shard that has no answer yet."""

    message: bytes
    rows: Rows | None
    """The rows, if they are in a slot. Otherwise they are in the message."""


@dataclass
class Unsent:
    """A shard that is yet to be sent, and when."""

    message: bytes
    due: float = 0.0


def _group_of(token: str) -> SimpleNamespace:
    """What rank 0's token says. It is checked as a whole, because a token that was damaged would fail later, where nothing
    says why."""
    try:
        group = SimpleNamespace(**{"max_message_bytes": 0, "tokens": None, **json.loads(base64.urlsafe_b64decode(token))})
        numbers = [group.step, group.slots, group.max_rows, group.max_message_bytes, *group.columns]
        for place, count in (group.region, 5), (group.tokens, 3):
            if place is not None and (not isinstance(place, list) or len(place) != count):
                raise ValueError(f"a place is {place!r}, must have {count} numbers")
            numbers += place or []
        for number in numbers:
            whole("a number", number, 0, MOST_64)
        whole("vocab_size", sum(group.columns), 1, MOST)
        bytes.fromhex(group.token)
        if text("dtype", group.dtype) not in DTYPES:
            raise ValueError(f"dtype is {group.dtype!r}")
        text("address", group.address)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError("token is not a shard token; give the `shard_token` of rank 0's stream") from error
    return group


class RankSession:
    """The state of one rank."""

    def __init__(self, token: str, rank: int, address: str | None, data_path: str) -> None:
        if data_path not in ("auto", "inline", "shared_memory"):
            raise ValueError(f"data_path is {data_path!r}, must be auto, inline or shared_memory")
        self.group = _group_of(token)
        rank, columns = whole("rank", rank), self.group.columns
        if not 0 < rank < len(columns):
            raise ValueError(f"rank is {rank}, must be in 1 ..= {len(columns) - 1}; rank 0 is the stream itself")
        self.rank, self.wanted = rank, data_path
        self.address = address or self.group.address
        self.start = sum(columns[:rank])
        self.columns = columns[rank]
        wire, self.numpy = DTYPES[self.group.dtype]
        self.hello = pb.AttachRequest(rank=pb.AttachRank(
            token=bytes.fromhex(self.group.token), rank=rank, vocab_start_index=self.start,
            vocab_end_index=self.start + self.columns, logits_dtype=wire)).SerializeToString()
        self.region: Region | None = None
        self.taken = Slots(0)
        self.reason = ""
        self.waiting: OrderedDict[int, Announced] = OrderedDict()
        # The shard that is yet to be sent. It is sent before anything else is sent or read, and stays here until then.
        # So an interruption or a cancellation meanwhile, such as in the pause after a refusal, loses nothing.
        self.unsent: Unsent | None = None
        self.announced = 0
        self.unsampled: list[int] = []

    def mapped(self, message: bytes) -> Region | str:
        """Maps rank 0's region if that is wanted, or returns why there is none. It blocks, and changes nothing here, so
        that asyncio may abandon it."""
        ready, place = pb.AttachResponse.FromString(message).ready, self.group.region
        if self.wanted == "inline":
            return "data_path is inline"
        if place is not None and ready.HasField("region_offer"):
            try:
                return _regions.attach(ready.region_offer, place[0], place[1], self.address)
            except (CroupierError, OSError, AttributeError) as error:
                if self.wanted == "shared_memory":
                    raise failed(f"no shared memory: {error}", error) from error
                return str(error)
        if self.wanted == "shared_memory":
            raise CroupierError("no shared memory: rank 0 has none")
        return "rank 0 has no shared memory" if place is None else ""

    def attached(self, message: bytes, mapped: Region | str) -> None:
        """Takes in the first answer, and the region that was mapped according to it."""
        ready = pb.AttachResponse.FromString(message).ready
        # After it has connected again, rank 0 continues to count its steps, but the server starts again.
        self.step = max(ready.last_step_id + 1, self.group.step)
        self.most = ready.max_shards_ahead
        if isinstance(mapped, Region):
            self.region, self.taken = mapped, Slots(self.group.slots)
        else:
            self.reason = mapped

    def has_room(self) -> bool:
        """Whether rows are available: a free slot if there are slots, and few enough shards without an answer."""
        return len(self.waiting) < self.most and (self.region is None or bool(self.free))

    @property
    def free(self) -> list[int]:
        """Free slots."""
        return self.taken.free()

    def rows(self, count: int) -> Rows:
        """Rows to write into: a slot if there is one that is large enough, else memory of their own."""
        count = whole("count", count, 0)
        if self.region is not None and count > self.group.max_rows:
            check_slot(self.wanted, count, self.group.max_rows)
        if self.region is None or count > self.group.max_rows:
            return Rows(writable(np.empty((count, self.columns), self.numpy)), owner=weakref.ref(self))
        _, _, first, slot_bytes, stride = self.group.region
        rows = Rows(None, region=self.region, owner=weakref.ref(self))
        if not self.taken.take(rows):
            raise CroupierError(NO_SLOT)
        flat = np.frombuffer(self.region.memory, self.numpy, count * stride, first + rows.slot * slot_bytes)
        rows.raw = writable(flat.reshape(count, stride)[:, self.start : self.start + self.columns])
        return rows

    def discard(self, rows: Rows) -> None:
        """Gives back the place of rows that will not be sent. The place of rows that were sent comes back with the
        answer."""
        rows.check_owner(self)
        if not rows.is_spent:
            rows.give_back()

    def placed(self, logits: Numbers | OnDevice) -> Rows:
        """The rank's columns in a place from which they can be announced."""
        rows = as_rows(logits, self.columns, self.group.dtype)
        return filled(self.rows(len(rows)), rows, self)

    @contextlib.contextmanager
    def to_announce(self, logits: Whole) -> Iterator[Rows]:
        """The rank's columns, as rows. If they are not announced, a place that was taken here is free again."""
        if isinstance(logits, Rows):
            yield logits
            return
        rows = self.placed(logits)
        try:
            yield rows
        except BaseException:
            self.discard(rows)
            raise

    def number(self, step_id: int | None) -> int:
        """The step id of the next columns, as given or the next one."""
        number = self.step if step_id is None else whole("step_id", step_id, 1, MOST_64)
        if number <= self.announced:
            raise ValueError(f"step_id is {number}, must be above {self.announced}, the step_id of the previous shard")
        return number

    def announce(self, rows: Rows, step_id: int | None) -> int:
        """Makes the message that announces a step's columns. It is sent next. Returns the step id."""
        rows.check_to_send(self)
        number = self.number(step_id)
        shard = pb.VocabShard(step_id=number)
        if rows.slot is None:
            shard.inline.data = self._data(rows)
        else:
            region_id, generation, first, slot_bytes, stride = self.group.region
            shard.region.region_id, shard.region.generation = region_id, generation
            shard.region.offset = first + rows.slot * slot_bytes
            shard.region.rows, shard.region.row_stride = len(rows.raw), stride
        message = pb.AttachRequest(shard=shard).SerializeToString()
        announced, unsent = Announced(message, None if rows.slot is None else rows), Unsent(message)
        # Nothing is called from here on, so that a signal handler finds either all of it done or nothing.
        rows.is_spent = True
        self.announced, self.step = number, number + 1
        self.waiting[number] = announced
        self.unsent = unsent
        return number

    def _data(self, rows: Rows) -> bytes:
        data: bytes = rows.raw.tobytes()
        most = self.group.max_message_bytes
        if most and len(data) + SPARE > most:
            raise ValueError(f"{len(rows.raw)} rows are {len(data)} bytes, max_message_bytes is {most}; a step of tensor-parallel "
                             "ranks cannot be split, because all ranks count its rows together; send fewer rows")
        return data

    def pause(self) -> float:
        """Seconds until the unsent shard may be sent."""
        return 0.0 if self.unsent is None else max(0.0, self.unsent.due - time.monotonic())

    def answered(self, message: bytes) -> None:
        """Takes in an answer. A shard that was refused is sent again."""
        result = pb.AttachResponse.FromString(message).shard
        if result.HasField("refusal") and next(reversed(self.waiting)) == result.step_id:
            due = time.monotonic() + result.refusal.retry_after_ms / 1000
            self.unsent = Unsent(self.waiting[result.step_id].message, due)
            return
        # A refused shard with others behind it would come too late.
        if rows := self.waiting.pop(result.step_id).rows:
            rows.give_back()
        if not result.joined:
            self.unsampled.append(result.step_id)

    def tokens(self, step_id: int, until: float, timeout: float) -> list[list[int]] | None:
        """Waits a moment for a step's tokens. `timeout` is the whole time to wait, and `until` is when that is over."""
        place = self.group.tokens
        if self.region is None or place is None:
            raise CroupierError("tokens are sent only in shared memory, which this rank does not have: " + (self.reason or "rank 0 has none"))
        tokens = Places(self.region, *place).wait(step_id, min(_MOMENT, until - time.monotonic()))
        if tokens is None and self.region.is_lost():
            raise CroupierError(f"the tokens of step {step_id} are gone: the group has ended, since rank 0 ended its stream")
        if tokens is None and time.monotonic() >= until:
            raise CroupierError(f"the tokens of step {step_id} did not arrive within {timeout} s: rank 0 has not sent the step, or it was refused")
        return tokens

    def may_be_refused(self, step_id: int) -> bool:
        """Whether a step waits for an answer that may ask for its columns again. If so, the answers must be read."""
        shard = self.waiting.get(step_id)
        return shard is not None and shard.rows is None

    def told(self) -> list[int]:
        """The steps that were not sampled since the last call."""
        unsampled, self.unsampled = self.unsampled, []
        return unsampled


class RankFront:
    """A rank's options and rows. The options are documented at `croupier.Rank`."""

    _session: RankSession
    _is_ended = False

    def __init__(self) -> None:
        self._owner = os.getpid()

    def _is_forked(self) -> bool:
        """As for a stream."""
        return os.getpid() != self._owner

    def _check_not_ended(self) -> None:
        if self._is_ended or self._is_forked():
            raise CroupierError("the rank was ended; attach again" if self._is_ended
                                else "the rank belongs to the parent process of this fork; attach a new one here")

    @property
    def data_path(self) -> str:
        """How columns are sent: "shared_memory" or "inline"."""
        return "shared_memory" if self._session.region else "inline"

    @property
    def data_path_reason(self) -> str:
        """Why columns are sent in messages. Empty if they are not."""
        return self._session.reason

    @property
    def vocab_range(self) -> range:
        """The range of this rank's columns."""
        return range(self._session.start, self._session.start + self._session.columns)

    def discard(self, rows: Rows) -> None:
        """Gives back rows that will not be sent."""
        self._session.discard(given_rows(rows))
