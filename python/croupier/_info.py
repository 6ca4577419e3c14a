"""What a server is and can do, which needs no stream."""

from __future__ import annotations

import threading
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
#: Seconds that the answer may take.
ANSWER_WITHIN = 10.0


def server_info(address: str, *, answer_within: float = ANSWER_WITHIN, **access: Unpack[AccessOptions]) -> pb.GetServerInfoResponse:
    """What the server at `address` is and can do, a `GetServerInfoResponse`: version, backend, limits, data paths, parameters, presets.

    answer_within: seconds that the answer may take. A server that is not there is not waited for.
    tls_ca and those after it: as of `Stream`.
    """
    asked = Asked(address, answer_within, access)
    with asked.access.channel() as channel:
        try:
            answer: pb.GetServerInfoResponse = asked.call(channel)
            return answer
        except grpc.RpcError as error:
            raise asked.failed(error) from error


class Asked:
    """A question to a server, for threads and for asyncio."""

    def __init__(self, address: str, answer_within: float, access: Any) -> None:
        self.access: Access = access_of("server_info", address, access, InfoOptions)
        self._within = min(seconds("answer_within", answer_within), threading.TIMEOUT_MAX)

    def call(self, channel: Any) -> Any:
        """The answer, or an awaitable of it."""
        method = channel.unary_unary(METHOD, pb.GetServerInfoRequest.SerializeToString, pb.GetServerInfoResponse.FromString)
        return method(pb.GetServerInfoRequest(), timeout=self._within, metadata=self.access.metadata())

    def failed(self, error: grpc.RpcError) -> CroupierError:
        """What is said of a call that ended like this."""
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return failed(no_answer(self._within), error)
        return failed(said(error) + self.access.hint(error), error)
