"""Streams that are still open when the drain timeout ends."""

import signal

import pytest
from test_moving import VOCAB, Worker, opened, rows
from test_waiting import NAMES

DRAIN = "--drain-timeout=200ms"


def drained(server):
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=30) == 0


@pytest.mark.parametrize("kind", NAMES)
def test_the_text_goes_on_at_the_next_server(serve, kind, caplog):
    server = serve(DRAIN)
    with Worker(kind, server.uds) as worker:
        texts = opened(worker.stream)
        for position in range(6):
            worker.sample(rows(position), texts)
        expected = [text.tokens for text in texts]
    with Worker(kind, server.uds) as worker:
        texts = opened(worker.stream)
        for position in range(3):
            worker.sample(rows(position), texts)
        drained(server)
        server.start()
        for position in range(3, 6):
            worker.sample(rows(position), texts)
        assert [text.tokens for text in texts] == expected
    # If a call ended while nobody was reading, asyncio's gRPC gives a writer no reason.
    reason = "UNAVAILABLE: the server is shutting down" if kind == "sync" else "the connection was lost"
    assert reason in caplog.text
