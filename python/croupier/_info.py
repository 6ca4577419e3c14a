"""Asks a server for its properties. This needs no stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from ._access import Access, access_of
from ._call import no_answer
from ._options import AccessOptions, InfoOptions, seconds
from ._status import failed, said
from .errors import CroupierError
from .schema import pb

if TYPE_CHECKING:
    from typing_extensions import Unpack

METHOD = "/croupier.v1.Sampler/GetServerInfo"
#: Longest time to wait for the answer, in seconds.
ANSWER_WITHIN = 10.0
#: What gRPC gets at most, a year. Deadlines that its clock does not reach are over at once.
_MOST_WITHIN = 365 * 86400.0


def server_info(address: str, *, answer_within: float = ANSWER_WITHIN, **access: Unpack[AccessOptions]) -> pb.GetServerInfoResponse:
    """The properties of the server at `address`, as a `GetServerInfoResponse`: version, backend, limits, data paths,
    parameters, presets.

    answer_within: longest time to wait for the answer, in seconds. It does not wait for a server that is not there.
    tls_ca and the options after it: as for `Stream`.
    """
    asked = Asked(address, answer_within, access)
    with asked.access.channel() as channel:
        try:
            answer: pb.GetServerInfoResponse = asked.call(channel)
            return answer
        except grpc.RpcError as error:
            raise asked.failed(error) from error


class Asked:
    """A request for a server's properties, for threads and for asyncio."""

    def __init__(self, address: str, answer_within: float, access: Any) -> None:
        self.access: Access = access_of("server_info", address, access, InfoOptions)
        self._within = min(seconds("answer_within", answer_within), _MOST_WITHIN)

    def call(self, channel: Any) -> Any:
        """The answer, or an awaitable of it."""
        method = channel.unary_unary(METHOD, pb.GetServerInfoRequest.SerializeToString, pb.GetServerInfoResponse.FromString)
        return method(pb.GetServerInfoRequest(), timeout=self._within, metadata=self.access.metadata())

    def failed(self, error: grpc.RpcError) -> CroupierError:
        """The error to raise for a call that ended with this one."""
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return failed(no_answer(self._within), error)
        return failed(said(error) + self.access.hint(error), error)
