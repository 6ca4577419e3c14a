"""The data of a stream: texts, rows, steps and the messages that a step is sent as."""

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
    """The parameters that `open` received, as a `SamplingParams`. If neither these nor the stream's `default_params`
    have a seed, they contain the one that was chosen here. Changing them has no effect; `fork` opens a text with others.
    They do not contain what the stream's `default_params` and `eos_token_ids` add, so another stream that continues the
    text needs the same two."""
    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    """The tokens so far: first those given when the text was opened, then those emitted."""
    finish_reason: str | None = None
    """Why the text has ended: "eos", "stop_token", "stop_sequence", "max_tokens", "repetition" or "other". It is closed
    then, too. "other" is also used if the text had already ended when it was opened and only the server knows why."""
    state: pb.SamplerState | None = None
    """What its samplers remember, as a `SamplerState`, if one of them learns from each token and
    `params.return_sampler_state` is on. It is on by default."""
    predicted: tuple[int, ...] = ()
    """Tokens that the output may repeat."""
    refused: Failure | None = None
    """Why the server did not open it."""
    owner: object = field(default=None, repr=False)
    """An object that identifies the stream which opened it."""
    opened_with: bytes = field(default=b"", repr=False)
    """The serialised parameters that `open` received. They are what is sent, also when the text is opened again, so
    that a change of `params` meanwhile cannot change the text after a reconnect."""


@dataclass(eq=False)
class Rows:
    """Rows of a step, in shared or device memory if there is some. `write` logits, or compute them in `array`, then
    send the rows."""

    raw: Any
    """The memory of the rows. It does not keep its owner alive."""
    slot: int | None = None
    region: Region | None = None
    users: int = 0
    """Number of messages that use the rows and have no answer."""
    owner: weakref.ref[Any] | None = None
    """The session that created the rows, as a weak reference."""
    saved: Array | None = None
    """A copy of what is in the region, made when the stream is interrupted and connects again, because the region is
    lost with the old connection."""
    is_written: bool = False
    """Whether `write` or `array` was used. Before that, the memory has an earlier step's rows, or arbitrary data."""
    is_spent: bool = False
    """Whether the rows were sent or given back. The place may belong to other rows by now."""
    is_back: bool = False
    """Whether the place is free again."""
    is_overflowed: bool = False
    """Whether numbers were too large for the dtype that they were converted to, and became infinities."""

    @property
    def array(self) -> Any:
        """A numpy array, or in device memory a `DeviceArray`. The return type is Any because these two have too little
        in common. Its shape is (rows, vocab_size), and it has the stream's dtype. bf16 appears as uint16, its bits:
        numbers that are assigned are converted to bf16, but other libraries must write the bits. With f32 and f16 it is
        a plain array, where numpy takes uint16 for whole numbers; `write` takes it for bf16. In device memory it has
        `__cuda_array_interface__`. The place belongs to these rows as long as the array or a view of it exists,
        until the rows are sent."""
        # Nobody sees what is done with the array, so the rows count as written.
        self.is_written = True
        return self.raw if self.slot is None else held(self.raw, self)

    def give_back(self) -> None:
        """Gives up the place for good."""
        self.is_spent = self.is_back = True

    def write(self, logits: Numbers | OnDevice) -> None:
        """Writes logits, one row for each, in any form that `sample` takes. They are converted to the stream's
        dtype."""
        self.check()
        if not (is_on_device(logits) and isinstance(self.raw, DeviceArray)):
            logits = as_rows(logits, self.raw.shape[1], dtype_of(self.raw))
            if len(logits) != len(self.raw):
                raise ValueError(f"logits have {len(logits)} rows, must have {len(self.raw)}")
        with narrowing(self, logits):
            self.raw[:] = logits
        self.is_written = True

    def check_to_send(self, session: object) -> None:
        """Checks that the rows may be sent by this stream or rank."""
        self.check()
        self.check_owner(session)
        if not self.is_written and len(self.raw):
            raise ValueError("these rows were not written, and an earlier step's logits may be in their place; "
                             "write() logits, or compute them in array, before you send them")

    def check_owner(self, session: object) -> None:
        """Checks that the rows belong to this stream or rank."""
        if self.owner is not None and self.owner() is not session:
            raise ValueError("these rows belong to another stream or rank; take rows() from the one that is to send them")

    def check(self) -> None:
        """Checks that the rows may still be written."""
        if self.is_spent:
            raise ValueError("these rows were sent or discarded, and another step may already use their place; "
                             "take new ones with rows() for each step")


def given_rows(given: object) -> Rows:
    """Checks that these are rows that `rows` returned."""
    if not isinstance(given, Rows):
        raise TypeError(f"rows is {type(given).__name__}, must be what rows() returned")
    return given


class Slots:
    """The slots of a region, each with the rows that hold it. Free slots are found by looking at these rows, and are
    not counted: rows that no longer exist hold no slot, in whatever way they went. So neither a signal handler nor the
    garbage collector can interfere with giving a slot back."""

    def __init__(self, count: int) -> None:
        self._taken: list[weakref.ref[Rows] | None] = [None] * count

    def free(self) -> list[int]:
        """Free slots."""
        return [slot for slot, by in enumerate(self._taken) if _is_over(by)]

    def take(self, rows: Rows) -> bool:
        """Takes a slot for these rows, if there is a free one."""
        own = weakref.ref(rows)
        for slot, by in enumerate(self._taken):
            # Nothing is called between the last check and taking the slot, so no other thread can intervene.
            if _is_over(by) and self._taken[slot] is by:
                self._taken[slot] = own
                rows.slot = slot
                return True
        return False


def _is_over(by: weakref.ref[Rows] | None) -> bool:
    return by is None or (rows := by()) is None or rows.is_back


@dataclass(eq=False)
class Part:
    """One message of a step, with or without its result."""

    step: Step
    step_id: int
    fixed: bytes
    """The whole message except for the place of the logits."""
    open: list[Sequence] = field(default_factory=list)
    close: list[int] = field(default_factory=list)
    emits: list[Sequence | None] = field(default_factory=list)
    """For each work: its sequence, if the work emits tokens."""
    texts: list[Sequence | None] = field(default_factory=list)
    """For each work: its sequence, if that is known here."""
    logits: Rows | None = None
    first: int = 0
    end: int = 0
    """The range of rows in the message."""
    is_plain: bool = False
    """Whether its works only sample, each for a known sequence."""
    source: Array | OnDevice | None = None
    """Rows that still have to be put into a slot."""
    is_alone: bool = False
    """Whether everything before it must be answered first."""
    is_begun: bool = False
    """Whether its turn to be sent has come."""
    result: pb.StepResult | None = None
    tokens: list[int] | None = None
    """The tokens of the result, if it has nothing else."""
    refused: str = ""
    reason: str = ""
    """The reason of the refusal."""
    busy: str = ""
    """Why the server did not accept it yet."""
    full: list[pb.OpenResult] = field(default_factory=list)
    """The server's last answers about texts in `open` for which it only lacks room."""
    is_applied: bool = False
    before: list[tuple[Sequence, int, str | None, pb.SamplerState | None, bool]] = field(default_factory=list)
    """The texts as they were before it was applied, if the rest of its step may still be given up."""

    def answered(self) -> pb.StepResult:
        """The result of a part that has one."""
        assert self.result is not None
        return self.result

    def drop(self) -> None:
        """Drops what nobody needs once the whole step has its answers, or was given up. The step refers to its parts,
        so with a part that refers to the step, the logits would stay until the garbage collector runs."""
        self.logits = self.source = None
        del self.step


@dataclass(eq=False)
class Step:
    """One request, sent as one message or several."""

    parts: list[Part] = field(default_factory=list)
    left: int = 0
    """Number of parts without an answer."""
    failures: dict[int, Failure] = field(default_factory=dict)
    """Why works that should emit tokens did not, by the sequence's id."""
    opens_failed: dict[int, Failure] = field(default_factory=dict)
    """Why sequences were not opened, by id."""
    refused: str = ""
    reason: str = ""
    """Why the server had no room for a part. If there are several, this is the first."""

    @property
    def emits(self) -> list[Sequence | None]:
        """For each work: its sequence, if the work emits tokens."""
        if len(self.parts) == 1:
            return self.parts[0].emits
        return [sequence for part in self.parts for sequence in part.emits]
