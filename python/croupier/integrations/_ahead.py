"""Asks a server, before there is a stream, how much room it has and whether it would open a text."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable

import grpc

from .._access import Access
from ..schema import pb

#: Longest time to wait for an answer, and how long a server that gave none is not asked again, in seconds. Requests
#: wait meanwhile.
_WITHIN, _REST = 1.0, 10.0


class _Server:
    """A server that can be asked."""

    def __init__(self, address: str) -> None:
        channel = Access(address).channel()
        method = functools.partial(channel.unary_unary, request_serializer=lambda message: message.SerializeToString())
        self._info: Callable[..., pb.GetServerInfoResponse] = method("/croupier.v1.Sampler/GetServerInfo",
                                                                     response_deserializer=pb.GetServerInfoResponse.FromString)
        self._sample: Callable[..., pb.SampleResponse] = method("/croupier.v1.Sampler/Sample",
                                                                response_deserializer=pb.SampleResponse.FromString)
        self._largest = 0
        self._silent_until = 0.0

    def refusal(self, params: pb.SamplingParams, defaults: pb.SamplingParams) -> str:
        """Tests the parameters with a row of one token, in the largest vocabulary that there can be, because the text's
        vocabulary is not known yet."""
        if time.monotonic() < self._silent_until:
            return ""
        try:
            self._largest = self._largest or self._info(pb.GetServerInfoRequest(), timeout=_WITHIN).limits.max_vocab_size
            row = pb.TopNRows(counts=[1], token_ids=[0], logits=bytes(4), rest_logsumexp=[-math.inf], beyond=[pb.BEYOND_TOP_N_MARK])
            [answer] = self._sample(pb.SampleRequest(vocab_size=self._largest, logits_dtype=pb.LOGITS_DTYPE_F32, default_params=defaults,
                                                     rows=[pb.SampleRow(params=params)], top_n=row), timeout=_WITHIN).rows
        except grpc.RpcError:
            self._silent_until = time.monotonic() + _REST
            return ""
        # Any other error is about this test row.
        return str(answer.message) if answer.status == pb.ROW_STATUS_INVALID_WORK else ""

    def limits(self) -> pb.Limits | None:
        """The server's limits, or None if it gives no answer."""
        try:
            return self._info(pb.GetServerInfoRequest(), timeout=_WITHIN).limits
        except grpc.RpcError:
            return None


@functools.lru_cache(maxsize=8)
def _server(address: str, _process: int) -> _Server:
    return _Server(address)


def refusal(address: str, params: pb.SamplingParams, defaults: pb.SamplingParams) -> str:
    """Why the server would not open a text with these parameters on a stream with these defaults. Empty if it would, or
    if it gives no answer."""
    # A fork cannot use the connection of its parent process.
    return _server(address, os.getpid()).refusal(params, defaults)


def limits_of(address: str) -> pb.Limits | None:
    """The server's `Limits`, or None if it gives no answer."""
    return _server(address, os.getpid()).limits()
