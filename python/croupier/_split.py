"""Splits steps that are too large for one message. Nothing is sent here, so a step that cannot be split is refused as a
whole."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from .schema import pb

#: Bytes of rows in one message: while the server samples the first rows, the last ones travel. It is more than the best
#: size in other languages, because a message costs gRPC for Python a quarter of a millisecond.
TARGET = 4 << 20
#: Bytes of a message beside the parts that are counted.
SPARE = 256
#: What each listed token counts against `Limits.max_row_bytes_per_step`.
LISTED_BYTES = 64
_LARGEST = (1 << 32) - 1


_NO_LIMIT = 1 << 62


class Limits:
    """The server's limits on messages and drafts. 0 means no limit: a server that does not know a limit says 0."""

    def __init__(self, wire: pb.Limits) -> None:
        self.message_bytes = wire.max_message_bytes or _NO_LIMIT
        self.rows = wire.max_rows_per_step or _NO_LIMIT
        self.row_bytes = wire.max_row_bytes_per_step or _NO_LIMIT
        self.sequences = wire.max_sequences_per_stream or _NO_LIMIT
        self.history_tokens = wire.max_history_tokens or _NO_LIMIT


@dataclass
class Need:
    """What one work needs: rows from `first` to `end`, and bytes of its description."""

    first: int
    end: int
    size: int
    is_raw_score: bool = False
    """Whether it scores tokens one by one, each by its own row."""
    is_draft: bool = False
    """Whether it verifies draft tokens."""


class Cut:
    """Finds where messages end."""

    def __init__(self, limits: Limits, used: Sequence[int], sent: Sequence[int], span: int = _NO_LIMIT) -> None:
        """For each row: what it counts against the server's limit, and its bytes in the message. `span` is the number
        of rows for which there is room at a time."""
        self._limits = limits
        # Rows are contiguous, so rows in between that no work uses count too.
        self._span = span
        self._used, self._sent = [0, *accumulate(used)], [0, *accumulate(sent)]

    def __call__(self, needs: Sequence[Need]) -> list[range]:
        """The works of each message, in order."""
        parts, start = [], 0
        while start < len(needs):
            end, room = start, _Sum()
            while end < len(needs):
                room = room.plus(needs[end], self._used)
                if end > start and not self._is_welcome(room):
                    break
                if end == start:
                    self._check(room, start, needs[start])
                end += 1
            parts.append(range(start, end))
            start = end
        return parts

    def _bytes(self, room: _Sum) -> int:
        return _between(self._sent, room.first, room.end)

    def _is_welcome(self, room: _Sum) -> bool:
        """Whether a message may have one more work."""
        sent = self._bytes(room)
        return (room.rows <= self._limits.rows and room.end - room.first <= self._span and room.used <= self._limits.row_bytes
                and sent <= TARGET and sent + room.size + SPARE <= self._limits.message_bytes)

    def _check(self, room: _Sum, at: int, need: Need) -> None:
        """Checks that one work fits, because a work is not split."""
        sent = self._bytes(room) + room.size + SPARE
        for value, limit, what, name in ((room.end - room.first, self._span, "rows", "max_rows"),
                                         (room.rows, self._limits.rows, "rows", "max_rows_per_step"),
                                         (room.used, self._limits.row_bytes, "bytes of rows", "max_row_bytes_per_step"),
                                         (sent, self._limits.message_bytes, "bytes in a message", "max_message_bytes")):
            if value > limit:
                raise ValueError(f"work[{at}] alone takes {value} {what}, {name} is {limit}; {_instead(need, name)}")


def _instead(need: Need, limit: str) -> str:
    """Advice for a work that is beyond a limit. Several works of one text are no alternative, nor several that grow its
    history."""
    if need.is_raw_score:
        return "send its tokens as several score works, in one step or in several"
    return f"draft fewer tokens, or raise {limit}" if need.is_draft else "a work cannot be split"


@dataclass
class _Sum:
    first: int = _LARGEST
    end: int = 0
    rows: int = 0
    used: int = 0
    size: int = 0

    def plus(self, need: Need, used: list[int]) -> _Sum:
        return _Sum(min(self.first, need.first), max(self.end, need.end), self.rows + max(need.end - need.first, 1),
                    self.used + _between(used, need.first, need.end), self.size + need.size)


def _between(sums: list[int], first: int, end: int) -> int:
    """The sum over some rows. A part beyond the last row counts nothing: the server reports that it is missing."""
    last = len(sums) - 1
    return sums[min(end, last)] - sums[min(first, last)]


def rows_of(work: pb.Work) -> int:
    """The number of rows that a work uses."""
    kind = work.WhichOneof("kind")
    if kind == "score":
        return len(work.score.token_ids)
    return len(work.verify.draft_token_ids) + 1 if kind == "verify" else 1


def needs_of(works: Sequence[pb.Work]) -> list[Need]:
    """The needs of `Work` messages. Works that do not say where their rows start follow one another."""
    needs, at = [], 0
    for work in works:
        first = work.first_row if work.HasField("first_row") else at
        at = first + rows_of(work)
        is_raw_score = work.WhichOneof("kind") == "score" and not work.HasField("sequence_id")
        needs.append(Need(first, at, work.ByteSize() + 8, is_raw_score, bool(work.verify.draft_token_ids)))
    return needs


def moved(work: pb.Work, first: int) -> pb.Work:
    """A copy of the work with another first row."""
    other = pb.Work()
    other.CopyFrom(work)
    other.first_row = min(first, _LARGEST)
    return other


def chunks(sizes: Sequence[int], most: int, count: int) -> list[range]:
    """Runs of at most `count` items with at most `most` bytes together. An item that is larger is a run of its own."""
    runs, start, total = [], 0, 0
    for at, size in enumerate(sizes):
        if at > start and (total + size > most or at - start == count):
            runs.append(range(start, at))
            start, total = at, 0
        total += size
    if start < len(sizes):
        runs.append(range(start, len(sizes)))
    return runs


def apart(run: range, keys: Sequence[Hashable], most: int) -> Iterator[range]:
    """Splits a run into runs with at most `most` different keys each. None is not a key."""
    start, seen = run.start, set[Hashable]()
    for at in run:
        if keys[at] is not None and keys[at] not in seen:
            if len(seen) == most:
                yield range(start, at)
                start, seen = at, set()
            seen.add(keys[at])
    yield range(start, run.stop)
