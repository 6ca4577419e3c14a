"""A server for each test, on a Unix socket. CROUPIER_BIN names the binary."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import pytest

READY_WITHIN = 60.0

# A shell that runs the tests in the background makes them ignore SIGINT, but some tests send it to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Server:
    """A `croupier serve` process. `options` are passed to `Popen`."""

    def __init__(self, *flags, **options):
        # Not tmp_path, whose name contains the test's name: a socket path has at most 107 bytes.
        self.folder = tempfile.mkdtemp(prefix="croupier-")
        self.path = os.path.join(self.folder, "croupier.sock")
        self.uds = f"unix:{self.path}"
        self.flags, self.options = flags, options
        if "preexec_fn" in options:
            # The server may then run as another user.
            os.chmod(self.folder, 0o777)
        self.start()

    def start(self):
        binary = os.environ.get("CROUPIER_BIN") or pytest.exit("set CROUPIER_BIN to the croupier binary", returncode=2)
        level = [] if "--log-level" in self.flags else ["--log-level=warn"]
        command = [binary, "serve", *level, "--uds", self.path, *self.flags]
        if not any(flag.startswith("--admin=") for flag in self.flags):
            command.append("--admin=none")
        if not any(flag.startswith("--listen=") for flag in self.flags):
            command.append("--listen=none")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CROUPIER_")}
        self.process = subprocess.Popen(command, env=environment, **self.options)
        give_up = time.monotonic() + READY_WITHIN
        while not self.answers():
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
            assert time.monotonic() < give_up, "the server did not start"
            time.sleep(0.01)

    def answers(self):
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.path) == 0

    def kill(self):
        """Sends SIGKILL: nothing is saved, and the socket files remain."""
        self.process.kill()
        self.process.wait()

    def regions(self):
        """The number of region mappings in the server."""
        return pathlib.Path(f"/proc/{self.process.pid}/maps").read_text().count("croupier-region")


@pytest.fixture
def serve():
    started = []

    def start(*flags, **options):
        started.append(Server(*flags, **options))
        return started[-1]

    yield start
    for server in started:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)


@pytest.fixture
def server(serve):
    return serve()
