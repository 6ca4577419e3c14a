"""The loop of a worker that speculates: draft, verify, keep what was accepted.

    speculation = croupier.Speculation(stream)
    drafts = speculation.chain(texts, draft_model, at_most=4)       # draft work: the sidecar draws, and keeps what from
    verified = speculation.verify(drafts, target_logits(drafts))    # emits, and says which draft tokens stay in the KV cache

docs/speculative.md explains the background. A proposer in the sidecar (`SamplingParams.proposer`) can replace the draft
model: `speculation.proposed(texts)`. If texts have `SamplingParams.draft_length`, no draft is longer than the advice.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence as Listing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from . import aio
from ._arrays import as_array, is_on_device
from ._checks import below, check_once, listed, text, whole
from ._drafts import Draft, SpeculationError, Undrawn, Verified, parents_of
from ._masks import encoded
from ._results import failure_of, rows_of_others
from ._types import Sequence, Step
from .client import Stream
from .errors import Failure, LogitsLost, OpenError
from .schema import pb

if TYPE_CHECKING:
    from ._forms import Array, Lines, Logits, Masks, OnDevice

#: Returns the draft model's logits after each text and these draft tokens of it, in the shape (pairs, vocab_size).
DraftModel = Callable[[list[tuple[Sequence, list[int]]]], "Lines"]
#: The same, or an awaitable of it.
AsyncDraftModel = Callable[[list[tuple[Sequence, list[int]]]], "Lines | Awaitable[Lines]"]
#: Returns the masks after each text and these draft tokens of it, in the forms that `sample` takes.
DraftMasks = Callable[[list[tuple[Sequence, list[int]]]], "Masks"]
#: The same, or an awaitable of it.
AsyncDraftMasks = Callable[[list[tuple[Sequence, list[int]]]], "Masks | Awaitable[Masks]"]
_T = TypeVar("_T")
_S = TypeVar("_S", bound="Stream | aio.Stream")
#: A generator of calls. It receives the result of each call.
_Calls = Generator[Callable[[], Any], Any, _T]

__all__ = ["AsyncSpeculation", "Draft", "Speculation", "SpeculationError", "Verified"]

_LAST = {pb.LAST_TOKEN_RECOVERED: "recovered", pb.LAST_TOKEN_BONUS: "bonus", pb.LAST_TOKEN_ACCEPTED: "accepted"}


@dataclass(frozen=True)
class _Asks:
    """The sources of a draft's rows and masks, and the options of its steps."""

    model: AsyncDraftModel
    masks: AsyncDraftMasks | None
    about: dict[str, Any]


@dataclass(frozen=True)
class _Shape:
    """The shape of the drafts of several texts."""

    parents: Listing[int]
    """As in `Draft`."""
    deepest: list[int]
    """For each text: how many draft tokens may follow one another. Deeper ones are left out of its draft."""
    is_tree: bool

    def depths(self) -> list[int]:
        """The depth of each draft token."""
        found: list[int] = []
        for parent in self.parents:
            found.append(1 + (found[parent] if parent >= 0 else 0))
        return found


#: Returns the shape of drafts for these texts. It depends only on limits and lengths, never on what was drawn.
_ShapeOf = Callable[[list[Sequence]], _Shape]


class _Plan(Generic[_S]):
    """The steps of speculation, without saying how to wait for them: generators of calls, which receive the results of
    the calls."""

    #: The class of streams that it accepts.
    _of: type[Any]

    def __init__(self, stream: _S) -> None:
        if not isinstance(stream, self._of):
            raise TypeError(f"stream is {stream!r}; Speculation needs a stream from croupier.connect, AsyncSpeculation one from croupier.aio.connect")
        self.stream = stream
        #: For each open text: the last result about it, and the number of tokens it had then. Only open texts are kept,
        #: because another text may have the id later.
        self._told: weakref.WeakKeyDictionary[Sequence, tuple[pb.WorkResult, int]] = weakref.WeakKeyDictionary()

    def proposed(self, sequences: Iterable[Sequence]) -> list[Draft]:
        """Drafts of the proposer in the sidecar, as of the text's last step: a verification, or a step whose result was
        given to `told`. A draft is empty before the first such step, without a proposer, and if the text has new tokens
        since then, for example from `sample`."""
        drafts = []
        for sequence in self._open(sequences):
            told, tokens = self._told.get(sequence, (None, 0))
            # What followed the text then does not follow it now.
            found = list(told.proposed_token_ids) if told and tokens == len(sequence.tokens) else []
            drafts.append(Draft(sequence, found[: self.length(sequence, len(found))]))
        return drafts

    def told(self, sequences: Iterable[Sequence], result: pb.StepResult) -> None:
        """Takes in the proposals and the advice of sample work. `result` is what `stream.step(logits, sequences)`
        returned. `sample` returns only tokens, and its proposals are lost. Texts that ended in the step may be among
        `sequences`."""
        sequences = _texts(sequences)
        for sequence in sequences:
            self.stream._check_own(sequence)
        if not isinstance(result, pb.StepResult):
            raise TypeError(f"result is {type(result).__name__}, must be the StepResult that `step` or `result` returned; `sample` returns only tokens")
        if len(result.work) != len(sequences):
            raise ValueError(f"result has {len(result.work)} works, must have one for each of {len(sequences)} texts")
        for sequence, told in zip(sequences, result.work):
            if told.status == pb.ROW_STATUS_OK:
                self._told[sequence] = told, len(sequence.tokens)
        self._forget_ended()

    def length(self, sequence: Sequence, at_most: int) -> int:
        """How many tokens to draft: `at_most`, or fewer, if the last advice was fewer, if `max_history_tokens` has no
        room for them and the token after them, or if one verification has no room for their rows."""
        self.stream._check_own(sequence)
        at_most = min(whole("at_most", at_most, 0), self._deepest(sequence), self.stream._session.draft_room())
        told, _ = self._told.get(sequence, (None, 0))
        if told is None or not told.HasField("advised_draft_length"):
            return at_most
        return min(at_most, told.advised_draft_length)

    def _deepest(self, sequence: Sequence) -> int:
        """How many consecutive draft tokens `max_history_tokens` has room for, together with the token after them."""
        return max(self.stream._session.limits.history_tokens - len(sequence.prompt) - len(sequence.tokens) - 1, 0)

    def _open(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """These texts, if they are open on this stream. Otherwise a text of another stream would be taken for the one
        with the same id."""
        texts = _texts(sequences)
        self.stream._session.check_open(texts)
        return texts

    def _forget_ended(self) -> None:
        """Forgets texts that have ended. The program may keep them as long as it runs."""
        for sequence in list(self._told):
            if self.stream.sequences.get(sequence.id) is not sequence:
                self._told.pop(sequence, None)

    def _draft(self, sequences: list[Sequence], shape_of: _ShapeOf, asks: _Asks) -> _Calls[list[Draft]]:
        """Makes drafts. If the connection was lost meanwhile, it starts again from the first token, because no server
        knows the earlier ones any more."""
        # Checked before the model is asked.
        check_once("texts", [sequence.id for sequence in sequences])
        failed, drafts = Undrawn(), None
        while drafts is None:
            failed.rows, failed.result = {}, None
            drafts = yield from self._drawn([sequence for sequence in sequences if not sequence.refused], shape_of, asks, failed)
        self.stream._session.told_of(failed.openings)
        failed.check([draft for draft in drafts if self.stream.sequences.get(draft.sequence.id) is draft.sequence])
        return drafts

    def _drawn(self, sequences: list[Sequence], shape_of: _ShapeOf, asks: _Asks, failed: Undrawn) -> _Calls[list[Draft] | None]:
        """Draws token by token, for all texts at once, because draft work is one token per step. None if the tokens are
        not all from one connection, or not in the shape that its limits have room for."""
        session = self.stream._session
        connection, shape = session.connections, shape_of(sequences)
        drafts = [Draft(sequence, [], [] if shape.is_tree else None, "kept") for sequence in sequences]
        # The index in each draft of each token of the shape. Tokens that are too deep are in no draft.
        places = [{-1: -1} for _ in drafts]
        # In trees, siblings are drawn from the same row.
        behind: dict[tuple[int, int], tuple[Any, bytes]] = {}
        going = list(range(len(drafts)))
        for token, (parent, depth) in enumerate(zip(shape.parents, shape.depths())):
            now = [at for at in going if depth <= shape.deepest[at]]
            if not now:
                continue
            fresh = [at for at in now if (at, parent) not in behind]
            if fresh:
                rows = yield from self._asked([(drafts[at], places[at][parent]) for at in fresh], asks)
                behind |= {(at, parent): row for at, row in zip(fresh, rows)}
            works = [pb.Work(sequence_id=drafts[at].sequence.id, draft=pb.DraftWork(restart=token == 0, parent=places[at][parent]),
                             token_masks=behind[at, parent][1]) for at in now]
            logits: Any = _stacked([behind[at, parent][0] for at in now])
            try:
                done: tuple[Step, pb.StepResult] = yield lambda: self.stream._step(logits, works, **asks.about)
            except LogitsLost:
                # Ranks must attach again first.
                if session.shards:
                    raise
                return None
            step, result = done
            has_siblings = parent in shape.parents[token + 1:]
            for at, row in zip(now, logits):
                _, mask = behind.pop((at, parent))
                if has_siblings:
                    # A copy of the model's row, whose memory the model may use for the next rows.
                    behind[at, parent] = row, mask
            if step.opens_failed:
                failed.not_opened(step.opens_failed, result)
                # Whatever comes in between, such as a mistake of the model, a later step reports them.
                session.tell_again(step.opens_failed)
            if session.connections != connection:
                # A single message is sent again as a whole, but of several messages some may have been answered before.
                # Another server may also have less room.
                if token or len(step.parts) > 1 or shape_of(sequences) != shape:
                    return None
                connection = session.connections
            for at, drawn in zip(now, result.work):
                if drawn.status != pb.ROW_STATUS_OK:
                    # Nothing can follow it. The other drafts continue.
                    failed.no_row(drafts[at].sequence, failure_of(drawn), result)
                    going.remove(at)
                    continue
                places[at][token] = len(drafts[at].token_ids)
                drafts[at].token_ids.append(drawn.tokens[0].token_id)
                if (parents := drafts[at].parents) is not None:
                    parents.append(places[at][parent])
                elif drawn.finish_reason:
                    # Nothing would follow it.
                    going.remove(at)
        return drafts

    def _asked(self, behind: list[tuple[Draft, int]], asks: _Asks) -> _Calls[list[tuple[Any, bytes]]]:
        """The model's row and the mask after each of these draft tokens."""
        pairs = [(draft.sequence, [draft.token_ids[i] for i in draft.path(token)]) for draft, token in behind]
        rows: Lines = yield lambda: asks.model(pairs)
        if not hasattr(rows, "__len__"):
            hint = "; an async model needs AsyncSpeculation" if inspect.isawaitable(rows) else ""
            raise TypeError(f"the draft model returned {type(rows).__name__}, must return a row of logits for each of {len(pairs)} texts{hint}")
        if len(rows) != len(pairs):
            raise ValueError(f"the draft model returned {len(rows)} rows for {len(pairs)} texts, must return one for each")
        if (masks := asks.masks) is None:
            return [(row, b"") for row in rows]
        given: Masks = yield lambda: masks(pairs)
        return list(zip(rows, encoded([1] * len(pairs), given, self.stream._session.vocab_size, "texts")))

    def _chain(self, sequences: Iterable[Sequence], at_most: int, asks: _Asks) -> _Calls[list[Draft]]:
        sequences, at_most = self._open(sequences), whole("at_most", at_most, 0)

        def shape_of(sequences: list[Sequence]) -> _Shape:
            lengths = [self.length(sequence, at_most) for sequence in sequences]
            return _Shape(range(-1, max(lengths, default=0) - 1), lengths, is_tree=False)

        return self._draft(sequences, shape_of, asks)

    def _tree(self, sequences: Iterable[Sequence], parents: Iterable[int], asks: _Asks) -> _Calls[list[Draft]]:
        # Checked before anything is drawn.
        asked = parents_of(listed("parents", parents, "whole numbers", "-1, 0"))

        def shape_of(sequences: list[Sequence]) -> _Shape:
            deepest = [self._deepest(sequence) for sequence in sequences]
            return _Shape(asked[: self.stream._session.draft_room()], deepest, is_tree=True)

        return self._draft(self._open(sequences), shape_of, asks)

    def _verify(self, drafts: Iterable[Draft], logits: Logits, measure: bool, token_masks: Masks | None,
                about: dict[str, Any]) -> _Calls[list[Verified]]:
        drafts = listed("drafts", drafts, "drafts", "Draft(text)")
        for at, draft in enumerate(drafts):
            if not isinstance(draft, Draft):
                raise TypeError(f"drafts[{at}] is {type(draft).__name__}, must be a Draft; Draft(text) is one without draft tokens")
        self._open([draft.sequence for draft in drafts])
        check_once("drafts", [draft.sequence.id for draft in drafts])
        works = [draft.work(measure) for draft in drafts]
        if token_masks is not None:
            masks = encoded([draft.rows for draft in drafts], token_masks, self.stream._session.vocab_size, "rows of logits")
            for work, mask in zip(works, masks):
                work.token_masks = mask
        # Not `step`, because its errors would leave out the results of the other works.
        done: tuple[Step, pb.StepResult] = yield lambda: self.stream._step(logits, works, **about)
        step, result = done
        verified: list[Verified | None] = []
        failures = {}
        for draft, told in zip(drafts, result.work):
            if told.status != pb.ROW_STATUS_OK:
                failures[draft.sequence.id] = failure_of(told)
                verified.append(None)
                continue
            self._told[draft.sequence] = told, len(draft.sequence.tokens)
            tokens, found = [token.token_id for token in told.tokens], told.verify
            verified.append(Verified(draft, tokens, list(found.accepted_path), _LAST.get(found.last_token, "other"), found.lossless, told))
        self._forget_ended()
        if step.opens_failed:
            others = rows_of_others(failures, step.opens_failed)
            raise OpenError(step.opens_failed, result, verified) from (SpeculationError(others, verified, result) if others else None)
        if failures:
            raise SpeculationError(failures, verified, result)
        return [each for each in verified if each is not None]


class Speculation(_Plan[Stream]):
    """Speculates on the texts of a `croupier.Stream`."""

    _of = Stream

    def chain(self, sequences: Iterable[Sequence], model: DraftModel, at_most: int = 4, *, token_masks: DraftMasks | None = None,
              traceparent: str = "", deadline_ms: int = 0) -> list[Draft]:
        """Makes drafts with a draft model, one token after the other. The sidecar draws them with the texts' own
        parameters. Raises `SpeculationError` if rows of texts fail, and `OpenError` if a text was not opened, once
        the drafts of the others are complete: `drafts` of either error has those of all texts that are still open.
        If the server is lost meanwhile, everything is drawn again, and the model is asked again.

        token_masks: a function that returns masks, as the model returns logits. It is called after the model, with
        the same pairs, and returns a row for each, in the forms that `Stream.sample` takes. Verify with the same
        masks.
        traceparent, deadline_ms: as for `Stream.sample`, for each of the steps. There is one step for each draft
        token."""
        return _run(self._chain(sequences, at_most, _asks(model, token_masks, traceparent, deadline_ms)))

    def tree(self, sequences: Iterable[Sequence], model: DraftModel, parents: Iterable[int], *, token_masks: DraftMasks | None = None,
             traceparent: str = "", deadline_ms: int = 0) -> list[Draft]:
        """As `chain`, in this shape (`Draft.parents`). If one verification has no room for the whole shape, only its
        beginning is used. Tokens are left out if they are too deep for the room that `max_history_tokens` leaves a
        text. The model is asked once for siblings. The advice on draft length is not used, because it is for chains."""
        return _run(self._tree(sequences, parents, _asks(model, token_masks, traceparent, deadline_ms)))

    def verify(self, drafts: Iterable[Draft], logits: Logits, measure: bool = False, *, token_masks: Masks | None = None,
               traceparent: str = "", deadline_ms: int = 0) -> list[Verified]:
        """Verifies drafts with the target's logits: `Draft.rows` rows for each draft, in order. Raises
        `SpeculationError`, and `OpenError` if a text was not opened; then a `SpeculationError` about drafts of others is
        its `__cause__`. Their `verified` has the results of the other drafts.

        A text without a draft may be among them, as `Draft(text)`: it gets the token that `sample` would give.

        token_masks: which tokens may be emitted, in the forms that `Stream.sample` takes: a row, or None, for each row
        of logits. The mask of a draft token's row is the one after the path that ends with that token.
        traceparent, deadline_ms: as for `Stream.sample`."""
        return _run(self._verify(drafts, logits, measure, token_masks, _about(traceparent, deadline_ms)))


class AsyncSpeculation(_Plan[aio.Stream]):
    """As `Speculation`, on a `croupier.aio.Stream`. A draft model, and a function for masks, may be a coroutine."""

    _of = aio.Stream

    async def chain(self, sequences: Iterable[Sequence], model: AsyncDraftModel, at_most: int = 4, *,
                    token_masks: AsyncDraftMasks | None = None, traceparent: str = "", deadline_ms: int = 0) -> list[Draft]:
        """See `Speculation`."""
        return await _wait(self._chain(sequences, at_most, _asks(model, token_masks, traceparent, deadline_ms)))

    async def tree(self, sequences: Iterable[Sequence], model: AsyncDraftModel, parents: Iterable[int], *,
                   token_masks: AsyncDraftMasks | None = None, traceparent: str = "", deadline_ms: int = 0) -> list[Draft]:
        """See `Speculation`."""
        return await _wait(self._tree(sequences, parents, _asks(model, token_masks, traceparent, deadline_ms)))

    async def verify(self, drafts: Iterable[Draft], logits: Logits, measure: bool = False, *, token_masks: Masks | None = None,
                     traceparent: str = "", deadline_ms: int = 0) -> list[Verified]:
        """See `Speculation`."""
        return await _wait(self._verify(drafts, logits, measure, token_masks, _about(traceparent, deadline_ms)))


def _asks(model: AsyncDraftModel, masks: AsyncDraftMasks | None, traceparent: str, deadline_ms: int) -> _Asks:
    for name, given in [("model", model), ("token_masks", masks)][: 1 if masks is None else 2]:
        if not callable(given):
            raise TypeError(f"{name} is {type(given).__name__}, must be a function that takes pairs of a text and the draft tokens after it")
    return _Asks(model, masks, _about(traceparent, deadline_ms))


def _about(traceparent: str, deadline_ms: int) -> dict[str, Any]:
    """The options of a step. They are checked before the model is asked."""
    return {"traceparent": text("traceparent", traceparent), "deadline_ms": below("deadline_ms", deadline_ms)}


def _texts(given: Iterable[Sequence]) -> list[Sequence]:
    """Texts as a list."""
    texts = listed("texts", given, "texts", "text")
    for at, each in enumerate(texts):
        if not isinstance(each, Sequence):
            raise TypeError(f"texts[{at}] is {each!r}, must be a Sequence that `open` returned")
    return texts


def _stacked(rows: list[Any]) -> Array | OnDevice:
    """Several rows as the rows of one step, in the memory where they are."""
    if is_on_device(rows[0]):
        # With the function of their own library: torch and cupy both call it `stack`.
        stacked: OnDevice = sys.modules[type(rows[0]).__module__.partition(".")[0]].stack(rows)
        return stacked
    # Bytes cannot be used here, because they do not say which numbers they contain.
    arrays = [as_array(row, "f32") for row in rows]
    if len(shapes := dict.fromkeys(array.shape for array in arrays)) > 1:
        raise ValueError(f"the draft model returned rows of the shapes {', '.join(map(str, shapes))}, must return rows of equal length")
    return np.stack(arrays)


def _run(plan: _Calls[_T]) -> _T:
    resume: Callable[[Any], Callable[[], Any]] = plan.send
    reply: Any = None
    while True:
        try:
            call = resume(reply)
        except StopIteration as done:
            value: _T = done.value
            return value
        try:
            resume, reply = plan.send, call()
        except LogitsLost as error:
            resume, reply = plan.throw, error


async def _wait(plan: _Calls[_T]) -> _T:
    resume: Callable[[Any], Callable[[], Any]] = plan.send
    reply: Any = None
    while True:
        try:
            call = resume(reply)
        except StopIteration as done:
            value: _T = done.value
            return value
        try:
            resume, reply = plan.send, call()
            if inspect.isawaitable(reply):
                reply = await reply
        except LogitsLost as error:
            resume, reply = plan.throw, error
