"""Streams leave a server that asks them to, because it drains or because their connections are old."""

import asyncio
import os
import signal
import socket
import threading
import time

import croupier
import numpy as np
import pytest
from interrupting import each_point, each_wait, in_time
from test_waiting import NAMES

__all__ = ["in_time"]

VOCAB = 500
#: Seconds. With less, connections end before a call gets through.
AGE = 0.1
OLD = f"--max-connection-age={AGE}s"
COUNT = 4


def rows(position):
    return np.random.default_rng(position).normal(size=(COUNT, VOCAB)).astype(np.float32) * 3


def opened(stream):
    return [stream.open(seed=seed, temperature=0.9, presence_penalty=0.4, mirostat=2) for seed in range(COUNT)]


class Front:
    """Acts like a Service: forwards connections to the server that is behind it at the time, if there is one."""

    def __init__(self):
        self.behind, self.connections = None, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.behind is None:
                client.close()
                continue
            self.connections += 1
            threading.Thread(target=self.join, args=(client, self.behind.path), daemon=True).start()

    def join(self, client, path):
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(path)
            back = threading.Thread(target=self.pass_on, args=(server, client), daemon=True)
            back.start()
            self.pass_on(client, server)
            back.join()

    @staticmethod
    def pass_on(source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self.listener.close()


@pytest.fixture
def front():
    front = Front()
    yield front
    front.close()


class Worker:
    """A stream of the threaded or the asyncio client."""

    def __init__(self, kind, address, **options):
        self.loop = asyncio.new_event_loop() if kind == "asyncio" else None
        self.stream = (croupier.aio if self.loop else croupier).connect(address, VOCAB, data_path="inline", **options)
        if self.loop:
            self.do(self.stream.__aenter__())

    def do(self, done):
        return self.loop.run_until_complete(done) if self.loop else done

    def __getattr__(self, name):
        method = getattr(self.stream, name)
        return lambda *given, **options: self.do(method(*given, **options))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.do(self.stream.end())
        if self.loop:
            self.loop.close()


@pytest.fixture
def expected(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = opened(stream)
        for position in range(100):
            stream.sample(rows(position), texts)
        return [text.tokens for text in texts]


@pytest.mark.parametrize("kind", NAMES)
def test_a_stream_leaves_a_server_that_drains_once_there_is_another(serve, front, expected, kind):
    first = front.behind = serve("--drain-timeout=10m")
    with Worker(kind, front.address) as worker:
        texts = opened(worker.stream)
        for position in range(3):
            worker.sample(rows(position), texts)
        first.process.send_signal(signal.SIGTERM)
        front.behind = None
        positions = iter(range(3, 100))
        while not worker.stream._session.is_asked_to_leave:
            worker.sample(rows(next(positions)), texts)
            time.sleep(0.02)
        # The stream stays as long as there is no other server, and can still sample.
        worker.sample(rows(next(positions)), texts)
        assert worker.stream._leave_from > 0 and first.process.poll() is None
        front.behind = serve()
        worker.stream._leave_from = 0.0
        for _ in range(3):
            worker.sample(rows(next(positions)), texts)
        # Nothing was cut.
        assert first.process.wait(timeout=30) == 0
        assert not worker.stream._session.is_asked_to_leave
        worker.sample(rows(next(positions)), texts)
        assert [text.tokens for text in texts] == [tokens[: len(texts[0].tokens)] for tokens in expected]


@pytest.mark.parametrize("kind", NAMES)
def test_a_stream_that_is_old_connects_anew(serve, front, expected, kind):
    # The server has no room for the texts twice.
    front.behind = serve(OLD, f"--max-sequences={COUNT}")
    connections = []
    with Worker(kind, front.address) as worker:
        texts = opened(worker.stream)
        for position in range(12):
            worker.sample(rows(position), texts)
            time.sleep(AGE)
            connections.append(front.connections)
        assert [text.tokens for text in texts] == [tokens[:12] for tokens in expected]
    assert len(set(connections)) > 3


def test_a_step_under_way_and_a_draft_keep_it_there(serve, front):
    front.behind = serve(OLD)
    pb = croupier.pb
    with croupier.connect(front.address, VOCAB, data_path="inline") as stream:
        texts = [stream.open(seed=seed) for seed in range(COUNT)]
        time.sleep(AGE)
        stream.sample(rows(0), texts)
        stream.submit(rows(1), texts)
        # Long enough that the next reply asks it to leave, whatever was added to the age by chance.
        time.sleep(2 * AGE)
        before = front.connections
        stream.submit(rows(2), texts)
        stream.result(), stream.result()
        time.sleep(AGE)
        assert front.connections == before
        stream.step(rows(3)[:1], [pb.Work(sequence_id=texts[0].id, draft=pb.DraftWork(restart=True))])
        left = front.connections
        assert left > before
        time.sleep(AGE)
        stream.sample(rows(4)[1:], texts[1:])
        stream.sample(rows(5)[1:], texts[1:])
        assert front.connections == left, "the draft would be lost"
        stream.close(texts[0])
        stream.sample(rows(5)[1:], texts[1:])
        assert front.connections > left


def test_on_a_socket_there_is_no_other(serve):
    server = serve(OLD)
    with croupier.connect(server.uds, VOCAB, data_path="inline") as stream:
        texts = [stream.open(seed=seed) for seed in range(COUNT)]
        channel = stream._channel
        for position in range(4):
            stream.sample(rows(position), texts)
            time.sleep(AGE)
        assert stream._session.is_asked_to_leave and stream._channel is channel


def channel_of(stream):
    return stream._home.channel if isinstance(stream, croupier.aio.Stream) else stream._channel


@pytest.mark.parametrize("kind", NAMES)
def test_tries_that_fail_leave_nothing_behind(serve, front, kind):
    front.behind = serve(OLD)
    given = ["token"]

    def token():
        return given[0]

    with Worker(kind, front.address, auth_token=token) as worker:
        texts = opened(worker.stream)
        worker.sample(rows(0), texts)
        while not worker.stream._session.is_asked_to_leave:
            time.sleep(AGE)
            worker.sample(rows(1), texts)
        before, count = (channel_of(worker.stream), len(os.listdir("/proc/self/fd")))
        given.clear()
        for _ in range(20):
            worker.stream._leave_from = 0.0
            worker.sample(rows(2), texts)
        assert channel_of(worker.stream) is before and len(os.listdir("/proc/self/fd")) < count + 10
        given.append("token")
        worker.stream._leave_from = 0.0
        worker.sample(rows(3), texts)
        assert channel_of(worker.stream) is not before


def test_a_move_may_be_interrupted_anywhere(serve, front, in_time):
    front.behind = serve()
    with croupier.connect(front.behind.uds, VOCAB) as stream:
        texts = opened(stream)
        for position in range(3):
            stream.sample(rows(position), texts)
        expected = [text.tokens for text in texts]
    moved = []

    def attempt(points):
        with croupier.connect(front.address, VOCAB, data_path="inline") as stream:
            texts = opened(stream)
            stream.sample(rows(0), texts)
            # As if the server had asked it to leave.
            stream._session.is_asked_to_leave, before = True, front.connections
            if points.call(lambda: stream.sample(rows(1), texts)):
                moved.append("_move_on" in points.within)
                # If it was interrupted before the move began, the next call moves.
                stream._session.is_asked_to_leave |= front.connections == before
                if stream._is_torn:
                    return
                if stream._session.steps:
                    stream.result()
                elif len(texts[0].tokens) == 1:
                    stream.sample(rows(1), texts)
            assert front.connections > before
            stream.sample(rows(2), texts)
            assert [text.tokens for text in texts] == expected

    # Each attempt takes two connections.
    each_point(attempt, 200, every=7)
    assert sum(moved) > 20


def test_a_cancelled_move_loses_nothing(serve, front):
    front.behind = serve()

    async def run():
        async with croupier.aio.connect(front.behind.uds, VOCAB) as stream:
            texts = opened(stream)
            for position in range(2):
                await stream.sample(rows(position), texts)
            expected = [text.tokens for text in texts]

        async def attempt(waits):
            async with croupier.aio.connect(front.address, VOCAB, data_path="inline") as stream:
                texts = opened(stream)
                await stream.sample(rows(0), texts)
                stream._session.is_asked_to_leave = True
                is_cancelled = await waits.call(stream.sample(rows(1), texts))
                if is_cancelled and stream._session.steps:
                    await stream.result()
                if len(texts[0].tokens) == 1:
                    await stream.sample(rows(1), texts)
                assert [text.tokens for text in texts] == expected

        await each_wait(attempt, 4)

    asyncio.run(run())
