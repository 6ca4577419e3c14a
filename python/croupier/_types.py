"""What a stream is made of: texts, rows, steps and the messages that a step is sent as."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ._arrays import as_rows, dtype_of, held, is_on_device, narrowing
from ._device import DeviceArray
from ._regions import Region
from .errors import Failure

if TYPE_CHECKING:
    from ._forms import Array, Numbers, OnDevice
    from .schema import pb

Token = int


@dataclass(eq=False)
class Sequence:
    """One growing text."""

    id: int
    params: pb.SamplingParams
    """What `open` was given as a `SamplingParams`, and where neither that nor the stream's `default_params` has a seed the one that was chosen
    here. What `default_params` and `eos_token_ids` of the stream add is not in it: a stream that goes on with the text needs the same two."""
    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    """Emitted so far, those given when it was opened first."""
    finish_reason: str | None = None
    """"eos", "stop_token", "stop_sequence", "max_tokens", "repetition" or "other" when it has ended; then it is closed too. "other" is also
    said of a text that had ended when it was opened, where only the server knows why."""
    state: pb.SamplerState | None = None
    """What its samplers remember, a `SamplerState`, where one learns from each token and `params.return_sampler_state` is on, as it is
    unless somebody says otherwise."""
    refused: Failure | None = None
    """Why the server would not open it."""
    owner: object = field(default=None, repr=False)
    """What stands for the stream that opened it."""


@dataclass(eq=False)
class Rows:
    """Rows of a step, in shared or device memory where there is some: `write` logits, or compute them in `array`, then send them."""

    raw: Any
    """Their memory, which does not know whose it is."""
    slot: int | None = None
    region: Region | None = None
    users: int = 0
    """Messages that name it and have no answer."""
    owner: weakref.ref[Any] | None = None
    """The session that gave them, as a weak reference."""
    saved: Array | None = None
    """What is in the region, where its stream was interrupted and connects again: the region goes with the old connection."""
    is_written: bool = False
    """Whether `write` or `array` was used: until then what is there is an earlier step's, or whatever memory held."""
    is_spent: bool = False
    """A step's, or given back: the place may be another's by now."""
    is_back: bool = False
    """Whether the place is free again."""
    is_overflowed: bool = False
    """Whether numbers were too large for the dtype that they were converted to, and became infinities."""

    @property
    def array(self) -> Any:
        """A numpy array, in device memory a `DeviceArray`, whose types have too little in common for one that fits where either goes.
        Shape (rows, vocab_size), the stream's dtype. bf16 is uint16 here, its bits: what is assigned becomes bf16, what other libraries
        write must be. In device memory it has `__cuda_array_interface__`. The place is these rows' as long as it or a view of it is there,
        until they are sent."""
        # What is done with it nobody sees.
        self.is_written = True
        return self.raw if self.slot is None else held(self.raw, self)

    def give_back(self) -> None:
        """Gives up the place, once for all."""
        self.is_spent = self.is_back = True

    def write(self, logits: Numbers | OnDevice) -> None:
        """Writes logits, one row for each, in whatever form `sample` takes: they become the stream's dtype."""
        self.check()
        if not (is_on_device(logits) and isinstance(self.raw, DeviceArray)):
            logits = as_rows(logits, self.raw.shape[1], dtype_of(self.raw))
            if len(logits) != len(self.raw):
                raise ValueError(f"logits have {len(logits)} rows, these are {len(self.raw)}")
        with narrowing(self):
            self.raw[:] = logits
        self.is_written = True

    def check_to_send(self, session: object) -> None:
        """Whether they may be sent by this stream or rank."""
        self.check()
        self.check_owner(session)
        if not self.is_written and len(self.raw):
            raise ValueError("these rows were not written, and an earlier step's logits may be in their place; "
                             "write() logits, or compute them in array, before you send them")

    def check_owner(self, session: object) -> None:
        """Whether they are of this stream or rank."""
        if self.owner is not None and self.owner() is not session:
            raise ValueError("these rows are another stream's or rank's; take them with rows() where they are to be sent")

    def check(self) -> None:
        """Whether they may still be written."""
        if self.is_spent:
            raise ValueError("these rows were sent or discarded, and their place may be another step's by now; "
                             "take new ones with rows() for each step")


def given_rows(given: object) -> Rows:
    """Rows that `rows` gave."""
    if not isinstance(given, Rows):
        raise TypeError(f"{type(given).__name__} is given, must be what rows() gave")
    return given


class Slots:
    """The slots of a region, by who has them. They are looked at and not counted: rows that are gone have none, in whatever way they went,
    so that neither a signal's handler nor the garbage collector can come between rows and what they give back."""

    def __init__(self, count: int) -> None:
        self._taken: list[weakref.ref[Rows] | None] = [None] * count

    def free(self) -> list[int]:
        """Those that nobody has."""
        return [slot for slot, by in enumerate(self._taken) if _is_over(by)]

    def take(self, rows: Rows) -> bool:
        """Has rows take one, if there is one."""
        own = weakref.ref(rows)
        for slot, by in enumerate(self._taken):
            # Nothing is called between the last look and the taking: no other thread comes between.
            if _is_over(by) and self._taken[slot] is by:
                self._taken[slot] = own
                rows.slot = slot
                return True
        return False


def _is_over(by: weakref.ref[Rows] | None) -> bool:
    return by is None or (rows := by()) is None or rows.is_back


@dataclass(eq=False)
class Part:
    """One message of a step, without its result or with it."""

    step: Step
    step_id: int
    fixed: bytes
    """All of it but where the logits are."""
    open: list[Sequence] = field(default_factory=list)
    close: list[int] = field(default_factory=list)
    emits: list[Sequence | None] = field(default_factory=list)
    """The sequence of each work that emits tokens."""
    texts: list[Sequence | None] = field(default_factory=list)
    """The sequence of each work, of those that are known here."""
    logits: Rows | None = None
    first: int = 0
    end: int = 0
    """Which of the rows."""
    is_plain: bool = False
    """Whether its works only sample, each for a sequence that is known."""
    source: Array | OnDevice | None = None
    """Rows that still have to be put into a slot."""
    is_alone: bool = False
    """Whether what is before it has to be answered first."""
    is_begun: bool = False
    """Whether its turn to be sent has come."""
    result: pb.StepResult | None = None
    tokens: list[int] | None = None
    """Those of the result, where it has nothing else."""
    refused: str = ""
    reason: str = ""
    """That of the refusal."""
    busy: str = ""
    """Why the server would not take it yet."""
    full: list[pb.OpenResult] = field(default_factory=list)
    """What it last said of each text in `open`, where all that it lacks is room for them."""
    is_applied: bool = False
    before: list[tuple[Sequence, int, str | None, pb.SamplerState | None, bool]] = field(default_factory=list)
    """Texts as they were before it was applied, where the rest of its step may yet be given up."""

    def answered(self) -> pb.StepResult:
        """Its result, of a part that has one."""
        assert self.result is not None
        return self.result


@dataclass(eq=False)
class Step:
    """What was asked for at once, in one message or several."""

    parts: list[Part] = field(default_factory=list)
    left: int = 0
    """Parts without an answer."""
    failures: dict[int, Failure] = field(default_factory=dict)
    """Why works that emit have not, by the sequence's id."""
    opens_failed: dict[int, Failure] = field(default_factory=dict)
    """Why sequences were not opened."""
    refused: str = ""
    reason: str = ""
    """Why the server had no room for one of its parts, the first of several."""

    @property
    def emits(self) -> list[Sequence | None]:
        """The sequence of each work that emits tokens."""
        if len(self.parts) == 1:
            return self.parts[0].emits
        return [sequence for part in self.parts for sequence in part.emits]
