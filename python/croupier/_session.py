"""What a stream remembers, without a socket: sequences with their tokens, steps that wait for their results, slots.

Everything that is needed to go on after the server was killed is here, so the clients only carry bytes.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from . import _device, _regions
from ._arrays import DTYPES, narrowing, writable
from ._checks import MOST, MOST_64, token_ids, whole
from ._options import check_options
from ._regions import Region
from ._results import apply, apply_for_now, merged, not_yet, take_back
from ._slots import Places, Sharing
from ._split import Limits
from ._steps import StepMaker
from ._texts import Texts
from ._tokens import tokens_of
from ._types import Part, Rows, Sequence, Slots, Step
from ._wire import inline, message, placed
from .errors import CroupierError, Failure, LogitsLost, OpenError, RowError
from .schema import pb

LOG = logging.getLogger("croupier")
_PAGE = 4096
#: Seconds until a text is opened again that there was no room for.
_FULL_AGAIN = 0.1
#: Batches whose works are kept as they are sent: what is kept is only looked through where it is not the last one.
_KEPT = 8
_KEPT_PLACES = 1024
_LOST = "the region that the logits were in is gone with the server; write them again and send the step again"


class Session(Texts, StepMaker, Sharing):
    """One stream's memory."""

    def __init__(self, vocab_size: int, dtype: str, model: str, eos_token_ids: Iterable[int], default_params: Any,
                 data_path: str, max_rows: int, slots: int, vocab_shards: Iterable[int] | None = None,
                 device: str | None = None) -> None:
        check_options(dtype, data_path, vocab_shards, device)
        vocab_size, max_rows, slots = (whole(name, value, 1, MOST) for name, value in (("vocab_size", vocab_size), ("max_rows", max_rows),
                                                                                ("slots", slots)))
        wire, self.numpy = DTYPES[dtype]
        self.dtype, self.vocab_size, self.wanted = dtype, vocab_size, data_path
        self.device = device or ""
        super().__init__(pb.StreamConfig(vocab_size=vocab_size, logits_dtype=wire, model=model,
                                         eos_token_ids=token_ids("eos_token_ids", eos_token_ids), default_params=default_params,
                                         wants_regions=data_path != "inline"))
        self.shards = None if vocab_shards is None else [whole(f"vocab_shards[{rank}]", columns, 1, MOST)
                                                         for rank, columns in enumerate(vocab_shards)]
        if self.shards is not None:
            self.config.vocab_shards.columns.extend(self.shards)
        # Columns that come from here.
        self.columns = self.shards[0] if self.shards else vocab_size
        self.offer: Any = None
        # Rows begin at a multiple of 64 bytes.
        together = 64 // self.numpy.itemsize
        self.stride = -(-vocab_size // together) * together
        self.max_rows, self.slots = max_rows, slots
        self.slot_bytes = -(-max_rows * self.stride * self.numpy.itemsize // _PAGE) * _PAGE
        if slots * self.slot_bytes > MOST_64 // 2:
            raise ValueError(f"max_rows is {max_rows} and slots {slots}, which would take {slots * self.slot_bytes} bytes")
        # Steps that nobody has taken the result of, and the messages without an answer, in the order of their answers.
        self.steps: deque[Step] = deque()
        self.waiting: deque[Part] = deque()
        self.region: Region | None = None
        self.tokens: Places | None = None
        self.taken = Slots(0)
        self.reason = "data_path is inline" if data_path == "inline" else ""
        self.sharded = self.numbers = 0
        self.works: deque[tuple[list[Sequence], bytes]] = deque(maxlen=_KEPT)
        self.places: dict[tuple[int, int], bytes] = {}
        self.lost = False
        # Whether the server asked to leave, and texts with a draft that it keeps: what their last work was emitted nothing.
        self.is_asked_to_leave = False
        self.drafted: set[int] = set()

    # Connecting.

    def offered(self, ready: Any) -> None:
        """Takes in what the server offers."""
        self.offer, self.limits = ready.shard_offer, Limits(ready.limits)
        self.is_asked_to_leave = False
        self.drafted.clear()

    def may_leave(self) -> bool:
        """Whether the server asked for it and nothing is there that only it has: steps under way, drafts, memory that is shared with it, or
        other ranks."""
        if not self.is_asked_to_leave or self.steps or self.region is not None or self.shards:
            return False
        self.drafted &= self.sequences.keys()
        return not self.drafted

    def lease(self, ready: Any, address: str) -> Region | str:
        """A region where one is wanted, or why there is none. Blocks, and changes nothing here: asyncio may give it up."""
        if self.wanted == "inline":
            return self.reason
        kind = "device memory" if self.wanted == "device_memory" else "shared memory"
        try:
            if not ready.HasField("region_offer"):
                raise CroupierError(f"the server offers no {kind}")
            return self._leased(ready.region_offer, address)
        except (CroupierError, OSError, AttributeError) as error:
            if self.wanted != "auto":
                hint = "; servers have it with --uds or --region-socket" if kind == "shared memory" else ""
                raise CroupierError(f"no {kind}: {error}{hint}") from error
            return str(error)

    def move(self, leased: Region | str) -> None:
        """Goes over to what was leased."""
        if isinstance(leased, Region):
            self._move(leased)
            self.reason = ""
        elif self.wanted != "inline":
            self._move(None)
            self._say_inline(leased)

    def _say_inline(self, why: str, level: int = logging.INFO) -> None:
        """Says why logits go in messages where they need not, once; a warning where whoever wrote the program can change it."""
        if why != self.reason:
            self.reason = why
            LOG.log(level, "logits go in messages: %s", why)

    def _leased(self, offer: Any, address: str) -> Region:
        size = self.slots * self.slot_bytes + self._token_bytes()
        if self.wanted == "device_memory":
            return _device.lease(offer, size, address, self.device)
        return _regions.lease(offer, size, address)

    def leave_region(self) -> None:
        """At the end: the mapping goes with the last array that looks at it, not with the stream's own end as an object."""
        if self.region is not None:
            self.region.close()
            self.region = None

    def _move(self, region: Region | None) -> None:
        """Goes over to another region; messages without an answer take their rows along."""
        old, self.region, self.tokens = self.region, region, self._token_places(region)
        self.taken = Slots(self.slots if region else 0)
        self.places.clear()
        try:
            taken: dict[int, Rows] = {}
            # Those that are still to be sent too.
            for part in (part for step in self.steps for part in step.parts):
                if part.logits is not None and part.result is None and not part.refused:
                    part.logits = self._taken_along(part.logits, taken)
        except LogitsLost:
            self._lose()
        if old:
            old.close()

    def _taken_along(self, rows: Rows, taken: dict[int, Rows]) -> Rows:
        """Parts of a step may have the same rows."""
        if id(rows) not in taken:
            kept = taken[id(rows)] = self._kept(rows)
            kept.users, kept.is_spent = rows.users, True
        return taken[id(rows)]

    def _lose(self) -> None:
        """Gives up every step without its result, and what is known of it: the sequences are opened again as they were."""
        self.lost = True
        self._give_up()

    def _give_up(self) -> None:
        parts = [part for step in self.steps if step.left for part in step.parts]
        for part in reversed(parts):
            take_back(part, self.sequences)
        self.put_back([sequence for part in parts for sequence in part.open])
        self.steps = deque(step for step in self.steps if not step.left)
        self.waiting.clear()
        for part in parts:
            if part.logits is not None:
                part.logits.give_back()

    def give_up(self) -> None:
        """After the end of the stream: texts stay, to be opened again; steps without a result and the region are gone."""
        self._give_up()
        self._move(None)

    def _kept(self, rows: Rows) -> Rows:
        """Rows in the region of now."""
        if rows.slot is None or rows.region is self.region:
            return rows
        if rows.region.on_device:
            # What a GPU was still to write there when the server went nobody knows.
            raise LogitsLost(_LOST)
        kept = self.rows(len(rows.raw))
        kept.raw[:] = rows.raw if rows.saved is None else rows.saved
        # Looked at last: what was copied before the pages went is whole.
        if rows.saved is None and rows.region.is_lost():
            self.discard(kept)
            raise LogitsLost(_LOST)
        return kept

    def again(self) -> tuple[list[Part], list[Part]]:
        """After a new connection: what opens again what is open, and what has no answer."""
        unanswered = [part for step in self.steps for part in step.parts]
        if self.shards and any(part.logits is not None and part.result is None and not part.refused for part in unanswered):
            # The other ranks were cut off too, and their columns with them: of a step that was not sent yet as well.
            self._lose()
            unanswered = [part for step in self.steps for part in step.parts]
        for part in unanswered:
            if part.result is not None:
                # The texts go on from here.
                apply_for_now(part, self.sequences, self.close)
        unanswered = [part for part in unanswered if part.result is None and not part.refused]
        with self.changing:
            fresh = {id(sequence) for part in unanswered for sequence in part.open}
            fresh |= {id(sequence) for sequence in self.opening.values()}
            known = [sequence for sequence in self.sequences.values() if id(sequence) not in fresh]
            closed = self._closed_behind(unanswered, fresh)
            # The rest was closed by the end of the stream.
            still = {sequence.id for part in unanswered for sequence in part.open} | {sequence.id for sequence in closed}
            self.closing = [number for number in self.closing if number in still]
        rest = self._without_answer()
        first = [Part(Step(left=1), 0, b"".join(wire), open) for open, wire in self._openings(closed + known, CroupierError)]
        for part in first:
            part.step.parts.append(part)
        self.waiting = deque([*first, *rest])
        return first, rest

    def _without_answer(self) -> list[Part]:
        """What was sent. Not what waits: an interruption may have come between the two."""
        parts = (part for step in self.steps for part in step.parts)
        return [part for part in parts if part.is_begun and part.result is None and not part.refused]

    def _closed_behind(self, unanswered: list[Part], fresh: set[int]) -> list[Sequence]:
        """Texts that were closed behind a step without an answer, which still works on them."""
        texts = {id(text): text for part in unanswered for text in part.texts if text is not None}
        return [text for key, text in texts.items()
                if key not in fresh and self.sequences.get(text.id) is not text and not text.finish_reason and not text.refused]

    def _open_later(self, part: Part, texts: list[Sequence]) -> None:
        """Settles what was opened again, and keeps these to be tried once more."""
        others = [(text, opened) for text, opened in zip(part.open, part.result.open) if text not in texts]
        settled = Part(part.step, 0, b"", [text for text, _ in others], result=pb.StepResult(open=[opened for _, opened in others]))
        apply(settled, self.sequences, self.close)
        part.open, part.result = texts, None
        part.fixed = b"".join(one for _, wire in self._openings(texts, CroupierError) for one in wire)
        self.waiting.appendleft(part)

    def raise_if_lost(self) -> None:
        """Tells once that logits were lost."""
        if self.lost:
            self.lost = False
            raise LogitsLost(_LOST)

    # Rows.

    def rows(self, count: int) -> Rows:
        """Rows to be written: a slot if there is one that holds so many, else memory of one's own."""
        # Looked at once: another thread may end the stream.
        count, region = whole("count", count, 0), self.region
        if region is None and self.wanted == "device_memory":
            raise CroupierError("the stream has ended and its rows with it; step(None) connects again")
        on_device = region is not None and region.on_device
        if on_device and count > self.max_rows:
            raise ValueError(f"{count} rows, must be at most max_rows, {self.max_rows}: other memory of the GPU is not sent")
        if region is not None and count > self.max_rows:
            self._say_inline(f"a step had more rows than max_rows, {self.max_rows}; connect with a larger one", logging.WARNING)
        if region is None or count > self.max_rows:
            return Rows(writable(np.empty((count, self.columns), self.numpy)), owner=weakref.ref(self))
        rows = Rows(None, region=region, owner=weakref.ref(self))
        if not self.taken.take(rows):
            raise CroupierError(self._no_slot())
        offset = region.first + rows.slot * self.slot_bytes
        rows.raw = writable(region.view(self.numpy, count, self.stride, self.columns, offset))
        return rows

    @property
    def free(self) -> list[int]:
        """Slots that nobody has."""
        return self.taken.free()

    def _no_slot(self) -> str:
        waiting = {part.logits.slot for part in self.waiting if part.logits is not None} - {None}
        held = self.slots - len(waiting)
        return (f"every slot is taken: {len(waiting)} by steps without a result, {held} by rows that were not sent; "
                "take a result, send or discard rows, or connect with more slots")

    def keep_rows(self) -> None:
        """Keeps the rows of steps without an answer as they are now, where they are still the caller's or go with the connection."""
        parts = [part for step in self.steps for part in step.parts if part.result is None]
        for rows in {id(part.logits): part.logits for part in parts if part.logits is not None}.values():
            if rows.slot is None:
                rows.raw = np.array(rows.raw)
            elif not rows.region.on_device and rows.saved is None:
                copy = np.array(rows.raw)
                rows.saved = None if rows.region.is_lost() else copy
        for part in parts:
            if isinstance(part.source, np.ndarray):
                part.source = np.array(part.source)

    def discard(self, rows: Rows) -> None:
        """Gives back the place of rows that will not be sent. Of rows that were, the place comes back with the result."""
        rows.check_owner(self)
        if not rows.is_spent:
            rows.give_back()

    def synchronize(self) -> None:
        """Waits until the GPU has written what it was asked to; the server does not. Without one there is nothing to wait for."""
        if (region := self.region) is not None:
            region.synchronize()

    # Messages.

    def may_send(self, part: Part) -> bool:
        """Whether it is the part's turn, and there is room for its rows. If not, an answer has to come first."""
        if part.is_alone and self.waiting:
            return False
        return part.source is None or bool(self.free) or not self.waiting

    def send(self, part: Part) -> bytes:
        """The part as it is sent now."""
        if part.source is not None:
            part.logits, part.source = self._placed(part.source), None
            part.logits.users, part.logits.is_spent = 1, True
            self.synchronize()
        part.is_begun = True
        self.waiting.append(part)
        return self.encode(part)

    def not_begun(self) -> Part | None:
        """The next part whose turn to be sent has not come yet."""
        return next((part for step in self.steps for part in step.parts if not part.is_begun), None)

    def encode(self, part: Part) -> bytes:
        rows = part.logits
        if rows is None:
            return message(part.fixed, [])
        is_sharded = bool(self.shards)
        if rows.slot is None:
            return message(part.fixed + self._slots_of(part), inline(self._numbers(rows.raw[part.first:part.end]), is_sharded))
        offset = rows.region.first + rows.slot * self.slot_bytes + part.first * self.stride * self.numpy.itemsize
        key = (offset, part.end - part.first)
        if key not in self.places:
            if len(self.places) > _KEPT_PLACES:
                self.places.clear()
            self.places[key] = placed(rows.region, *key, self.stride, is_sharded)
        return message(part.fixed + self._slots_of(part), [self.places[key]])

    def _numbers(self, rows: np.ndarray) -> np.ndarray:
        with narrowing():
            return np.ascontiguousarray(rows, self.numpy)

    def answer(self, reply: bytes) -> tuple[float, Part] | None:
        """Takes in an answer. Gives a part that was refused and has to be sent again, and after how many seconds."""
        result = pb.DecodeResponse.FromString(reply).step
        part = self.waiting[0]
        self.is_asked_to_leave |= result.go_away
        if result.step_id != part.step_id:
            raise CroupierError(f"the server answered step {result.step_id}, expected was {part.step_id}; connect again")
        self.waiting.popleft()
        if result.HasField("refusal"):
            part.busy = result.refusal.message
            if not part.step_id:
                # What is opened again comes before all others, which were not sent yet.
                self.waiting.appendleft(part)
                return result.refusal.retry_after_ms / 1000, part
            # Parts of a step do not depend on one another, but steps behind it have run: then it would come too late.
            if not self.waiting or self.waiting[-1].step is part.step:
                self.waiting.append(part)
                return result.refusal.retry_after_ms / 1000, part
            part.refused = f"refused: {result.refusal.message}"
        else:
            part.result = result
            if part.is_plain:
                part.tokens = tokens_of(reply, len(part.emits))
            # More than one stream may have are not waited for.
            may_wait = not part.step_id and len(self.sequences) <= self.limits.sequences
            full, part.busy = not_yet(part, result) if may_wait else ([], "")
            if full:
                self._open_later(part, full)
                return _FULL_AGAIN, part
        if part.logits is not None:
            self._let_go(part.logits)
        step = part.step
        step.left -= 1
        if not step.left:
            self._finish(step)
        return None

    def _let_go(self, rows: Rows) -> None:
        rows.users -= 1
        if not rows.users:
            rows.give_back()

    def _finish(self, step: Step) -> None:
        for part in step.parts:
            if part.refused:
                # What it should open and close goes with the next.
                self.put_back(part.open, part.close)
                step.failures.update({s.id: Failure(part.refused, "REFUSED") for s in part.emits if s is not None})
            else:
                apply(part, self.sequences, self.close)
                if not part.is_plain:
                    self._note_drafts(part)

    def _note_drafts(self, part: Part) -> None:
        for text, emitting in zip(part.texts, part.emits):
            if text is not None:
                (self.drafted.add if emitting is None else self.drafted.discard)(text.id)

    def take(self) -> tuple[Step, Any]:
        """The oldest step, which has all its answers, and its result."""
        step = self.steps.popleft()
        refused = [part.refused for part in step.parts if part.refused]
        if len(refused) == len(step.parts):
            raise CroupierError(refused[0])
        if step.opens_failed:
            raise OpenError(step.opens_failed)
        if refused:
            raise RowError(step.failures)
        return step, merged(step)
