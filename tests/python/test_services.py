"""Services next to sampling: information, health, reflection."""

import grpc
import pytest
from croupier.v1 import sampler_pb2 as pb
from croupier_client import channel, stub
from grpc_health.v1 import health_pb2, health_pb2_grpc

REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def test_the_server_says_what_it_is(address):
    with channel(address) as c:
        info = stub(c).GetServerInfo(pb.GetServerInfoRequest())
    assert info.version and info.backend in ("cpu", "cuda") and info.parallelism >= 1
    assert "inline" in info.data_paths
    assert "sample" in info.work_kinds
    assert {"temperature", "top_k", "top_p", "min_p", "seed"} <= set(info.parameters)
    assert set(info.logits_dtypes) == {"f32", "f16", "bf16"}
    assert info.limits.max_vocab_size >= 200_000


@pytest.mark.parametrize("service", ["", "croupier.v1.Sampler"])
def test_it_is_healthy(address, service):
    with channel(address) as c:
        reply = health_pb2_grpc.HealthStub(c).Check(health_pb2.HealthCheckRequest(service=service))
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_health_of_an_unknown_service_is_not_found(address):
    with channel(address) as c, pytest.raises(grpc.RpcError) as error:
        health_pb2_grpc.HealthStub(c).Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


def ask_reflection(address):
    with channel(address) as c:
        call = c.stream_stream(REFLECTION)
        list_services = b"\x3a\x00"  # ServerReflectionRequest{list_services: ""}
        return next(call(iter([list_services])))


def test_reflection_is_off_by_default(server):
    with pytest.raises(grpc.RpcError) as error:
        ask_reflection(server.tcp)
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_reflection_can_be_switched_on(own_server):
    assert b"croupier.v1.Sampler" in ask_reflection(own_server("--reflection").tcp)
