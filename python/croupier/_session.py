"""The state of a stream, without a socket: sequences with their tokens, steps that wait for their results, slots.

Everything that is needed to continue after the server was killed is here, so that the clients only carry bytes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from . import _device, _regions
from ._arrays import narrowing
from ._regions import Region
from ._results import apply, apply_for_now, is_of_grammars, merged, not_yet, take_back
from ._rows import LOST
from ._split import Limits
from ._status import failed
from ._steps import StepMaker
from ._tokens import tokens_of
from ._types import Part, Rows, Sequence, Slots, Step
from ._wire import inline, message, placed
from .errors import CroupierError, Failure, LogitsLost
from .schema import pb

if TYPE_CHECKING:
    from ._forms import Array

#: Seconds until another attempt to open a text that there was no room for.
_FULL_AGAIN = 0.1
_KEPT_PLACES = 1024
#: Reasons for which a region is not available although a smaller one may be.
_OF_SIZE = {"REGION_BYTES", "DEVICE_REGION_BYTES", "DEVICE_MEMORY", "SYSTEM"}


class Session(StepMaker):
    """The state of one stream."""

    # Connecting.

    def offered(self, ready: pb.StreamReady) -> None:
        """Takes in what the server offers."""
        self.offer, self.limits = ready.shard_offer, Limits(ready.limits)
        self.is_asked_to_leave = False
        self.connections += 1
        self.drafted.clear()

    def may_leave(self) -> bool:
        """Whether the server asked the stream to leave, and nothing depends on that server: no steps under way, no
        drafts, no memory shared with it, and no other ranks."""
        if not self.is_asked_to_leave or self.steps or self.region is not None or self.shards:
            return False
        self.drafted &= self.sequences.keys()
        return not self.drafted

    def lease(self, ready: pb.StreamReady, address: str) -> Region | str:
        """Leases a region if one is wanted, or returns why there is none. It blocks, and changes nothing here, so that
        asyncio may abandon it."""
        if self.wanted == "inline":
            return self.reason
        kind = "device memory" if self.wanted == "device_memory" else "shared memory"
        try:
            if not ready.HasField("region_offer"):
                hint = "; start the server with --uds or --region-socket" if self.wanted == "shared_memory" else ""
                raise CroupierError(f"the server offers no {kind}{hint}")
            return self._leased(ready.region_offer, address)
        except (CroupierError, OSError, AttributeError) as error:
            is_size = isinstance(error, CroupierError) and (error.reason in _OF_SIZE or error.field == "lease.bytes")
            hint = f"; its size comes from max_rows {self.max_rows} and slots {self.slots}, connect with smaller ones" if is_size else ""
            if self.wanted != "auto":
                raise failed(f"no {kind}: {error}{hint}", error) from error
            return f"{error}{hint}"

    def move(self, leased: Region | str) -> None:
        """Switches to the region that was leased."""
        if isinstance(leased, Region):
            self._move(leased)
            self.reason = ""
        elif self.wanted != "inline":
            self._move(None)
            self._say_inline(leased)

    def _leased(self, offer: pb.RegionOffer, address: str) -> Region:
        size = self.slots * self.slot_bytes + self._token_bytes()
        if self.wanted == "device_memory":
            return _device.lease(offer, size, address, self.device)
        return _regions.lease(offer, size, address)

    def leave_region(self) -> None:
        """Leaves the region at the end. The mapping ends with the last array that refers to it, not with the stream
        object."""
        if self.region is not None:
            self.region.close()
            self.region = None

    def _move(self, region: Region | None) -> None:
        """Switches to another region. Messages without an answer take their rows along."""
        old, self.region, self.tokens = self.region, region, self._token_places(region)
        self.taken = Slots(self.slots if region else 0)
        self.places.clear()
        try:
            taken: dict[int, Rows] = {}
            # This includes messages that are yet to be sent.
            for part in (part for step in self.steps for part in step.parts):
                if part.logits is not None and part.result is None and not part.refused:
                    part.logits = self._taken_along(part.logits, taken)
        except LogitsLost:
            self._lose()
        if old:
            old.close()

    def _taken_along(self, rows: Rows, taken: dict[int, Rows]) -> Rows:
        """Moves rows to the new region, once: parts of a step may share them."""
        if id(rows) not in taken:
            kept = taken[id(rows)] = self._kept(rows)
            kept.users, kept.is_spent = rows.users, True
        return taken[id(rows)]

    def _lose(self) -> None:
        """Gives up every step without a result, and its state. The sequences are opened again as they were."""
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
            part.drop()

    def give_up(self) -> None:
        """Cleans up after the end of the stream. Texts stay, to be opened again. Steps without a result, and the
        region, are dropped."""
        self._give_up()
        self._move(None)

    def again(self) -> tuple[list[Part], list[Part]]:
        """After a new connection: the parts that open the open texts again, and the parts without an answer."""
        unanswered = [part for step in self.steps for part in step.parts]
        if self.shards and any(part.logits is not None and part.result is None and not part.refused for part in unanswered):
            # The other ranks were cut off too and their columns are lost, even those for a step that was not sent yet.
            self._lose()
            unanswered = [part for step in self.steps for part in step.parts]
        for part in unanswered:
            if part.result is not None:
                # The texts continue after this result.
                apply_for_now(part, self.sequences, self.close)
        unanswered = [part for part in unanswered if part.result is None and not part.refused]
        with self.changing:
            fresh = {id(sequence) for part in unanswered for sequence in part.open}
            fresh |= {id(sequence) for sequence in self.opening.values()}
            known = [sequence for sequence in self.sequences.values() if id(sequence) not in fresh]
            closed = self._closed_behind(unanswered, fresh)
            # The end of the stream has closed the others.
            still = {sequence.id for part in unanswered for sequence in part.open} | {sequence.id for sequence in closed}
            self.closing = [number for number in self.closing if number in still]
        rest, self.reopened = self._without_answer(), closed + known
        first = [Part(Step(left=1, opens_failed=self.not_reopened), 0, b"".join(wire), open)
                 for open, wire in self._openings(closed + known, CroupierError)]
        self.waiting = deque([*first, *rest])
        return first, rest

    def _without_answer(self) -> list[Part]:
        """Parts that were sent and have no answer. It does not use `waiting`, because an interruption may have come in
        between."""
        parts = (part for step in self.steps for part in step.parts)
        return [part for part in parts if part.is_begun and part.result is None and not part.refused]

    def _closed_behind(self, unanswered: list[Part], fresh: set[int]) -> list[Sequence]:
        """Texts that were closed after a step without an answer, which still works on them."""
        texts = {id(text): text for part in unanswered for text in part.texts if text is not None}
        return [text for key, text in texts.items()
                if key not in fresh and self.sequences.get(text.id) is not text and not text.finish_reason and not text.refused]

    def _open_later(self, part: Part, full: dict[Sequence, pb.OpenResult]) -> None:
        """Applies the openings that succeeded or failed for good, and keeps the others for another attempt."""
        others = [(text, opened) for text, opened in zip(part.open, part.answered().open) if text not in full]
        settled = Part(part.step, 0, b"", [text for text, _ in others], result=pb.StepResult(open=[opened for _, opened in others]))
        apply(settled, self.sequences, self.close)
        part.open, part.full, part.result = [*full], [*full.values()], None
        if busy := next(filter(is_of_grammars, part.full), None):
            part.full, part.busy = [], busy.error.message
        part.fixed = b"".join(one for _, wire in self._openings(part.open, CroupierError) for one in wire)
        self.waiting.appendleft(part)

    def wait_no_more(self, part: Part) -> None:
        """Ends the attempts to open texts again after too long a time. Texts that the server has no room for are then
        not opened, so that the others can continue. Raises if the server was busy and opened no text."""
        if not part.full:
            raise CroupierError(f"texts cannot be opened again: {part.busy}")
        self.waiting.remove(part)
        apply(Part(part.step, 0, b"", part.open, result=pb.StepResult(open=part.full)), self.sequences, self.close)

    def raise_if_lost(self) -> None:
        """Raises once if logits were lost."""
        if self.lost:
            self.lost = False
            raise LogitsLost(LOST)

    # Messages.

    def may_send(self, part: Part) -> bool:
        """Whether it is the part's turn and there is room for its rows. If not, an answer must come first."""
        if part.is_alone and self.waiting:
            return False
        return part.source is None or bool(self.free) or not self.waiting

    def send(self, part: Part) -> bytes:
        """The part as it is to be sent now."""
        if part.source is not None:
            part.logits, part.source = self._placed(part.source), None
            part.logits.users, part.logits.is_spent = 1, True
            self.synchronize()
        # First, because it may fail: only what can be sent waits for an answer.
        request = self.encode(part)
        part.is_begun = True
        self.waiting.append(part)
        return request

    def not_begun(self) -> Part | None:
        """The next part whose turn has not come yet."""
        return next((part for step in self.steps for part in step.parts if not part.is_begun), None)

    def encode(self, part: Part) -> bytes:
        rows = part.logits
        if rows is None:
            return message(part.fixed, [])
        is_sharded, region = bool(self.shards), rows.region
        if rows.slot is None or region is None:
            return message(part.fixed + self._slots_of(part), inline(self._numbers(rows, part.first, part.end), is_sharded))
        offset = region.first + rows.slot * self.slot_bytes + part.first * self.stride * self.numpy.itemsize
        key = (offset, part.end - part.first)
        if key not in self.places:
            if len(self.places) > _KEPT_PLACES:
                self.places.clear()
            self.places[key] = placed(region, *key, self.stride, is_sharded)
        return message(part.fixed + self._slots_of(part), [self.places[key]])

    def _numbers(self, rows: Rows, first: int, end: int) -> Array:
        with narrowing(rows, rows.raw):
            numbers: Array = np.ascontiguousarray(rows.raw[first:end], self.numpy)
        return numbers

    def answer(self, reply: bytes) -> tuple[float, Part] | None:
        """Takes in an answer. Returns a part that was refused and must be sent again, and after how many seconds."""
        result = pb.DecodeResponse.FromString(reply).step
        part = self.waiting[0]
        self.is_asked_to_leave |= result.go_away
        if result.step_id != part.step_id:
            raise CroupierError(f"the server answered step {result.step_id} instead of step {part.step_id}; connect again")
        self.waiting.popleft()
        if result.HasField("refusal"):
            # What the server said before about texts that it has no room for may be outdated by now.
            part.busy, part.full = result.refusal.message, []
            if not part.step_id:
                # The part that opens texts again goes before all others, which were not sent yet.
                self.waiting.appendleft(part)
                return result.refusal.retry_after_ms / 1000, part
            # Parts of a step do not depend on each other. But if steps behind it have run, it would come too late.
            if not self.waiting or self.waiting[-1].step is part.step:
                self.waiting.append(part)
                return result.refusal.retry_after_ms / 1000, part
            part.refused, part.reason = f"refused: {result.refusal.message}", result.refusal.reason
        else:
            part.result = result
            if part.is_plain:
                part.tokens = tokens_of(reply, len(part.emits))
            # If there are more texts than one stream may have, it does not wait for room.
            if not part.step_id and (full := not_yet(part, result, len(self.sequences) <= self.limits.sequences)):
                self._open_later(part, full)
                return _FULL_AGAIN, part
        if part.logits is not None:
            self._let_go(part.logits)
        step = part.step
        step.left -= 1
        if not step.left:
            # A part that opens texts again is alone, and its step does not list it.
            self._finish(step, step.parts or [part])
        return None

    def _let_go(self, rows: Rows) -> None:
        rows.users -= 1
        if not rows.users:
            rows.give_back()

    def _finish(self, step: Step, parts: list[Part]) -> None:
        for part in parts:
            if part.refused:
                # The texts that it should open and close go with the next step.
                self.put_back(part.open, part.close)
                if not step.refused:
                    step.refused, step.reason = part.refused, part.reason
                step.failures.update({s.id: Failure(part.refused, "REFUSED") for s in part.texts if s is not None})
            else:
                apply(part, self.sequences, self.close)
                if not part.is_plain:
                    self._note_drafts(part)
            part.drop()

    def _note_drafts(self, part: Part) -> None:
        for text, emitting in zip(part.texts, part.emits):
            if text is not None:
                (self.drafted.add if emitting is None else self.drafted.discard)(text.id)

    def take(self) -> tuple[Step, pb.StepResult]:
        """The oldest step, which has all its answers, and its result. `checked` raises if something in it failed. This
        raises if nothing was done."""
        step = self.steps.popleft()
        if step.refused and all(part.refused for part in step.parts):
            raise CroupierError(step.refused, reason=step.reason)
        step.opens_failed.update(self.not_reopened)
        self.not_reopened.clear()
        return step, merged(step)
