"""A connection or a region that a signal handler interrupts while it is made: it ends and leaves nothing behind."""

import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import grpc
import pytest
from google.protobuf.message import DecodeError

import croupier
from croupier import _regions
from interrupting import each_point, in_time  # noqa: F401
from test_interrupted import VOCAB


OWN_PROCESS, TRIES = "CROUPIER_TESTS_HALF_MADE", 4


@pytest.mark.skipif(OWN_PROCESS in os.environ, reason="runs the test below in a process of its own")
@pytest.mark.parametrize("of", ["stream", "rank"])
def test_a_connection_that_a_handler_leaves_half_made_ends(of):
    """gRPC now and then aborts its process if a handler interrupts it, which would end all other tests too."""
    test = f"{__file__}::test_in_a_process_of_its_own[{of}]"
    for _ in range(TRIES):
        ran = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test], check=False, capture_output=True, text=True,
                             env={**os.environ, OWN_PROCESS: "1"})
        if ran.returncode != -signal.SIGABRT:
            break
        print("gRPC aborted the process; once more")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout


@pytest.mark.skipif(OWN_PROCESS not in os.environ, reason="is run by the test above")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("of", ["stream", "rank"])
def test_in_a_process_of_its_own(server, in_time, of):  # noqa: F811
    """The interruption may be anywhere in gRPC. Hanging up waits for a call that only gRPC's threads end, which may not have started."""
    with croupier.connect(server.uds, VOCAB, vocab_shards=[1000, 3000]) as zero:
        def attempt(points):
            made, begun = [], time.monotonic()
            points.call(lambda: made.append(croupier.connect(server.uds, VOCAB) if of == "stream" else croupier.attach(zero.shard_token, 1)))
            for each in made:
                each.end()
            # What was half made is gone by now. If a handler breaks one of gRPC's own threads, hanging up does not wait for it for long.
            assert time.monotonic() - begun < 8, points.within

        each_point(attempt, 300, also=(str(pathlib.Path(grpc.__file__).parent), threading.__file__))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_region_s_descriptor_is_closed_wherever_a_handler_comes(server, in_time, monkeypatch):  # noqa: F811
    offers, lease = [], _regions.lease

    def refuses(offer, *about):
        offers.append(offer)
        raise croupier.CroupierError("not now")

    def count():
        links = [pathlib.Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return sum("memfd" in os.readlink(link) for link in links if link.is_symlink())

    def attempt(points):
        with croupier.connect(server.uds, VOCAB):
            before = count()
            points.call(lambda: lease(offers.pop(), 4096, server.uds))
            assert count() <= before, points.within

    monkeypatch.setattr(_regions, "lease", refuses)
    each_point(attempt, 20)


@pytest.mark.parametrize("wrong", ["cut off", "no message"])
def test_a_region_s_descriptor_is_closed_where_its_answer_is_wrong(tmp_path, wrong):
    path = str(tmp_path / "s")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()

    def serve():
        with listening, listening.accept()[0] as side, open("/dev/zero") as given:
            side.recv(1000)
            side.sendall(struct.pack("<I", 0))
            side.recv(1000)
            socket.send_fds(side, [struct.pack("<I", 3) + (b"" if wrong == "cut off" else bytes(3))], [given.fileno()])

    serving = threading.Thread(target=serve)
    before = os.listdir("/proc/self/fd")
    serving.start()
    with pytest.raises((croupier.CroupierError, DecodeError)):
        _regions.Region(SimpleNamespace(socket_path=path, token=b"token"), croupier.pb.RegionRequest(), "")
    serving.join()
    assert len(os.listdir("/proc/self/fd")) == len(before) - 1
