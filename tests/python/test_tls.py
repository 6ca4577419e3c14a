"""TLS and tokens with grpc's own credentials, as in docs/clients.md."""

import grpc
import pytest
import trustme
from croupier.v1 import sampler_pb2 as pb
from croupier_client import stub
from grpc_health.v1 import health_pb2, health_pb2_grpc

TOKEN = "a-token-of-the-python-tests"


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def server(own_server, authority, tmp_path):
    pair = authority.issue_cert("localhost")
    pair.private_key_pem.write_to_path(tmp_path / "tls.key")
    for part in pair.cert_chain_pems:
        part.write_to_path(tmp_path / "tls.crt", append=True)
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "tokens").write_text(TOKEN)
    flags = {"cert": "tls.crt", "key": "tls.key", "client-ca": "ca.crt"}
    return own_server(*(f"--tls-{k}={tmp_path / v}" for k, v in flags.items()), f"--auth-token-file={tmp_path / 'tokens'}")


def credentials(authority, own=True, token=None):
    key = certificate = None
    if own:
        pair = authority.issue_cert("worker.example")
        key, certificate = pair.private_key_pem.bytes(), pair.cert_chain_pems[0].bytes()
    tls = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), key, certificate)
    return grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(token)) if token else tls


def info(server, credentials):
    # The certificate is for the name; the port belongs to 127.0.0.1.
    address = server.tcp.replace("127.0.0.1", "localhost")
    with grpc.secure_channel(address, credentials) as channel:
        return stub(channel).GetServerInfo(pb.GetServerInfoRequest(), timeout=10)


def test_certificate_and_token_let_in(server, authority):
    assert info(server, credentials(authority, token=TOKEN)).version


@pytest.mark.parametrize("token", [None, "another-token-altogether"])
def test_without_the_token_calls_are_unauthenticated(server, authority, token):
    with pytest.raises(grpc.RpcError) as error:
        info(server, credentials(authority, token=token))
    assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert "token" in error.value.details()


def test_without_a_certificate_there_is_no_connection(server, authority):
    with pytest.raises(grpc.RpcError) as error:
        info(server, credentials(authority, own=False, token=TOKEN))
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE


def test_health_needs_no_token(server, authority):
    with grpc.secure_channel(server.tcp.replace("127.0.0.1", "localhost"), credentials(authority)) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING
