"""A trap with Unix sockets: gRPC for Python and C++ sends the socket's path as the authority."""

import grpc
import pytest
from croupier.v1 import sampler_pb2 as pb
from croupier_client import stub


def info(address, options):
    with grpc.insecure_channel(address, options=options) as channel:
        return stub(channel).GetServerInfo(pb.GetServerInfoRequest(), timeout=10)


def test_a_unix_socket_needs_an_authority(server):
    assert info(server.uds, [("grpc.default_authority", "localhost")]).version


def test_without_one_the_call_fails(server):
    # Once this call succeeds, the option and its documentation can be removed.
    with pytest.raises(grpc.RpcError) as error:
        info(server.uds, [])
    assert error.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)


def test_tcp_needs_none(server):
    assert info(server.tcp, []).version
