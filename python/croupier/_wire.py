"""Builds messages of the wire from serialised parts: serialised messages of one type may be concatenated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._types import Sequence
from .schema import pb

if TYPE_CHECKING:
    from ._forms import Array
    from ._regions import Region

METHOD = "/croupier.v1.Sampler/Decode"


def options(address: str) -> list[tuple[str, Any]]:
    """gRPC's options for a channel to `address`."""
    chosen: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        # So that a server which vanishes silently is noticed.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # gRPC also sends pings to measure bandwidth. While such a ping is under way, the pings above wait, which may
        # take a minute without this option.
        ("grpc.http2.ping_timeout_ms", 10_000),
        # Each attempt to connect is separate. Otherwise channels to the same address would share their waiting time
        # after a failure.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if address.startswith("unix:"):
        # Without it gRPC would send the path as the authority, and the server would refuse the connection.
        chosen.append(("grpc.default_authority", "localhost"))
    return chosen


def varint(value: int) -> bytes:
    """A number as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(message: str, field: str) -> bytes:
    """The tag of a length-delimited field."""
    number: int = getattr(pb, message).DESCRIPTOR.fields_by_name[field].number
    return varint(number << 3 | 2)


_STEP = _tag("DecodeRequest", "step")
_OPEN, _PARAMS = _tag("Step", "open"), _tag("OpenSequence", "params")
_INLINE, _REGION, _SHARDED = (_tag("Step", name) for name in ("inline", "region", "sharded"))
_SHARDED_INLINE, _SHARDED_REGION = (_tag("ShardedLogits", name) for name in ("inline", "region"))
_DATA = _tag("InlineLogits", "data")


def opening(sequence: Sequence) -> bytes:
    """What opens a text, or opens it again with its tokens so far."""
    body = pb.OpenSequence(sequence_id=sequence.id, prompt_token_ids=sequence.prompt, output_token_ids=sequence.tokens,
                           sampler_state=sequence.state, predicted_output_token_ids=sequence.predicted).SerializeToString()
    body += _PARAMS + varint(len(sequence.opened_with)) + sequence.opened_with
    return _OPEN + varint(len(body)) + body


def opened_params(sequence: Sequence) -> pb.SamplingParams:
    """The parameters that a text was opened with, a copy."""
    return pb.SamplingParams.FromString(sequence.opened_with)


def inline(rows: Array, is_sharded: bool) -> list[bytes | memoryview]:
    """Rows in the message. They are copied once, when the message is joined."""
    data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
    head = _DATA + varint(data.nbytes)
    return _within(_SHARDED_INLINE if is_sharded else _INLINE, [head, data], len(head) + data.nbytes, is_sharded)


def placed(region: Region, offset: int, rows: int, stride: int, is_sharded: bool) -> bytes:
    """Rows in a region."""
    body = pb.RegionLogits(region_id=region.id, generation=region.generation, offset=offset, rows=rows,
                           row_stride=stride).SerializeToString()
    return b"".join(_within(_SHARDED_REGION if is_sharded else _REGION, [body], len(body), is_sharded))


def _within(tag: bytes, body: list[bytes | memoryview], size: int, is_sharded: bool) -> list[bytes | memoryview]:
    head = tag + varint(size)
    if is_sharded:
        head = _SHARDED + varint(len(head) + size) + head
    return [head, *body]


def message(fixed: bytes, logits: list[bytes | memoryview]) -> bytes:
    """The request."""
    size = len(fixed) + sum(chunk.nbytes if isinstance(chunk, memoryview) else len(chunk) for chunk in logits)
    return b"".join([_STEP, varint(size), fixed, *logits])
