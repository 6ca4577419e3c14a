"""A server for each test session, reached over TCP and over a Unix socket."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
READY_WITHIN = 30.0
# A folder with grpcurl and grpc-health-probe, as `.ci/run python` builds it.
GRPC_TOOLS = os.environ.get("GRPC_TOOLS")


def generate_stubs():
    """Generates stubs from proto/ for each session, so that they are never stale."""
    from grpc_tools import protoc

    folder = tempfile.mkdtemp(prefix="croupier-stubs-")
    proto = ROOT / "proto" / "croupier" / "v1" / "sampler.proto"
    code = protoc.main(
        ["protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}", f"--grpc_python_out={folder}", str(proto)]
    )
    assert code == 0, "the schema does not compile for Python"
    sys.path.insert(0, folder)
    return folder


STUBS = generate_stubs()


def pytest_unconfigure(config):
    shutil.rmtree(STUBS, ignore_errors=True)


def binary():
    path = os.environ.get("CROUPIER_BIN")
    if not path:
        pytest.exit("set CROUPIER_BIN to the croupier binary", returncode=2)
    return path


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A `croupier serve` process on a TCP port and a Unix socket."""

    def __init__(self, folder, *flags):
        self.tcp = f"127.0.0.1:{free_port()}"
        self.path = os.path.join(folder, "croupier.sock")
        self.uds = f"unix:{self.path}"
        self.flags = flags
        self.process = None
        self.start()

    def start(self):
        command = [binary(), "serve", "--listen", self.tcp, "--uds", self.path, "--admin", "none", *self.flags]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CROUPIER_")}
        self.process = subprocess.Popen(command, env=environment)
        give_up = time.monotonic() + READY_WITHIN
        while not self.is_serving():
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
            assert time.monotonic() < give_up, "the server did not become healthy"
            time.sleep(0.02)

    def is_serving(self):
        # The server may use TLS on TCP, but never on the socket.
        options = [("grpc.default_authority", "localhost")]
        with grpc.insecure_channel(self.uds, options=options) as channel:
            try:
                request = health_pb2.HealthCheckRequest()
                reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=1)
                return reply.status == health_pb2.HealthCheckResponse.SERVING
            except grpc.RpcError:
                return False

    def kill(self):
        """SIGKILL: nothing is saved, and the socket file is left over."""
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def server():
    with tempfile.TemporaryDirectory() as folder:
        running = Server(folder)
        yield running
        running.kill()


@pytest.fixture
def own_server(tmp_path_factory):
    """Starts servers that a test may kill or configure."""
    started = []

    def start(*flags):
        # Not tmp_path: that contains the test's name, and a socket path has at most 107 bytes.
        started.append(Server(tempfile.mkdtemp(prefix="croupier-"), *flags))
        return started[-1]

    yield start
    for running in started:
        running.kill()
        shutil.rmtree(os.path.dirname(running.path), ignore_errors=True)


@pytest.fixture(params=["tcp", "uds"])
def address(request, server):
    return getattr(server, request.param)
