"""Applies results to texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ._types import Part, Sequence, Step
from .errors import Failure, OpenError, RowError
from .schema import pb

_OK = pb.ROW_STATUS_OK
_STATUS, _OPEN_STATUS = ({number: name.removeprefix(prefix) for name, number in vars(pb).items() if name.startswith(prefix)}
                         for prefix in ("ROW_STATUS_", "OPEN_STATUS_"))
# No server sends this status. Here it stands for works that the server had no room for, see `merged`.
_STATUS[pb.ROW_STATUS_UNSPECIFIED] = "REFUSED"
_ENDED = pb.ROW_STATUS_SEQUENCE_FINISHED
#: What the server cannot know about an infinity.
_OVERFLOWED = ("; logits too large for the stream's dtype became infinities when they were converted: "
               "give smaller ones, or connect with another dtype")
_OPEN = pb.OPEN_STATUS_OK
_FINISH = {
    pb.FINISH_REASON_EOS: "eos",
    pb.FINISH_REASON_STOP_TOKEN: "stop_token",
    pb.FINISH_REASON_MAX_TOKENS: "max_tokens",
    pb.FINISH_REASON_REPETITION: "repetition",
    pb.FINISH_REASON_STOP_SEQUENCE: "stop_sequence",
}


def apply(part: Part, sequences: dict[int, Sequence], close: Callable[[Sequence], None]) -> None:
    """Appends tokens to their texts, once, and closes texts that have ended."""
    if part.is_applied:
        return
    part.is_applied, step, result = True, part.step, part.answered()
    if part.tokens is not None:
        # The part is plain, so all its texts are known.
        for text, token in zip(cast("list[Sequence]", part.emits), part.tokens):
            text.tokens.append(token)
        return
    if part.logits is not None and part.logits.is_overflowed:
        for emitting in result.work:
            if emitting.status == pb.ROW_STATUS_POSITIVE_INFINITY:
                emitting.message += _OVERFLOWED
    # Each access to a message costs a tenth of a microsecond or two, and there are many works, so none is made twice.
    for sequence, known, emitting in zip(part.emits, part.texts, result.work):
        if known is not None and known.refused:
            # It was opened by another message. The server says nothing about that here.
            emitting.message += f" (it was not opened: {known.refused})"
        if sequence is None:
            # Draft work or scores.
            if known is not None and emitting.status == _ENDED:
                _end(known, close)
            continue
        tokens = emitting.tokens
        if len(tokens) == 1:
            sequence.tokens.append(tokens[0].token_id)
        elif tokens:
            sequence.tokens.extend([token.token_id for token in tokens])
        elif emitting.status != _OK:
            if emitting.status == _ENDED:
                _end(sequence, close)
            step.failures[sequence.id] = failure_of(emitting)
            continue
        finish = emitting.finish_reason
        if finish:
            sequence.finish_reason = _FINISH.get(finish, "other")
            # Nothing more can be done with the text. Kept open, it would take up room here and on the server.
            close(sequence)
        if emitting.HasField("sampler_state"):
            sequence.state = emitting.sampler_state
    for sequence, opened in zip(part.open, result.open):
        if opened.status != _OPEN:
            # It is forgotten, so that it is not opened again.
            at_fault = opened.error.field
            why = Failure(f"{at_fault}: {opened.error.message}", _OPEN_STATUS.get(opened.status, str(opened.status)), at_fault or None)
            sequence.refused = step.opens_failed[sequence.id] = why
            if sequences.get(sequence.id) is sequence:
                del sequences[sequence.id]
            elif not part.step_id:
                # It was opened again, but another thread has closed it meanwhile. By now its id may belong to another
                # text.
                step.opens_failed.pop(sequence.id, None)


def _end(sequence: Sequence, close: Callable[[Sequence], None]) -> None:
    """Ends a text that had already ended when it was opened. Only the server knew, because of repetition, a preset or
    the server's defaults. It does not say which, and the text will get no more tokens."""
    if not sequence.finish_reason:
        sequence.finish_reason = "other"
        close(sequence)


def apply_for_now(part: Part, sequences: dict[int, Sequence], close: Callable[[Sequence], None]) -> None:
    """As `apply`, but can be undone if the rest of the step is given up."""
    if not part.is_applied:
        part.before = [(s, len(s.tokens), s.finish_reason, s.state, sequences.get(s.id) is s) for s in part.emits if s is not None]
        apply(part, sequences, close)


def take_back(part: Part, sequences: dict[int, Sequence]) -> None:
    """Restores texts to their state before the part was applied provisionally."""
    for sequence, count, finish_reason, state, was_open in part.before:
        del sequence.tokens[count:]
        sequence.finish_reason, sequence.state = finish_reason, state
        if was_open:
            sequences.setdefault(sequence.id, sequence)
    part.before = []


def not_yet(part: Part, result: pb.StepResult, may_find_room: bool) -> dict[Sequence, pb.OpenResult]:
    """Of the texts that are opened again, those that the server cannot open yet, each with its answer. If the server
    has no room for a text, the text's old stream may still take up that room, until the server notices that the
    stream is gone. Grammars of others may also need time. (A text that is too long for the server has another field
    at fault.)"""
    return {sequence: opened for sequence, opened in zip(part.open, result.open)
            if is_of_grammars(opened) or (may_find_room and _is_exhausted(opened, "sequence_id"))}


def is_of_grammars(opened: pb.OpenResult) -> bool:
    """Whether the server is busy compiling grammars of others. Then a later attempt is enough, whatever happens to
    other texts."""
    return _is_exhausted(opened, "params.grammar")


def _is_exhausted(opened: pb.OpenResult, field: str) -> bool:
    return opened.status == pb.OPEN_STATUS_RESOURCE_EXHAUSTED and opened.error.field == field


def failure_of(result: pb.WorkResult) -> Failure:
    """Why a `WorkResult` has no token."""
    # The server says that the sequence should be closed, but that is not the program's task.
    why = "the sequence has ended, see its finish_reason" if result.status == _ENDED else result.message
    return Failure(why, _STATUS.get(result.status, str(result.status)))


def merged(step: Step) -> pb.StepResult:
    """One result for all messages of a step, as if it had been sent as one message. Works that the server had no room
    for keep their places, without a status, so that each result is at the place of its work."""
    if len(step.parts) == 1:
        return step.parts[0].answered()
    whole = pb.StepResult(step_id=step.parts[-1].step_id)
    for part in step.parts:
        found = _not_done(part) if part.refused else part.answered()
        whole.open.extend(found.open)
        whole.work.extend(found.work)
    return whole


def _not_done(part: Part) -> pb.StepResult:
    """The result of a part that the server had no room for. Texts that it should have opened are opened with the next
    step."""
    opened = [pb.OpenResult(sequence_id=text.id, error=pb.FieldError(message=part.refused)) for text in part.open]
    return pb.StepResult(open=opened, work=[pb.WorkResult(message=part.refused) for _ in part.texts])


def checked(step: Step, result: pb.StepResult, rows: dict[int, Failure] | None = None) -> pb.StepResult:
    """The result of a step in which everything succeeded. Otherwise raises `OpenError` or `RowError`, which contain the
    result: whatever succeeded was done. `rows` are rows that failed, if these raise. Otherwise, only parts that there
    was no room for do."""
    is_failed, rows = bool(step.refused or rows), step.failures if rows is None else rows
    if step.opens_failed:
        others = rows_of_others(rows, step.opens_failed) if is_failed else {}
        raise OpenError(step.opens_failed, result) from (RowError(others, result) if others else None)
    if is_failed:
        raise RowError(rows, result)
    return result


def rows_of_others(rows: dict[int, Failure], opens_failed: dict[int, Failure]) -> dict[int, Failure]:
    """The rows that failed, without those of texts that were not opened, which say nothing more."""
    return {number: why for number, why in rows.items() if number not in opens_failed}
