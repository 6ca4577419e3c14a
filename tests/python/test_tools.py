"""The tools with which people and clusters call a gRPC server: grpcurl and grpc-health-probe, over TCP, TLS and a Unix socket."""

import json
import subprocess

import pytest
import trustme
from conftest import GRPC_TOOLS

pytestmark = pytest.mark.skipif(not GRPC_TOOLS, reason="GRPC_TOOLS names no folder with grpcurl and grpc-health-probe, they are NOT run")

SERVICE = "croupier.v1.Sampler"
TOKEN = "a-token-of-the-tests-of-tools"
# Exit codes of grpc-health-probe.
HEALTHY, NO_CONNECTION, CALL_FAILED = 0, 2, 3
# Four logits: 0, 1, 2 and 0.5.
SAMPLE = {"vocab_size": 4, "logits_dtype": "LOGITS_DTYPE_F32", "logits": {"data": "AAAAAAAAgD8AAABAAAAAPw=="},
          "rows": [{"params": {"temperature": 0}}]}


def run(tool, *args):
    return subprocess.run([f"{GRPC_TOOLS}/{tool}", *args], capture_output=True, text=True, timeout=60)


def grpcurl(*args):
    done = run("grpcurl", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def probe(*args):
    return run("grpc-health-probe", "-connect-timeout=10s", "-rpc-timeout=10s", *args).returncode


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Certificates of a server and a worker from one authority, the certificate of another authority, and a file of tokens."""
    folder, authority = tmp_path_factory.mktemp("files"), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.crt")
    trustme.CA().cert_pem.write_to_path(folder / "stranger.crt")
    for name, host in [("server", "localhost"), ("worker", "worker.example")]:
        pair = authority.issue_cert(host)
        pair.private_key_pem.write_to_path(folder / f"{name}.key")
        pair.cert_chain_pems[0].write_to_path(folder / f"{name}.crt")
    (folder / "tokens").write_text(TOKEN)
    return folder


@pytest.fixture
def plain(own_server):
    return own_server("--reflection")


@pytest.fixture
def secured(own_server, files):
    server = own_server("--reflection", f"--tls-cert={files}/server.crt", f"--tls-key={files}/server.key",
                        f"--tls-client-ca={files}/ca.crt", f"--auth-token-file={files}/tokens")
    # The certificate is for the name; the port belongs to 127.0.0.1.
    server.name = server.tcp.replace("127.0.0.1", "localhost")
    return server


def test_grpcurl_needs_no_schema_where_there_is_reflection(plain):
    listed = grpcurl("-plaintext", plain.tcp, "list").split()
    assert {SERVICE, "grpc.health.v1.Health"} <= set(listed)
    assert "rpc Decode ( stream .croupier.v1.DecodeRequest ) returns ( stream .croupier.v1.DecodeResponse );" in grpcurl(
        "-plaintext", plain.tcp, "describe", SERVICE)
    assert json.loads(grpcurl("-plaintext", plain.tcp, f"{SERVICE}/GetServerInfo"))["backend"] in ("cpu", "cuda")


@pytest.mark.parametrize("address", ["tcp", "uds"])
def test_grpcurl_samples(plain, address):
    target = plain.tcp if address == "tcp" else f"unix://{plain.path}"
    answer = json.loads(grpcurl("-plaintext", "-d", json.dumps(SAMPLE), target, f"{SERVICE}/Sample"))
    assert answer["rows"][0]["token"]["tokenId"] == 2


def test_grpcurl_samples_over_tls_with_certificate_and_token(secured, files):
    known = ["-cacert", f"{files}/ca.crt", "-cert", f"{files}/worker.crt", "-key", f"{files}/worker.key"]
    call = ["-d", json.dumps(SAMPLE), secured.name, f"{SERVICE}/Sample"]
    answer = json.loads(grpcurl(*known, "-H", f"authorization: Bearer {TOKEN}", *call))
    assert answer["rows"][0]["token"]["tokenId"] == 2
    for wrong, words in [
        ([*known, *call], "Unauthenticated"),
        ([*known[:2], *call], "Failed to dial"),
        (["-cacert", f"{files}/stranger.crt", *known[2:], *call], "certificate"),
        (["-plaintext", *call], "Failed to dial"),
    ]:
        done = run("grpcurl", "-connect-timeout", "3", *wrong)
        assert done.returncode and words in done.stderr, done.stderr


@pytest.mark.parametrize("service", ["", SERVICE, "liveness", "readiness"])
def test_the_probe_finds_it_healthy(plain, service):
    for address in [plain.tcp, plain.uds]:
        assert probe(f"-addr={address}", f"-service={service}") == HEALTHY


def test_the_probe_says_what_is_wrong(plain):
    assert probe(f"-addr={plain.tcp}", "-service=nobody") == CALL_FAILED
    plain.kill()
    assert run("grpc-health-probe", "-connect-timeout=1s", f"-addr={plain.tcp}").returncode == NO_CONNECTION


def test_the_probe_needs_a_certificate_and_no_token_over_tls(secured, files):
    trusting = [f"-addr={secured.name}", "-tls", f"-tls-ca-cert={files}/ca.crt"]
    own = [f"-tls-client-cert={files}/worker.crt", f"-tls-client-key={files}/worker.key"]
    assert probe(*trusting, *own) == HEALTHY
    assert probe(f"-addr={secured.tcp}", *trusting[1:], *own, "-tls-server-name=localhost") == HEALTHY
    # In TLS 1.3 a client learns only after its handshake that the server requires a certificate.
    assert probe(*trusting) in (NO_CONNECTION, CALL_FAILED)
    assert probe(f"-addr={secured.name}") in (NO_CONNECTION, CALL_FAILED)
