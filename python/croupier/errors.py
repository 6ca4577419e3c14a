"""What can go wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Listing
from typing import TYPE_CHECKING, Any, TypedDict

from .schema import pb

if TYPE_CHECKING:
    from ._drafts import Draft, Verified


class Cause(TypedDict, total=False):
    """What an error says for programs."""

    code: str | None
    reason: str | None
    field: str | None


class CroupierError(Exception):
    """A call or a sequence was refused; the message says why. What it says for programs is that of the whole call, and None where nobody said it:
    of single texts and rows `failures` has it."""

    def __init__(self, *said: object, code: str | None = None, reason: str | None = None, field: str | None = None) -> None:
        super().__init__(*said)
        self.code = code
        """The gRPC status that the call ended with, such as "INVALID_ARGUMENT" or "UNAVAILABLE", or the side socket's answer."""
        self.reason = reason
        """The server's, such as "INVALID_FIELD" or "TOO_MANY_STREAMS"; docs/errors.md has them all. Where a whole step was refused that of the
        refusal."""
        self.field = field
        """The field at fault, by its path in the message, such as "config.vocab_size"."""


class Failure(str):
    """Why a row has no token, or a text was not opened: the text is for people, `status` and `field` for programs."""

    status: str
    """Of a row as `ROW_STATUS_` of the wire without that, such as "BEYOND_TOP_N" or "NAN_LOGITS"; "REFUSED" where the server had no room. Of an
    opening as `OPEN_STATUS_`, such as "INVALID_ARGUMENT" or "RESOURCE_EXHAUSTED"."""
    field: str | None
    """Of an opening what is at fault, such as "params.top_p"; a row names none."""

    def __new__(cls, why: str, status: str, field: str | None = None) -> Failure:
        failure = super().__new__(cls, why)
        failure.status, failure.field = status, field
        return failure

    def __getnewargs__(self) -> tuple[str, str, str | None]:  # type: ignore[override]  # A text's own has one; this has more.
        return str(self), self.status, self.field


#: How many sequences an error's text names.
_NAMED = 8


def _named(failures: Mapping[int, str]) -> str:
    """What went wrong, of the first sequences."""
    named = [f"sequence {sequence}: {why}" for sequence, why in list(failures.items())[:_NAMED]]
    more = len(failures) - len(named)
    return "; ".join(named) + (f"; and {more} more, see failures" if more else "")


class RowError(CroupierError):
    """Some rows have no token, or the server had no room for their part of a step that was split. Their sequences are as they were; the
    others have what the step gave them."""

    def __init__(self, failures: dict[int, Failure], result: pb.StepResult | None = None) -> None:
        super().__init__(_named(failures) or "works of no sequence failed, see result")
        self.failures = failures
        """Why, by the sequence's id."""
        self.result = pb.StepResult() if result is None else result
        """The `StepResult` of the whole step, with a work for each that was asked for. Those that the server had no room for have the status
        `ROW_STATUS_UNSPECIFIED`, which no server sends. Empty where a program made the error itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failures, self.result)


class OpenError(CroupierError):
    """Some sequences were not opened, or not again after a reconnect, and are forgotten. The others are open, and have what the step gave them:
    it was done, and is not to be sent again."""

    def __init__(self, failures: dict[int, Failure], result: pb.StepResult | None = None, verified: Listing[Verified | None] = (),
                 drafts: Listing[Draft] = ()) -> None:
        super().__init__(_named(failures))
        self.failures = failures
        """The parameter at fault and what is wrong with it, by the sequence's id; with `status` and `field`."""
        self.result = pb.StepResult() if result is None else result
        """The `StepResult` of the whole step, with a work for each that was asked for; those of these sequences failed. Empty where a program
        made the error itself."""
        self.verified = list(verified)
        """Of `Speculation.verify`, of each draft what became of it; None for those that were not verified. Else empty."""
        self.drafts = list(drafts)
        """Of `Speculation.chain` and `tree`, whose `result` is that of the step that told of it first: the drafts of all texts that are still open,
        as in `SpeculationError.drafts`. Where rows failed too, the `SpeculationError` that says why is the `__cause__`. Else empty."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failures, self.result, self.verified, self.drafts)


class LogitsLost(CroupierError):
    """The server went away with the region before it answered: write the logits again and send the step again."""
