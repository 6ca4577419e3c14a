"""What can go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class CroupierError(Exception):
    """A call or a sequence was refused; the message says why."""


class Failure(str):
    """Why a row has no token: the text is for people, `status` for programs."""

    status: str
    """As `ROW_STATUS_` of the wire without that, such as "BEYOND_TOP_N" or "NAN_LOGITS"; "REFUSED" where the server had no room."""

    def __new__(cls, why: str, status: str) -> Failure:
        failure = super().__new__(cls, why)
        failure.status = status
        return failure

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # A text's own has one; this has `status` too.
        return str(self), self.status


#: How many sequences an error's text names.
_NAMED = 8


def _named(failures: Mapping[int, str]) -> str:
    """What went wrong, of the first sequences."""
    named = [f"sequence {sequence}: {why}" for sequence, why in list(failures.items())[:_NAMED]]
    more = len(failures) - len(named)
    return "; ".join(named) + (f"; and {more} more, see failures" if more else "")


class RowError(CroupierError):
    """Some rows have no token. Their sequences are as they were; the others have theirs."""

    def __init__(self, failures: dict[int, Failure]) -> None:
        super().__init__(_named(failures))
        self.failures = failures
        """Why, by the sequence's id."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failures,)


class OpenError(CroupierError):
    """Some sequences were not opened, and are forgotten. The others are open, and have what the step gave them."""

    def __init__(self, failures: dict[int, str]) -> None:
        super().__init__(_named(failures))
        self.failures = failures
        """The parameter at fault and what is wrong with it, by the sequence's id."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failures,)


class LogitsLost(CroupierError):
    """The server went away with the region before it answered: write the logits again and send the step again."""
