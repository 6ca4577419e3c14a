"""The options of `connect` and `attach` by name, for type checkers and for mistakes."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

import grpc

if TYPE_CHECKING:
    from .params import SamplingParams


class AccessOptions(TypedDict, total=False):
    """How the server is reached."""

    tls_ca: str | pathlib.Path | None
    tls_cert: str | pathlib.Path | None
    tls_key: str | pathlib.Path | None
    tls_name: str | None
    auth_token: str | Callable[[], str] | None
    credentials: grpc.ChannelCredentials | None


class StreamOptions(AccessOptions, total=False):
    """Told at `croupier.Stream`."""

    dtype: str
    model: str
    eos_token_ids: Iterable[int]
    default_params: SamplingParams | Mapping[str, Any] | Any
    data_path: str
    max_rows: int
    slots: int
    reconnect_within: float
    vocab_shards: Iterable[int] | None
    device: str | None
    traceparent: str


class RankOptions(AccessOptions, total=False):
    """Told at `croupier.Rank`."""

    address: str | None
    data_path: str
