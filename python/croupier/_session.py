"""What a stream remembers, without a socket: sequences with their tokens, steps that wait for their results, slots.

Everything that is needed to go on after the server was killed is here, so the clients only carry bytes.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _device, _regions
from ._device import DeviceArray
from ._regions import Region
from ._top_n import TopN
from .errors import CroupierError, LogitsLost
from .schema import pb

METHOD = "/croupier.v1.Sampler/Decode"
#: Number formats: the wire's value, and numpy's. bf16 is the upper half of a float32, as uint16.
DTYPES = {
    "f32": (pb.LOGITS_DTYPE_F32, np.dtype("<f4")),
    "f16": (pb.LOGITS_DTYPE_F16, np.dtype("<f2")),
    "bf16": (pb.LOGITS_DTYPE_BF16, np.dtype("<u2")),
}
_DATA_PATHS = ("auto", "inline", "shared_memory", "device_memory")
_PAGE = 4096
#: Where steps without shards are counted from, in a stream that has some: ranks count the others, from 1.
_WITHOUT_SHARDS = 1 << 63
_OK = pb.ROW_STATUS_OK
_LOST = "the region that the logits were in is gone with the server; write them again and send the step again"
_FINISH = {
    pb.FINISH_REASON_EOS: "eos",
    pb.FINISH_REASON_STOP_TOKEN: "stop_token",
    pb.FINISH_REASON_MAX_TOKENS: "max_tokens",
    pb.FINISH_REASON_REPETITION: "repetition",
}


Token = int


def options(address: str) -> list[tuple[str, Any]]:
    """gRPC's options for a channel to `address`."""
    chosen: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        # A server that vanishes without a word is noticed.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]
    if address.startswith("unix:"):
        # Without it gRPC sends the path as the authority, and the connection is refused.
        chosen.append(("grpc.default_authority", "localhost"))
    return chosen


def _remembers(params: Any) -> bool:
    """Whether a sampler that is on learns from each token."""
    return params.mirostat > 0 or (params.HasField("adaptive_target") and params.adaptive_target >= 0)


@dataclass
class Sequence:
    """One growing text."""

    id: int
    params: Any
    """Its `SamplingParams`, with its seed."""
    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    """Emitted so far, those given when it was opened first."""
    finish_reason: str | None = None
    state: Any = None
    """What its samplers remember, a `SamplerState`; with `params.return_sampler_state`."""


@dataclass
class Rows:
    """Rows of a step, in shared or device memory where there is some: write them into `array`, then send them."""

    array: np.ndarray | DeviceArray
    """Shape (rows, vocab_size). In device memory it has `__cuda_array_interface__`."""
    slot: int | None = None
    region: Region | None = None


@dataclass
class InFlight:
    """A step without its result."""

    step_id: int
    open: list[Sequence]
    close: list[int]
    work: bytes
    emits: list[Sequence | None]
    """The sequence of each work that emits tokens."""
    logits: Rows | None
    top_n: bytes = b""
    failures: dict[int, str] = field(default_factory=dict)
    """Why works that emit have not, by the sequence's id."""


class Session:
    """One stream's memory."""

    def __init__(self, vocab_size: int, dtype: str, model: str, eos_token_ids: Iterable[int], default_params: Any,
                 data_path: str, max_rows: int, slots: int, vocab_shards: Iterable[int] | None = None,
                 device: str | None = None) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}, must be one of {', '.join(DTYPES)}")
        if data_path not in _DATA_PATHS:
            raise ValueError(f"data_path is {data_path!r}, must be one of {', '.join(_DATA_PATHS)}")
        if data_path == "device_memory" and vocab_shards is not None:
            raise ValueError("data_path device_memory takes whole rows, not vocab_shards: ranks compute on different GPUs")
        if device is not None and data_path != "device_memory":
            raise ValueError(f"device is {device!r}, which wants data_path device_memory, not {data_path}")
        wire, self.numpy = DTYPES[dtype]
        self.dtype, self.vocab_size, self.wanted = dtype, vocab_size, data_path
        self.device = device or ""
        self.config = pb.StreamConfig(vocab_size=vocab_size, logits_dtype=wire, model=model,
                                      eos_token_ids=eos_token_ids, default_params=default_params,
                                      wants_regions=data_path != "inline")
        self.shards = None if vocab_shards is None else list(vocab_shards)
        if self.shards is not None:
            self.config.vocab_shards.columns.extend(self.shards)
        # Columns that come from here.
        self.columns = self.shards[0] if self.shards else vocab_size
        self.offer: Any = None
        self.sharded = 0
        # Rows begin at a multiple of 64 bytes.
        whole = 64 // self.numpy.itemsize
        self.stride = -(-vocab_size // whole) * whole
        self.max_rows, self.slots = max_rows, slots
        self.slot_bytes = -(-max_rows * self.stride * self.numpy.itemsize // _PAGE) * _PAGE
        self.sequences: dict[int, Sequence] = {}
        self.opening: list[Sequence] = []
        self.closing: list[int] = []
        self.waiting: deque[InFlight] = deque()
        self.region: Region | None = None
        self.free: list[int] = []
        self.steps = self.ids = 0
        self.works: dict[tuple[int, ...], bytes] = {}
        self.lost = False

    # Sequences.

    def open(self, params: Any, prompt: Iterable[int], output: Iterable[int], sequence_id: int | None) -> Sequence:
        defaults = self.config.default_params
        if _remembers(params) or _remembers(defaults):
            params.return_sampler_state = True
        if not params.HasField("seed") and not defaults.HasField("seed"):
            # Chosen here, so that a text can go on whatever becomes of the server.
            params.seed = secrets.randbits(64)
        if sequence_id is None:
            self.ids += 1
            sequence_id = self.ids
        elif sequence_id in self.sequences:
            raise ValueError(f"sequence {sequence_id} is open")
        self.ids = max(self.ids, sequence_id)
        sequence = Sequence(sequence_id, params, tuple(prompt), list(output))
        self.sequences[sequence_id] = sequence
        self.opening.append(sequence)
        return sequence

    def close(self, sequence: Sequence) -> None:
        if self.sequences.pop(sequence.id, None) is None:
            return
        if sequence in self.opening:
            self.opening.remove(sequence)
        else:
            self.closing.append(sequence.id)

    # Connecting.

    def lease(self, ready: Any, address: str) -> None:
        """Leases a region where one is wanted and to be had. Blocks."""
        self.offer = ready.shard_offer
        if self.wanted == "inline":
            return
        kind = "device memory" if self.wanted == "device_memory" else "shared memory"
        try:
            if not ready.HasField("region_offer"):
                raise CroupierError(f"the server offers no {kind}")
            region = self._leased(ready.region_offer, address)
        except (CroupierError, OSError, AttributeError) as error:
            if self.wanted != "auto":
                raise CroupierError(f"no {kind}: {error}") from error
            self._move(None)
            return
        self._move(region)

    def _leased(self, offer: Any, address: str) -> Region:
        size = self.slots * self.slot_bytes
        if self.wanted == "device_memory":
            return _device.lease(offer, size, address, self.device)
        return _regions.lease(offer, size, address)

    def _move(self, region: Region | None) -> None:
        """Goes over to another region; steps without a result take their rows along."""
        old, self.region = self.region, region
        self.free = list(range(self.slots)) if region else []
        try:
            for step in self.waiting:
                if step.logits is not None:
                    step.logits = self._kept(step.logits)
        except LogitsLost:
            self._lose()
        if old:
            old.close()

    def _lose(self) -> None:
        """Gives up every step without a result; what they should open is opened again."""
        self.lost = True
        self.opening = [sequence for step in self.waiting for sequence in step.open] + self.opening
        self.waiting.clear()
        self.free = list(range(self.slots)) if self.region else []

    def _kept(self, rows: Rows) -> Rows:
        """Rows in the region of now."""
        if rows.slot is None or rows.region is self.region:
            return rows
        if rows.region.on_device:
            # What a GPU was still to write there when the server went nobody knows.
            raise LogitsLost(_LOST)
        kept = self.rows(len(rows.array))
        kept.array[:] = rows.array
        # Looked at last: what was copied before the pages went is whole.
        if rows.region.is_lost():
            if kept.slot is not None:
                self.free.append(kept.slot)
            raise LogitsLost(_LOST)
        return kept

    def again(self) -> list[bytes]:
        """After a new connection: messages that open what is open, and then what has no result."""
        # What a connection before this one did not come to.
        self.waiting = deque(step for step in self.waiting if step.step_id)
        if self.shards and any(step.logits is not None for step in self.waiting):
            # The other ranks were cut off too, and their columns with them.
            self._lose()
        fresh = {id(sequence) for step in self.waiting for sequence in step.open}
        fresh |= {id(sequence) for sequence in self.opening}
        known = [sequence for sequence in self.sequences.values() if id(sequence) not in fresh]
        # The rest was closed by the end of the stream.
        still = {sequence.id for step in self.waiting for sequence in step.open}
        self.closing = [number for number in self.closing if number in still]
        reopening = InFlight(0, known, [], b"", [], None)
        steps = [reopening, *self.waiting]
        self.waiting = deque(steps)
        return [self.encode(step) for step in steps]

    def raise_if_lost(self) -> None:
        """Tells once that logits were lost."""
        if self.lost:
            self.lost = False
            raise LogitsLost(_LOST)

    # Steps.

    def rows(self, count: int) -> Rows:
        """Rows to be written: a slot if there is one that holds so many, else memory of one's own."""
        on_device = self.region is not None and self.region.on_device
        if on_device and count > self.max_rows:
            raise ValueError(f"{count} rows, must be at most max_rows, {self.max_rows}: other memory of the GPU is not sent")
        if self.region is None or count > self.max_rows:
            return Rows(np.empty((count, self.columns), self.numpy))
        if not self.free:
            raise CroupierError("every slot waits for its step's result; take one first, or ask for more slots")
        slot = self.free.pop(0)
        offset = self.region.first + slot * self.slot_bytes
        return Rows(self.region.view(self.numpy, count, self.stride, self.columns, offset), slot, self.region)

    def discard(self, rows: Rows) -> None:
        """Gives back the place of rows that will not be sent."""
        if rows.slot is not None and rows.region is self.region and rows.slot not in self.free:
            self.free.append(rows.slot)

    def refused(self) -> None:
        """Gives up the oldest step, which was refused; what it should open and close goes with the next."""
        step = self.waiting.popleft()
        if step.logits is not None:
            self.discard(step.logits)
        self.opening = [s for s in step.open if self.sequences.get(s.id) is s] + self.opening
        self.closing = step.close + self.closing

    def step(self, logits: Any, work: Iterable[Any]) -> bytes:
        """A step as it is sent. `work` holds sequences (to be sampled) or `Work` messages; `logits` whole rows, a `TopN`,
        or both, whose rows are numbered after the whole ones."""
        wire, emits = self._works(list(work))
        rows, listed = None, b""
        if isinstance(logits, tuple) and len(logits) == 2 and isinstance(logits[1], TopN):
            logits, top_n = logits
        else:
            logits, top_n = (None, logits) if isinstance(logits, TopN) else (logits, None)
        if top_n is not None:
            listed = top_n.encode(self.numpy, bf16 if self.dtype == "bf16" else None)
        if logits is not None:
            rows = self._kept(logits) if isinstance(logits, Rows) else self._placed(logits)
            self.synchronize()
        step = InFlight(self._number(rows), self.opening, self.closing, wire, emits, rows, listed)
        self.opening, self.closing = [], []
        self.waiting.append(step)
        return self.encode(step)

    def _number(self, rows: Rows | None) -> int:
        if self.shards and rows is not None:
            self.sharded += 1
            return self.sharded
        self.steps += 1
        return self.steps + _WITHOUT_SHARDS if self.shards else self.steps

    def shard_token(self, address: str) -> str:
        """What another rank needs to attach and to bring its columns."""
        if not self.shards:
            raise CroupierError("the stream has no ranks; connect with vocab_shards")
        region = self.region
        place = [region.id, region.generation, region.first, self.slot_bytes, self.stride] if region else None
        facts = {"address": address, "token": self.offer.token.hex(), "columns": self.shards, "dtype": self.dtype,
                 "step": self.sharded + 1, "region": place, "slots": self.slots, "max_rows": self.max_rows}
        return base64.urlsafe_b64encode(json.dumps(facts).encode()).decode()

    def _works(self, work: list[Any]) -> tuple[bytes, list[Sequence | None]]:
        if all(isinstance(item, Sequence) for item in work):
            # The same texts step after step: what is sent about them is the same too.
            key = tuple(sequence.id for sequence in work)
            wire = self.works.get(key)
            if wire is None:
                if len(self.works) > 64:
                    self.works.clear()
                works = [pb.Work(sequence_id=number, sample=pb.SampleWork()) for number in key]
                wire = self.works[key] = pb.Step(work=works).SerializeToString()
            return wire, work
        works, emits = [], []
        for item in work:
            if isinstance(item, Sequence):
                item = pb.Work(sequence_id=item.id, sample=pb.SampleWork())
            works.append(item)
            emits.append(self.sequences.get(item.sequence_id) if item.WhichOneof("kind") in ("sample", "verify") else None)
        return pb.Step(work=works).SerializeToString(), emits

    def synchronize(self) -> None:
        """Waits until the GPU has written what it was asked to; the server does not. Without one there is nothing to wait for."""
        if self.region is not None:
            self.region.synchronize()

    def _placed(self, logits: Any) -> Rows:
        if self.region is not None and self.region.on_device and _device.is_on_device(logits):
            return filled(self, logits, _device.row_count(logits, self.columns))
        return filled(self, as_rows(logits, self.columns, self.dtype))

    def encode(self, step: InFlight) -> bytes:
        head = pb.Step(step_id=step.step_id, close_sequence_ids=step.close)
        for sequence in step.open:
            head.open.add(sequence_id=sequence.id, params=sequence.params, prompt_token_ids=sequence.prompt,
                          output_token_ids=sequence.tokens, sampler_state=sequence.state)
        if step.logits is not None:
            array, slot = step.logits.array, step.logits.slot
            where = head.sharded if self.shards else head
            if slot is None:
                where.inline.data = array.tobytes()
            else:
                where.region.region_id, where.region.generation = self.region.id, self.region.generation
                where.region.offset = self.region.first + slot * self.slot_bytes
                where.region.rows, where.region.row_stride = len(array), self.stride
        # Serialised messages of one type may be joined; the field `step` of DecodeRequest has number 2.
        body = head.SerializeToString() + step.work + step.top_n
        return b"\x12" + _varint(len(body)) + body

    def result(self, message: bytes) -> tuple[InFlight, Any]:
        """The oldest step and its result. A refused step stays where it is."""
        result = pb.DecodeResponse.FromString(message).step
        step = self.waiting[0]
        if result.step_id != step.step_id:
            raise CroupierError(f"the server answered step {result.step_id}, expected was {step.step_id}; connect again")
        if result.HasField("refusal"):
            return step, result
        self.waiting.popleft()
        if step.logits is not None and step.logits.slot is not None:
            self.free.append(step.logits.slot)
        # Each look into a message costs a fifth of a microsecond or so, and there are many works.
        for sequence, emitting in zip(step.emits, result.work):
            if sequence is None:
                continue
            if emitting.status != _OK:
                step.failures[sequence.id] = emitting.message
                continue
            for token in emitting.tokens:
                sequence.tokens.append(token.token_id)
            if sequence.params.return_sampler_state and emitting.HasField("sampler_state"):
                sequence.state = emitting.sampler_state
            finish = emitting.finish_reason
            if finish:
                sequence.finish_reason = _FINISH.get(finish, "other")
        for sequence, opened in zip(step.open, result.open):
            if opened.status != pb.OPEN_STATUS_OK:
                self.sequences.pop(sequence.id, None)
                raise CroupierError(f"sequence {sequence.id}: {opened.error.field}: {opened.error.message}")
        return step, result


def filled(place: Any, array: Any, count: int | None = None) -> Rows:
    """Rows of `place`, which gives and takes them back, with these values in them."""
    rows = place.rows(len(array) if count is None else count)
    try:
        rows.array[:] = array
    except BaseException:
        place.discard(rows)
        raise
    return rows


def as_rows(logits: Any, columns: int, dtype: str) -> np.ndarray:
    """Logits as an array of rows that can be copied to where they go."""
    if _device.is_on_device(logits):
        raise ValueError("logits are on a GPU: connect with data_path=\"device_memory\", which takes such and no vocab_shards, "
                         "or give a copy on the host, for a tensor logits.cpu()")
    array = np.asarray(logits)
    if array.ndim == 1:
        array = array[np.newaxis]
    if array.ndim != 2 or array.shape[1] != columns:
        raise ValueError(f"logits have the shape {array.shape}, must be (rows, {columns})")
    if dtype == "bf16" and array.dtype != DTYPES[dtype][1]:
        array = bf16(array)
    return array


def bf16(values: np.ndarray) -> np.ndarray:
    """float32 as bf16, to nearest even. numpy has no such type."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    # A NaN whose payload lies in the lower half would become an infinity.
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype("<u2")


def widened(values: np.ndarray) -> np.ndarray:
    """bf16 as float32."""
    return (values.astype("<u4") << 16).view("<f4")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
