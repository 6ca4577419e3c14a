"""Sends an engine's logits to the server. At most one step is under way, and it should go through shared memory."""

from __future__ import annotations

import logging
import weakref
from typing import Any

from ..client import Stream, connect
from ..schema import pb
from ._ahead import limits_of

_log = logging.getLogger("croupier")
#: Limits of a server that does not report them.
_DEFAULTS = {"max_bytes_per_region": 256 << 20, "max_region_bytes": 512 << 20, "max_device_region_bytes": 512 << 20}
_PAGE = 4096
#: Rows begin at a multiple of this many bytes.
_ALIGNED = 64
#: Streams for which the warning was logged that they are slower than necessary.
_told: weakref.WeakSet[Stream] = weakref.WeakSet()


def rows_that_fit(limits: pb.Limits, vocab_size: int, wanted: int, streams: int, on_device: bool = False) -> int:
    """Rows of the largest step that a server with these limits has room for, in each of this many streams. Not more
    than wanted."""
    one, every, on_gpu = (getattr(limits, name) or default for name, default in _DEFAULTS.items())
    room = min(one, (on_gpu if on_device else every) // max(streams, 1))
    # A page of the client's own comes before them.
    return max(min(wanted, (room // _PAGE - 1) * _PAGE // (-(-4 * vocab_size // _ALIGNED) * _ALIGNED)), 1)


def connected(address: str, vocab_size: int, wanted: int, streams: int, *, max_rows: int | None, data_path: str,
              **options: Any) -> tuple[Stream, int]:
    """A stream, and the number of rows of its largest step. One slot is enough, because the adapters take a step's
    result before they write the next."""
    if max_rows is None:
        limits = limits_of(address) or pb.Limits()
        max_rows = rows_that_fit(limits, vocab_size, wanted, streams, data_path == "device_memory")
    return connect(address, vocab_size, data_path=data_path, max_rows=max_rows, slots=1, **options), max_rows


def rows_of(torch: Any, stream: Stream, address: str, logits: Any, max_rows: int) -> Any:
    """The logits in the form in which they are sampled."""
    if stream.data_path == "device_memory":
        return logits.contiguous()
    _say_slow(stream, address)
    if len(logits) > max_rows:
        # The client sends them as several messages, one after another in the slot. It can do that only with an array,
        # not with rows from `rows`.
        return logits.float().cpu().numpy()
    rows = stream.rows(len(logits))
    # Copy as float32, from the GPU directly to where the server reads it.
    torch.from_numpy(rows.array).copy_(logits)
    return rows


def _say_slow(stream: Stream, address: str) -> None:
    """Warns once if logits are sent in messages to a server that could share memory."""
    if stream.data_path != "inline" or stream in _told or not address.startswith("unix:") or stream.data_path_reason == "data_path is inline":
        return
    _told.add(stream)
    _log.warning("logits are sent to %s in messages, which is slower than shared memory: %s. The server's settings are region_socket, "
                 "max_bytes_per_region (for one stream, 256MiB by default) and max_region_bytes (for all ranks and streams, 512MiB by default): "
                 "raise them, or use a smaller max_rows here", address, stream.data_path_reason)
