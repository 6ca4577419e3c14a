"""The names of the options of `connect` and `attach`, for type checkers and for error messages."""

from __future__ import annotations

import numbers
import pathlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypedDict

import grpc

from ._checks import text

_DATA_PATHS = ("auto", "inline", "shared_memory", "device_memory")

if TYPE_CHECKING:
    from ._forms import Dtype, Parameters


class AccessOptions(TypedDict, total=False):
    """How the server is reached."""

    tls_ca: str | pathlib.Path | None
    tls_cert: str | pathlib.Path | None
    tls_key: str | pathlib.Path | None
    tls_name: str | None
    auth_token: str | Callable[[], str] | None
    credentials: grpc.ChannelCredentials | None


class StreamOptions(AccessOptions, total=False):
    """Documented at `croupier.Stream`."""

    dtype: Dtype
    model: str
    eos_token_ids: Iterable[int]
    default_params: Parameters | None
    data_path: str
    max_rows: int
    slots: int
    reconnect_within: float
    vocab_shards: Iterable[int] | None
    draft_vocabulary: Iterable[int] | None
    device: str | None
    traceparent: str


class RankOptions(AccessOptions, total=False):
    """Documented at `croupier.Rank`."""

    address: str | None
    data_path: str
    attach_within: float


class InfoOptions(AccessOptions, total=False):
    """Documented at `croupier.server_info`."""

    answer_within: float


def seconds(name: str, value: Any) -> float:
    """Checks a time in seconds. It may be infinite."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not float(value) >= 0:
        raise ValueError(f"{name} is {value!r}, must be a number of seconds, at least 0")
    return float(value)


def check_options(data_path: str, vocab_shards: Any, draft_vocabulary: Any, device: str | None) -> None:
    """Checks the options, alone and in combination."""
    if data_path not in _DATA_PATHS:
        raise ValueError(f"data_path is {data_path!r}, must be one of {', '.join(_DATA_PATHS)}")
    if vocab_shards is not None and not isinstance(vocab_shards, Iterable):
        raise TypeError(f"vocab_shards is {vocab_shards!r}, must be a list with the number of columns of each rank")
    if data_path == "device_memory" and vocab_shards is not None:
        raise ValueError("data_path device_memory cannot be used with vocab_shards: it takes whole rows, and ranks compute on different GPUs")
    if vocab_shards is not None and draft_vocabulary is not None:
        raise ValueError("draft_vocabulary cannot be used with vocab_shards: the rows of this stream come in columns of ranks, and draft work "
                         "needs whole ones; draw drafts otherwise and send their distribution")
    if device is not None:
        text("device", device)
    if device is not None and data_path != "device_memory":
        raise ValueError(f"device is {device!r}, which needs data_path device_memory, not {data_path}")


def check_slot(data_path: str, count: int, max_rows: int) -> None:
    """Checks whether more rows than a slot has may be sent in messages."""
    if data_path == "shared_memory":
        raise ValueError(f"{count} rows are more than max_rows, {max_rows}, and data_path is shared_memory; connect with a larger max_rows, "
                         "or with data_path \"auto\", which sends such rows in messages")
