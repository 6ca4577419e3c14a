"""A stream whose messages took too long is ended by the server (`ABORTED`). What it had still to do is done on another one, once."""

import asyncio

import grpc
import pytest

import croupier
from croupier import client
from test_client import VOCAB, logits
from test_waiting import NAMES, done, run, told

OK, LATE = None, "late"
#: The answers to a new connection: that the stream is ready, and that its text is open again.
CONNECTED = [OK, OK]


class TooLate(grpc.RpcError):
    """As a server says it after `reply_timeout`."""

    def code(self):
        return grpc.StatusCode.ABORTED

    def details(self):
        return "replies were not read for 60 s"

    def trailing_metadata(self):
        return ()


def ending(monkeypatch, kind, stream, plan):
    """Ends the call at those of the next reads for which the plan says so."""
    following = client.following if kind == "sync" else stream._read

    def next_one(*about):
        if plan and plan.pop(0) is LATE:
            raise TooLate
        return following(*about)

    async def later():
        return await next_one()

    if kind == "sync":
        monkeypatch.setattr(client, "following", next_one)
    else:
        monkeypatch.setattr(stream, "_read", later)


def tokens(kind, address, monkeypatch, plan, steps=4):
    """The tokens of a text, and what went wrong in its steps."""
    wrong = []

    async def use(stream):
        text = stream.open(seed=1)
        await done(kind, stream.sample(logits(1, 0), [text]))
        ending(monkeypatch, kind, stream, plan)
        while len(text.tokens) < steps:
            try:
                await done(kind, stream.sample(logits(1, len(text.tokens)), [text]))
            except croupier.CroupierError as error:
                wrong.append(error)
        assert not plan
        return text.tokens

    return run(kind, address, (lambda stream: asyncio.run(use(stream))) if kind == "sync" else use, data_path="inline"), wrong


@pytest.mark.parametrize("kind", NAMES)
def test_a_step_goes_on_with_another_connection(server, kind, monkeypatch, caplog):
    expected, _ = tokens(kind, server.uds, monkeypatch, [])
    caplog.clear()
    # Each time a step is answered in between.
    plan = [LATE, *CONNECTED, OK] * 2
    assert tokens(kind, server.uds, monkeypatch, plan) == (expected, [])
    assert [record.getMessage().split(";")[0] for record in told(caplog)] == [
        f"connection to {server.uds} lost: ABORTED: replies were not read for 60 s"] * 2


@pytest.mark.parametrize("kind", NAMES)
def test_it_does_not_go_on_for_ever(server, kind, monkeypatch):
    expected, _ = tokens(kind, server.uds, monkeypatch, [])
    found, [error] = tokens(kind, server.uds, monkeypatch, [LATE, *CONNECTED, LATE])
    assert found == expected and error.code == "ABORTED" and "the next step connects again" in str(error)
    # While it connects, it may happen for as long as it may wait for a server.
    assert tokens(kind, server.uds, monkeypatch, [LATE, OK, LATE, LATE, *CONNECTED, OK]) == (expected, [])
