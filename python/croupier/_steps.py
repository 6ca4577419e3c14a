"""Makes steps: what goes into one message, and what into several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Listing
from typing import TYPE_CHECKING, cast

import numpy as np

from . import _device
from ._arrays import as_rows, filled, is_on_device, narrowing
from ._checks import below, check_once, listed, text
from ._masks import masked
from ._options import check_slot
from ._slots import Sharing
from ._split import LISTED_BYTES, SPARE, TARGET, Cut, Need, moved, needs_of, rows_of
from ._top_n import TopN
from ._types import Part, Rows, Sequence, Step
from ._wire import varint
from .errors import CroupierError
from .schema import pb

if TYPE_CHECKING:
    from ._forms import Array, Logits, Masks, OnDevice, Whole, Work

#: Where steps without shards are counted from, in a stream that has some: ranks count the others, from 1.
_WITHOUT_SHARDS = 1 << 63
#: Bytes that a work which samples takes in a message, at most.
_SAMPLE = 16
#: The most draft tokens that a text has. The schema says it in words, at `VerifyWork.draft_token_ids`: it is of the wire, no setting, so that
#: neither `Limits` nor `GetServerInfo` tells it.
_MOST_DRAFTED = 256
#: Bytes that one takes in a message beside its row and mask.
_DRAFTED = 16
#: The most works whose rows a mistake counts one by one.
_SHOWN = 8


#: Works as they are sent, the sequence of each that emits tokens, and that of each.
_Works = tuple[bytes, list[Sequence | None], list[Sequence | None]]


class _Asked:
    """A step as it was asked for."""

    def __init__(self, work: list[Work], rows: Rows | None, source: Array | OnDevice | None, top_n: TopN | None, about: bytes) -> None:
        self.work, self.rows, self.source, self.top_n, self.about = work, rows, source, top_n, about
        self.opening: list[Sequence] = []
        self.closing: list[int] = []
        # How many steps with rows of ranks and how many messages there are with it.
        self.sharded = self.numbers = 0
        self.is_plain = False
        """Whether it only samples, one row after another."""
        self.listed = [] if top_n is None else [len(row) for row in top_n.ids]

    @property
    def whole(self) -> int:
        """How many whole rows there are."""
        if self.source is not None:
            return _device.count_of(self.source)
        return 0 if self.rows is None else len(self.rows.raw)


class StepMaker(Sharing):
    """The part of a session that makes steps."""

    def step(self, logits: Logits, work: Iterable[Work], keep: bool = False, one_each: bool = False, traceparent: str = "",
             deadline_ms: int = 0) -> Step:
        """A step, whose parts are to be sent. `work` holds sequences (to be sampled) or `Work` messages; `logits` whole rows, a
        `TopN`, or both, whose rows are numbered after the whole ones. With `keep` the logits may change before it is answered;
        with `one_each` there must be one row for each work."""
        whole, top_n = _apart(logits)
        about = _about(traceparent, deadline_ms)
        rows, source = self._brought(whole, keep)
        try:
            asked = _Asked(listed("work", work, "texts or works", "text"), rows, source, top_n, about)
            self.check_open(asked.work)
            count = asked.whole + len(asked.listed)
            if not one_each:
                _check_count(count, asked.work)
            elif count != len(asked.work):
                raise ValueError(f"logits have {count} rows for {len(asked.work)} sequences, must be one for each")
            _check_once(asked.work)
            step = Step()
            asked.opening, asked.closing, asked.sharded, asked.numbers = *self.changes(), self.sharded, self.numbers
            step.parts = self._parts(step, asked)
            step.left = len(step.parts)
            self._begin(step, asked, whole)
        except BaseException:
            if rows is not None and rows is not whole:
                self.discard(rows)
            raise
        return step

    def _begin(self, step: Step, asked: _Asked, logits: Whole | None) -> None:
        """All that a step changes here. Before this nothing has changed: a mistake, or a signal's handler that comes sooner, leaves the steps
        before, the texts and the count of the ranks as they were."""
        given = logits if isinstance(logits, Rows) else Rows(None)
        sent = Rows(None) if asked.rows is None else asked.rows
        users = sum([part.logits is not None for part in step.parts])
        with self.changing:
            opening, closing = self.without(asked.opening, asked.closing)
            # Nothing is called from here on, nor does anything jump: a handler finds all of it done or nothing.
            self.opening, self.closing, self.sharded, self.numbers = opening, closing, asked.sharded, asked.numbers
            given.is_spent = True
            # Rows that no work wants are free at once.
            sent.users, sent.is_spent, sent.is_back = users, True, users == 0
            self.steps += [step]

    def masked(self, sequences: list[Sequence], token_masks: Masks) -> list[pb.Work]:
        """Work that samples these behind their masks."""
        self.check_open(sequences)
        return masked(sequences, token_masks, self.vocab_size)

    def draft_room(self) -> int:
        """How many draft tokens a verification has room for, with whole rows and masks, by the limits that are known: it cannot be split."""
        limits, itemsize = self.limits, self.numpy.itemsize
        mask = -(-self.vocab_size // 32) * 4
        rows = (limits.message_bytes - 2 * SPARE) // (self.columns * itemsize + mask + _DRAFTED)
        if self.insists:
            # Also between two connections, where there is no region.
            rows = self.max_rows
        elif self.region is not None:
            # What is too much for a slot may go in a message.
            rows = max(rows, self.max_rows)
        rows = min(rows, limits.rows, limits.row_bytes // (self.vocab_size * itemsize))
        return max(min(rows - 1, _MOST_DRAFTED), 0)

    def check_open(self, work: Listing[Work]) -> None:
        """Whether texts among works are open on this stream. They are sent by their ids, which another's may have too."""
        for at, item in enumerate(work):
            if not isinstance(item, Sequence):
                if not isinstance(item, pb.Work):
                    raise TypeError(f"work[{at}] is {item!r}, must be a sequence of this stream or a croupier.pb.Work")
                continue
            known = self.sequences.get(item.id)
            # Nobody was told yet that it could not be opened again: this step tells it, and is done for the others.
            if known is item or (known is None and item.refused and self.not_reopened.get(item.id) is item.refused):
                continue
            if item.refused:
                raise ValueError(f"sequence {item.id} was not opened: {item.refused}")
            if item.finish_reason:
                raise ValueError(f"sequence {item.id} has ended, finish_reason is {item.finish_reason!r}")
            raise ValueError(f"sequence {item.id} is not open on this stream: it was closed, or another stream opened it")

    def check_forked(self, sequence: Sequence) -> None:
        """Whether all that there is of a text is known here."""
        if sequence.refused:
            raise ValueError(f"sequence {sequence.id} was not opened: {sequence.refused}")
        if any(sequence in part.emits for step in list(self.steps) for part in step.parts):
            raise ValueError(f"sequence {sequence.id} is in a step that is under way; take its result first, with result()")

    def _brought(self, logits: Whole | None, keep: bool) -> tuple[Rows | None, Array | OnDevice | None]:
        """Rows where they can be sent from, or what does not fit there at once."""
        if logits is None:
            return None, None
        if isinstance(logits, Rows):
            logits.check_to_send(self)
            rows = self._kept(logits)
            self.synchronize()
            return rows, None
        # Looked at once: another thread may end the stream.
        region = self.region
        if region is not None and region.on_device and is_on_device(logits):
            count = _device.row_count(logits, self.columns, self.numpy)
        else:
            logits = as_rows(logits, self.columns, self.dtype)
            count = len(logits)
        if region is None or (count > self.max_rows and self.shards):
            if region is not None:
                check_slot(self.wanted, count, self.max_rows)
            rows = Rows(logits)
            if keep:
                with narrowing(rows):
                    rows.raw = np.array(logits, self.numpy)
            return rows, None
        if count > self.max_rows:
            if not self.free and not self.waiting:
                raise CroupierError("every slot is written and not sent; send or discard one first")
            return None, logits
        rows = self._placed(logits)
        self.synchronize()
        return rows, None

    def _placed(self, logits: Array | OnDevice) -> Rows:
        return filled(self, logits, _device.count_of(logits))

    def _parts(self, step: Step, asked: _Asked) -> list[Part]:
        openings = self._openings(asked.opening, ValueError) if asked.opening else []
        size = sum(len(one) for _, wire in openings for one in wire)
        works = self._works(asked.work)
        asked.is_plain = works[1] is asked.work
        needs = None if asked.is_plain else needs_of([_sampled(item) for item in asked.work])
        if len(openings) > 1 or not self._fits(asked, needs, size):
            return self._cut(step, asked, needs or [Need(i, i + 1, _SAMPLE) for i in range(len(asked.work))], openings)
        span = None if asked.rows is None else (0, self._used(asked, asked.rows, needs))
        part = self._part(step, asked, span, works, self._listed(asked.top_n), asked.opening,
                          [one for _, wire in openings for one in wire])
        # What it opens is answered too.
        part.is_plain = asked.is_plain and not openings
        self._close_with(part, asked.closing)
        return [part]

    def _used(self, asked: _Asked, rows: Rows, needs: list[Need] | None) -> int:
        """Rows up to the last one that work uses: a message has no others. Ranks all send as many as there are."""
        if needs is None or self.shards or rows.slot is not None:
            return asked.whole
        return min(asked.whole, max((need.end for need in needs), default=asked.whole))

    def _fits(self, asked: _Asked, needs: list[Need] | None, opening_bytes: int) -> bool:
        """Whether one message may have it all."""
        if asked.source is not None:
            return False
        limits, itemsize = self.limits, self.numpy.itemsize
        whole, used = asked.whole, len(asked.work)
        size = used * _SAMPLE
        if needs is not None:
            used = sum([max(need.end - need.first, 1) for need in needs])
            size = sum([need.size for need in needs])
        counted = used * self.vocab_size * itemsize if whole else 0
        sent = whole * self.columns * itemsize if asked.rows is not None and asked.rows.slot is None else 0
        if asked.listed:
            listed = sum(asked.listed)
            counted = max(counted, listed * LISTED_BYTES, used * LISTED_BYTES * max(asked.listed))
            sent += listed * (5 + itemsize) + 16 * len(asked.listed)
        if used > limits.rows or counted > limits.row_bytes:
            return False
        if sent > TARGET and used > 1 and not self.shards:
            return False
        return sent + size + opening_bytes + SPARE + 10 * len(asked.closing) <= limits.message_bytes

    def _cut(self, step: Step, asked: _Asked, needs: list[Need], openings: list[tuple[list[Sequence], list[bytes]]]) -> list[Part]:
        """Several messages: what opens first, and then works that do not depend on one another."""
        if self.shards and asked.whole:
            raise ValueError("a step of tensor-parallel ranks is not split, since all ranks count its rows as one: "
                             f"{asked.whole} rows, with what they open, are more than the server's limits allow; send fewer")
        # As a whole first: what is wrong with it is said before anything is sent.
        self._listed(asked.top_n)
        parts = [self._part(step, asked, None, (b"", [], []), b"", *opening) for opening in openings]
        runs = self._runs(asked, needs)
        for run in runs:
            parts.append(self._work_part(step, asked, needs, run))
        if runs and openings:
            # If an opening were refused for want of room the works would run without it.
            parts[len(openings)].is_alone = True
        self._close_with(parts[0], asked.closing)
        return parts

    @staticmethod
    def _close_with(part: Part, closing: list[int]) -> None:
        if closing:
            part.close = closing
            part.fixed = pb.Step(close_sequence_ids=closing).SerializeToString() + part.fixed

    def _runs(self, asked: _Asked, needs: list[Need]) -> list[range]:
        """The works of each message."""
        if needs and not asked.whole and not asked.listed:
            raise ValueError("work needs logits")
        itemsize = self.numpy.itemsize
        sent = [count * (5 + itemsize) + 16 for count in asked.listed]
        used = [self.vocab_size * itemsize] * asked.whole + [LISTED_BYTES * count for count in asked.listed]
        inline = [self.columns * itemsize] * asked.whole + sent
        if asked.source is None:
            in_message = asked.rows is not None and asked.rows.slot is None
            return Cut(self.limits, used, inline if in_message else [0] * asked.whole + sent)(needs)
        try:
            return Cut(self.limits, used, [0] * asked.whole + sent, self.max_rows)(needs)
        except ValueError:
            if self.wanted != "auto":
                raise
            # A work that needs more rows than a slot has goes with the message.
            rows = Rows(None)
            with narrowing(rows):
                rows.raw = np.array(asked.source, self.numpy)
            asked.rows, asked.source = rows, None
            return Cut(self.limits, used, inline)(needs)

    def _work_part(self, step: Step, asked: _Asked, needs: list[Need], run: range) -> Part:
        work, total = asked.work[run.start:run.stop], asked.whole + len(asked.listed)
        first = min(min(needs[i].first for i in run), total - 1)
        end = max(min(max(needs[i].end for i in run), total), first + 1)
        listed = b""
        if end > asked.whole and asked.top_n is not None:
            listed = self._listed(asked.top_n.part(max(first - asked.whole, 0), end - asked.whole))
        # Works that only sample are one row each, so they need not say which, but where the first has none.
        if not asked.is_plain or needs[run.start].first != first:
            work = [moved(_sampled(item), needs[i].first - first) for item, i in zip(work, run)]
        span = (min(first, asked.whole), min(end, asked.whole))
        return self._part(step, asked, span if span[1] > span[0] else None, self._works(work), listed)

    def _part(self, step: Step, asked: _Asked, span: tuple[int, int] | None, works: _Works, listed: bytes,
              opens: list[Sequence] = [], wire: Iterable[bytes] = ()) -> Part:
        """One message, with whole rows of the span."""
        body, emits, texts = works
        number = self._number(asked, span is not None)
        head = b"\x08" + varint(number) + asked.about
        part = Part(step, number, b"".join([head, *wire, body, listed]), opens, emits=emits, texts=texts)
        if span is not None and asked.source is not None:
            part.source, part.end = _device.some(asked.source, *span), span[1] - span[0]
        elif span is not None:
            part.logits, (part.first, part.end) = asked.rows, span
        return part

    def _number(self, asked: _Asked, has_rows: bool) -> int:
        if self.shards and has_rows:
            asked.sharded += 1
            return asked.sharded
        asked.numbers += 1
        return asked.numbers + _WITHOUT_SHARDS if self.shards else asked.numbers

    def _listed(self, top_n: TopN | None) -> bytes:
        return b"" if top_n is None else top_n.encode(self.dtype)

    def _works(self, work: list[Work]) -> _Works:
        # Where it is all texts it is what emits too.
        plain = cast("list[Sequence | None]", work)
        # The same texts step after step: what is sent about them is the same too.
        for known, wire in self.works:
            if work == known:
                return wire, plain, plain
        if not all([isinstance(item, Sequence) for item in work]):
            works = [_sampled(item) for item in work]
            texts = [self.sequences.get(item.sequence_id) for item in works]
            emits = [text if item.WhichOneof("kind") in ("sample", "verify") else None for item, text in zip(works, texts)]
            return pb.Step(work=works).SerializeToString(), emits, texts
        wire = pb.Step(work=map(_sampled, work)).SerializeToString()
        self.works.appendleft((work, wire))
        return wire, plain, plain


def _apart(logits: Logits) -> tuple[Whole | None, TopN | None]:
    """Whole rows and those of which only the largest are there."""
    if isinstance(logits, TopN):
        return None, logits
    if isinstance(logits, tuple) and len(logits) == 2 and isinstance(logits[1], TopN):
        return logits[0], logits[1]
    return cast("Whole | None", logits), None


def _about(traceparent: str, deadline_ms: int) -> bytes:
    """What is said of a whole step."""
    if not traceparent and not deadline_ms:
        return b""
    return pb.Step(traceparent=text("traceparent", traceparent), deadline_ms=below("deadline_ms", deadline_ms)).SerializeToString()


def _check_once(work: list[Work]) -> None:
    """Whether no text is there twice. Mostly it is texts alone, all open here, so that no two have one id: that is sooner seen."""
    if {*map(type, work)} != {Sequence} or len({*work}) != len(work):
        check_once("work", map(_text_of, work))


def _text_of(item: Work) -> int | None:
    """The id of the sequence that it is of. A raw score is of none."""
    if isinstance(item, Sequence):
        return item.id
    return item.sequence_id if item.HasField("sequence_id") else None


def _sampled(item: Work) -> pb.Work:
    """A work; a sequence is to be sampled."""
    return pb.Work(sequence_id=item.id, sample=pb.SampleWork()) if isinstance(item, Sequence) else item


def _check_count(count: int, work: list[Work]) -> None:
    """Whether there are as many rows as works take, one after another. Where one says its first row some may be left out."""
    wire = [item for item in work if not isinstance(item, Sequence)]
    if any(item.HasField("first_row") or item.WhichOneof("kind") is None for item in wire):
        return
    takes = [1 if isinstance(item, Sequence) else rows_of(item) for item in work]
    if sum(takes) == count:
        return
    are_drafts = bool(wire) and len(wire) == len(work) and all(item.WhichOneof("kind") == "verify" for item in wire)
    one_by_one = f" ({' + '.join(map(str, takes))})" if 1 < len(takes) <= _SHOWN else ""
    raise ValueError(f"logits have {count} rows, {'these drafts take' if are_drafts else 'this work takes'} {sum(takes)}{one_by_one}")
