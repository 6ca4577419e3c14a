"""The errors of the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Listing
from typing import TYPE_CHECKING, Any, TypedDict

from .schema import pb

if TYPE_CHECKING:
    from ._drafts import Draft, Verified


class Cause(TypedDict, total=False):
    """The machine-readable part of an error."""

    code: str | None
    reason: str | None
    field: str | None


class CroupierError(Exception):
    """A call or a sequence was refused. The message says why. The machine-readable attributes are about the whole call,
    and are None if nobody gave them. For single texts and rows, `failures` has them."""

    def __init__(self, *said: object, code: str | None = None, reason: str | None = None, field: str | None = None) -> None:
        super().__init__(*said)
        self.code = code
        """The gRPC status that the call ended with, such as "INVALID_ARGUMENT" or "UNAVAILABLE", or the side socket's
        answer."""
        self.reason = reason
        """The server's reason, such as "INVALID_FIELD" or "TOO_MANY_STREAMS". docs/errors.md lists all of them. If a
        whole step was refused, it is the reason of the refusal."""
        self.field = field
        """The field at fault, by its path in the message, such as "config.vocab_size"."""


class Failure(str):
    """Why a row has no token, or a text was not opened. The text is for people, `status` and `field` are for
    programs."""

    status: str
    """For a row: the wire's `ROW_STATUS_` without that prefix, such as "BEYOND_TOP_N" or "NAN_LOGITS"; "REFUSED" if
    the server had no room. For an opening: the wire's `OPEN_STATUS_`, such as "INVALID_ARGUMENT" or
    "RESOURCE_EXHAUSTED"."""
    field: str | None
    """For an opening: the field at fault, such as "params.top_p". For a row: None."""

    def __new__(cls, why: str, status: str, field: str | None = None) -> Failure:
        failure = super().__new__(cls, why)
        failure.status, failure.field = status, field
        return failure

    def __getnewargs__(self) -> tuple[str, str, str | None]:  # type: ignore[override]  # A text's own has one; this has more.
        return str(self), self.status, self.field


#: Most sequences that an error's text names.
_NAMED = 8


def _named(failures: Mapping[int, str]) -> str:
    """What went wrong with the first sequences."""
    named = [f"sequence {sequence}: {why}" for sequence, why in list(failures.items())[:_NAMED]]
    more = len(failures) - len(named)
    return "; ".join(named) + (f"; and {more} more, see failures" if more else "")


class RowError(CroupierError):
    """Some rows have no token, or the server had no room for their part of a step that was split. The sequences of
    these rows are unchanged. The others have what the step gave them."""

    def __init__(self, failures: dict[int, Failure], result: pb.StepResult | None = None) -> None:
        super().__init__(_named(failures) or "works without a sequence failed, see result")
        self.failures = failures
        """The reasons, by the sequence's id."""
        self.result = pb.StepResult() if result is None else result
        """The `StepResult` of the whole step, with a result for each work that was requested. Works that the server had
        no room for have the status `ROW_STATUS_UNSPECIFIED`, which no server sends. Empty if a program created the
        error itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failures, self.result)


class OpenError(CroupierError):
    """Some sequences were not opened, or not again after a reconnect, and are forgotten. The others are open, and have
    what the step gave them. The step was done, so do not send it again. If rows of others failed, the `RowError` or
    `SpeculationError` about them is the `__cause__`."""

    def __init__(self, failures: dict[int, Failure], result: pb.StepResult | None = None, verified: Listing[Verified | None] = (),
                 drafts: Listing[Draft] = ()) -> None:
        super().__init__(_named(failures))
        self.failures = failures
        """The parameter at fault and what is wrong with it, by the sequence's id; with `status` and `field`."""
        self.result = pb.StepResult() if result is None else result
        """The `StepResult` of the whole step, with a result for each work that was requested. The works of these
        sequences failed. Empty if a program created the error itself."""
        self.verified = list(verified)
        """For `Speculation.verify`: the result of each draft, or None for drafts that were not verified. Otherwise
        empty."""
        self.drafts = list(drafts)
        """For `Speculation.chain` and `tree`, whose `result` is that of the first step that reported it: the drafts of
        all texts that are still open, as in `SpeculationError.drafts`. Otherwise empty."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failures, self.result, self.verified, self.drafts)


class LogitsLost(CroupierError):
    """The server went away with the region before it answered. Write the logits again and send the step again."""
