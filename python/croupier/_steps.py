"""Makes steps: decides what goes into one message, and what into several."""

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

#: Start of the step ids of steps without shards, in a stream that has shards. Ranks count the other steps from 1.
_WITHOUT_SHARDS = 1 << 63
#: Largest size of a sampling work in a message, in bytes.
_SAMPLE = 16
#: Most draft tokens of a text. It is fixed by the wire: the schema documents it at `VerifyWork.draft_token_ids`. It is
#: not a setting, so neither `Limits` nor `GetServerInfo` contains it.
_MOST_DRAFTED = 256
#: Bytes of a draft token in a message, without its row and mask.
_DRAFTED = 16
#: Most works whose rows a message counts one by one.
_SHOWN = 8


#: Serialised works; for each work, the sequence if the work emits tokens; and for each work, its sequence.
_Works = tuple[bytes, list[Sequence | None], list[Sequence | None]]


class _Asked:
    """A step as it was requested."""

    def __init__(self, work: list[Work], rows: Rows | None, source: Array | OnDevice | None, top_n: TopN | None, about: bytes,
                 columns: int) -> None:
        self.work, self.rows, self.source, self.top_n, self.about = work, rows, source, top_n, about
        # Of a whole row.
        self.columns = columns
        self.opening: list[Sequence] = []
        self.closing: list[int] = []
        # The number of steps with ranks' rows, and the number of messages, after this step.
        self.sharded = self.numbers = 0
        self.is_plain = False
        """Whether all works only sample, one row after another."""
        self.listed = [] if top_n is None else [len(row) for row in top_n.ids]

    @property
    def whole(self) -> int:
        """The number of whole rows."""
        if self.source is not None:
            return _device.count_of(self.source)
        return 0 if self.rows is None else len(self.rows.raw)


class StepMaker(Sharing):
    """The part of a session that makes steps."""

    def step(self, logits: Logits, work: Iterable[Work], keep: bool = False, one_each: bool = False, traceparent: str = "",
             deadline_ms: int = 0) -> Step:
        """Makes a step, whose parts are then to be sent. `work` contains sequences (to be sampled) or `Work` messages.
        `logits` are whole rows, a `TopN`, or both; then the rows of `TopN` are numbered after the whole ones. With
        `keep`, the logits may change before the step is answered. With `one_each`, there must be exactly one row for
        each work."""
        whole, top_n = _apart(logits)
        about = _about(traceparent, deadline_ms)
        works = listed("work", work, "texts or works", "text")
        columns = self.columns if whole is None else self._columns_of(works)
        rows, source = self._brought(whole, keep, columns)
        try:
            asked = _Asked(works, rows, source, top_n, about, columns)
            self.check_open(asked.work)
            count = asked.whole + len(asked.listed)
            if not one_each:
                _check_count(count, asked.work)
            elif count != len(asked.work):
                raise ValueError(f"logits have {count} rows for {len(asked.work)} sequences, must have one for each")
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
        """Makes all changes of a step to this object. Nothing has changed before. So after a mistake, or a signal
        handler that comes earlier, the earlier steps, the texts and the ranks' count are as they were."""
        given = logits if isinstance(logits, Rows) else Rows(None)
        sent = Rows(None) if asked.rows is None else asked.rows
        users = sum([part.logits is not None for part in step.parts])
        with self.changing:
            opening, closing = self.without(asked.opening, asked.closing)
            # From here on nothing is called and nothing jumps, so that a signal handler finds either all of it done or
            # nothing.
            self.opening, self.closing, self.sharded, self.numbers = opening, closing, asked.sharded, asked.numbers
            given.is_spent = True
            # Rows that no work uses are free at once.
            sent.users, sent.is_spent, sent.is_back = users, True, users == 0
            self.steps += [step]

    def masked(self, sequences: list[Sequence], token_masks: Masks) -> list[pb.Work]:
        """Work that samples these sequences behind their masks."""
        self.check_open(sequences)
        return masked(sequences, token_masks, self.vocab_size)

    def draft_room(self) -> int:
        """How many draft tokens a verification has room for, with whole rows and masks, under the known limits. It
        matters because a verification cannot be split."""
        limits, itemsize = self.limits, self.numpy.itemsize
        mask = -(-self.vocab_size // 32) * 4
        rows = (limits.message_bytes - 2 * SPARE) // (self.columns * itemsize + mask + _DRAFTED)
        if self.insists:
            # This also applies between two connections, when there is no region.
            rows = self.max_rows
        elif self.region is not None:
            # Rows that do not fit into a slot may go in a message.
            rows = max(rows, self.max_rows)
        rows = min(rows, limits.rows, limits.row_bytes // (self.vocab_size * itemsize))
        return max(min(rows - 1, _MOST_DRAFTED), 0)

    def check_open(self, work: Listing[Work]) -> None:
        """Checks that the texts of works are open on this stream. They are sent by id, and a text of another stream may
        have the same id."""
        for at, item in enumerate(work):
            if not isinstance(item, Sequence):
                if not isinstance(item, pb.Work):
                    raise TypeError(f"work[{at}] is {item!r}, must be a sequence of this stream or a croupier.pb.Work")
                continue
            known = self.sequences.get(item.id)
            # It could not be opened again, and nobody was told yet. This step reports it, and is done for the other
            # texts.
            if known is item or (known is None and item.refused and self.not_reopened.get(item.id) is item.refused):
                continue
            if item.refused:
                raise ValueError(f"sequence {item.id} was not opened: {item.refused}")
            if item.finish_reason:
                raise ValueError(f"sequence {item.id} has ended, finish_reason is {item.finish_reason!r}")
            raise ValueError(f"sequence {item.id} is not open on this stream: it was closed, or another stream opened it")

    def check_forked(self, sequence: Sequence) -> None:
        """Checks that the text can be forked: everything about it must be known here."""
        if sequence.refused:
            raise ValueError(f"sequence {sequence.id} was not opened: {sequence.refused}")
        if any(sequence in part.emits for step in list(self.steps) for part in step.parts):
            raise ValueError(f"sequence {sequence.id} is in a step that is under way; take its result first, with result()")

    def _columns_of(self, work: list[Work]) -> int:
        """How many columns whole rows for these works have."""
        if not self.config.draft_vocabulary:
            return self.columns
        drafts = [isinstance(item, pb.Work) and item.WhichOneof("kind") == "draft" for item in work]
        if any(drafts) and not all(drafts):
            raise ValueError(f"work[{drafts.index(not drafts[0])}] is {'other' if drafts[0] else 'draft'} work, unlike work[0]; with a "
                             "draft_vocabulary draft work has rows of another length, so send it in steps of its own")
        return self.draft_columns if any(drafts) else self.columns

    def _brought(self, logits: Whole | None, keep: bool, columns: int) -> tuple[Rows | None, Array | OnDevice | None]:
        """Rows in a place from which they can be sent, or logits that do not fit there at once."""
        if logits is None:
            return None, None
        if isinstance(logits, Rows):
            logits.check_to_send(self)
            if logits.raw.shape[1] != columns:
                raise ValueError(f"these rows have {logits.raw.shape[1]} columns, must have {columns}; take rows for draft work with "
                                 "rows(count, draft=True)")
            rows = self._kept(logits)
            self.synchronize()
            return rows, None
        # Read only once, because another thread may end the stream.
        region = self.region
        if region is not None and region.on_device and is_on_device(logits):
            count = _device.row_count(logits, columns, self.numpy)
        else:
            logits = as_rows(logits, columns, self.dtype)
            count = len(logits)
        if region is None or (count > self.max_rows and self.shards):
            if region is not None:
                check_slot(self.wanted, count, self.max_rows)
            rows = Rows(logits)
            if keep:
                with narrowing(rows, logits):
                    rows.raw = np.array(logits, self.numpy)
            return rows, None
        if count > self.max_rows:
            if not self.free and not self.waiting:
                raise CroupierError("every slot holds rows that were not sent; send or discard one of them first")
            return None, logits
        rows = self._placed(logits)
        self.synchronize()
        return rows, None

    def _placed(self, logits: Array | OnDevice) -> Rows:
        return filled(self.rows(*_device.shape_of(logits)), logits, self)

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
        # The answer also covers the texts that it opens.
        part.is_plain = asked.is_plain and not openings
        self._close_with(part, asked.closing)
        return [part]

    def _used(self, asked: _Asked, rows: Rows, needs: list[Need] | None) -> int:
        """The number of rows up to the last one that a work uses: a message has no others. Ranks always send all
        rows."""
        if needs is None or self.shards or rows.slot is not None:
            return asked.whole
        return min(asked.whole, max((need.end for need in needs), default=asked.whole))

    def _fits(self, asked: _Asked, needs: list[Need] | None, opening_bytes: int) -> bool:
        """Whether everything fits into one message."""
        if asked.source is not None:
            return False
        limits, itemsize = self.limits, self.numpy.itemsize
        whole, used = asked.whole, len(asked.work)
        size = used * _SAMPLE
        if needs is not None:
            used = sum([max(need.end - need.first, 1) for need in needs])
            size = sum([need.size for need in needs])
        counted = used * self.vocab_size * itemsize if whole else 0
        sent = whole * asked.columns * itemsize if asked.rows is not None and asked.rows.slot is None else 0
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
        """Splits a step into several messages: first those that open texts, then works that do not depend on each
        other."""
        if self.shards and asked.whole:
            raise ValueError("a step of tensor-parallel ranks cannot be split, because all ranks count its rows together: "
                             f"{asked.whole} rows, with the texts that the step opens, exceed the server's limits; send fewer rows")
        # Encoded as a whole first, so that a mistake in it is reported before anything is sent.
        self._listed(asked.top_n)
        parts = [self._part(step, asked, None, (b"", [], []), b"", *opening) for opening in openings]
        runs = self._runs(asked, needs)
        for run in runs:
            parts.append(self._work_part(step, asked, needs, run))
        if runs and openings:
            # If an opening were refused for lack of room, the works would run without that text.
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
        inline = [asked.columns * itemsize] * asked.whole + sent
        if asked.source is None:
            in_message = asked.rows is not None and asked.rows.slot is None
            return Cut(self.limits, used, inline if in_message else [0] * asked.whole + sent)(needs)
        try:
            return Cut(self.limits, used, [0] * asked.whole + sent, self.max_rows)(needs)
        except ValueError:
            if self.wanted != "auto":
                raise
            # A work that needs more rows than a slot has is sent in the message.
            rows = Rows(None)
            with narrowing(rows, asked.source):
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
        # Sampling works use one row each, one after another, so they need not name it, unless the row of the first one
        # does not exist.
        if not asked.is_plain or needs[run.start].first != first:
            work = [moved(_sampled(item), needs[i].first - first) for item, i in zip(work, run)]
        span = (min(first, asked.whole), min(end, asked.whole))
        return self._part(step, asked, span if span[1] > span[0] else None, self._works(work), listed)

    def _part(self, step: Step, asked: _Asked, span: tuple[int, int] | None, works: _Works, listed: bytes,
              opens: list[Sequence] = [], wire: Iterable[bytes] = ()) -> Part:
        """One message, with the whole rows of the span."""
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
        # If all works are texts, the list of emitting texts is the list of works.
        plain = cast("list[Sequence | None]", work)
        # If the texts are the same in every step, the serialised works are the same too.
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
    """Separates whole rows from rows of which only the largest logits are given."""
    if isinstance(logits, TopN):
        return None, logits
    if isinstance(logits, tuple) and len(logits) == 2 and isinstance(logits[1], TopN):
        return logits[0], logits[1]
    return cast("Whole | None", logits), None


def _about(traceparent: str, deadline_ms: int) -> bytes:
    """The fields that describe a whole step."""
    if not traceparent and not deadline_ms:
        return b""
    return pb.Step(traceparent=text("traceparent", traceparent), deadline_ms=below("deadline_ms", deadline_ms)).SerializeToString()


def _check_once(work: list[Work]) -> None:
    """Checks that no text is given twice. Usually all works are open texts of this stream, so no two have the same id,
    and a faster check is enough."""
    if {*map(type, work)} != {Sequence} or len({*work}) != len(work):
        check_once("work", map(_text_of, work))


def _text_of(item: Work) -> int | None:
    """The id of the sequence that the work is for. A raw score has none."""
    if isinstance(item, Sequence):
        return item.id
    return item.sequence_id if item.HasField("sequence_id") else None


def _sampled(item: Work) -> pb.Work:
    """The work as a message. A sequence is to be sampled."""
    return pb.Work(sequence_id=item.id, sample=pb.SampleWork()) if isinstance(item, Sequence) else item


def _check_count(count: int, work: list[Work]) -> None:
    """Checks that there are as many rows as the works use, one after another. If a work names its first row, rows may
    be left out."""
    wire = [item for item in work if not isinstance(item, Sequence)]
    if any(item.HasField("first_row") or item.WhichOneof("kind") is None for item in wire):
        return
    takes = [1 if isinstance(item, Sequence) else rows_of(item) for item in work]
    if sum(takes) == count:
        return
    are_drafts = bool(wire) and len(wire) == len(work) and all(item.WhichOneof("kind") == "verify" for item in wire)
    one_by_one = f" ({' + '.join(map(str, takes))})" if 1 < len(takes) <= _SHOWN else ""
    raise ValueError(f"logits have {count} rows, {'these drafts take' if are_drafts else 'this work takes'} {sum(takes)}{one_by_one}")
