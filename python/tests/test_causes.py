"""The machine-readable part of an error: the server's code, reason and field, also for each text that was not opened."""

import asyncio
import pickle
import socket

import grpc
import numpy as np
import pytest

import croupier
from croupier import Failure, _status
from test_client import VOCAB, logits
from test_endings import SHAPELESS
from test_kept_results import refusing
from test_waiting import NAMES, done, run


def cause(error):
    return error.code, error.reason, error.field


def refused(kind, address, use=None, **options):
    """Checks the machine-readable part of a stream's error, also after pickling for another process."""
    def here(stream):
        return asyncio.run(use(stream))

    with pytest.raises(croupier.CroupierError) as raised:
        run(kind, address, here if use and kind == "sync" else use, reconnect_within=0, **options)
    error = raised.value
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), cause(again)) == (type(error), str(error), cause(error))
    return cause(error)


@pytest.mark.parametrize("kind", NAMES)
def test_a_stream_that_is_refused_says_why(serve, kind):
    server = serve("--max-streams=1")
    assert refused(kind, server.uds, default_params={"top_p": 7.0}) == ("INVALID_ARGUMENT", "INVALID_FIELD", "config.default_params.top_p")
    with croupier.connect(server.uds, VOCAB):
        assert refused(kind, server.uds) == ("RESOURCE_EXHAUSTED", "TOO_MANY_STREAMS", None)
    assert refused(kind, server.uds, data_path="shared_memory", max_rows=10**7) == ("INVALID_ARGUMENT", "INVALID_FIELD", "lease.bytes")
    # Without an answer from the server, reason and field are None.
    server.kill()
    assert refused(kind, server.uds) == ("UNAVAILABLE", None, None)


@pytest.mark.parametrize("kind", NAMES)
def test_a_step_that_ends_the_stream_says_why(server, kind):
    async def use(stream):
        await done(kind, stream.step(np.stack([logits(1, 0)] * 2), [stream.open(seed=1, sequence_id=5), SHAPELESS]))

    assert refused(kind, server.uds, use) == ("INVALID_ARGUMENT", "INVALID_FIELD", "step.work[1].kind")


@pytest.mark.parametrize("kind", NAMES)
def test_a_step_that_there_was_no_room_for_has_the_refusal_s_reason(server, kind):
    async def use(stream):
        text = stream.open(seed=1)
        refusing(stream, stream._session.numbers + 1)
        for _ in range(2):
            await done(kind, stream.submit(logits(1, 0), [text]))
        await done(kind, stream.result())

    assert refused(kind, server.uds, use) == (None, "QUEUE_FULL", None)


@pytest.mark.parametrize("kind", NAMES)
def test_a_rank_and_a_question_say_why(serve, tmp_path, kind):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-the-worker\n")
    server = serve(f"--listen=127.0.0.1:{port}", f"--auth-token-file={tokens}")
    address = f"127.0.0.1:{port}"
    with croupier.connect(server.uds, VOCAB, vocab_shards=[400, 600]) as stream:
        token = stream.shard_token

    async def attach():
        async with croupier.aio.attach(token, 1):
            pass

    def ask():
        return croupier.server_info(address) if kind == "sync" else asyncio.run(croupier.aio.server_info(address))

    with pytest.raises(croupier.CroupierError) as error:
        croupier.attach(token, 1) if kind == "sync" else asyncio.run(attach())
    assert cause(error.value) == ("PERMISSION_DENIED", "UNKNOWN_SHARD_TOKEN", "rank.token")
    with pytest.raises(croupier.CroupierError) as error:
        ask()
    assert cause(error.value) == ("UNAUTHENTICATED", "NO_TOKEN", None)


@pytest.mark.parametrize("kind", NAMES)
def test_a_text_that_is_not_opened_says_what_is_wrong(serve, kind):
    server = serve("--max-sequences-per-stream=3", "--max-history-tokens=20")

    async def use(stream):
        good, bad, long, much = stream.open(seed=1), stream.open(top_p=7.0), stream.open(prompt=[1] * 50), stream.open(seed=2)
        with pytest.raises(croupier.OpenError) as raised:
            await done(kind, stream.sample(np.stack([logits(1, 0)] * 4), [good, bad, long, much]))
        failures = raised.value.failures
        assert [(failures[text.id].status, failures[text.id].field) for text in (bad, long)] == [
            ("INVALID_ARGUMENT", "params.top_p"), ("RESOURCE_EXHAUSTED", "prompt_token_ids")]
        # The cause is also a string.
        assert failures[bad.id] == bad.refused and failures[bad.id].startswith("params.top_p: is 7, ")
        assert set(failures) == {bad.id, long.id}
        # The call as a whole did not fail.
        assert cause(raised.value) == (None, None, None)
        again = pickle.loads(pickle.dumps(raised.value)).failures[bad.id]
        assert (again, again.status, again.field) == (bad.refused, "INVALID_ARGUMENT", "params.top_p")

    run(kind, server.uds, use if kind == "asyncio" else lambda stream: asyncio.run(use(stream)))


def test_a_row_names_no_field(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=1)
        with pytest.raises(croupier.RowError) as error:
            stream.sample(np.full((1, VOCAB), np.nan, np.float32), [text])
        failure = error.value.failures[text.id]
        assert (failure.status, failure.field) == ("NAN_LOGITS", None)
    assert Failure("why", "REFUSED").field is None


class Ended(grpc.RpcError):
    """A call that ended with UNAVAILABLE and these details."""

    def __init__(self, details):
        self.raw = details

    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "why"

    def trailing_metadata(self):
        return None if self.raw is None else [("x", "y"), ("grpc-status-details-bin", self.raw)]


@pytest.mark.parametrize("details", [None, b"", b"\xff\xff", _status._KINDS["Status"](details=[
    {"type_url": "type.googleapis.com/google.rpc.ErrorInfo", "value": _status._KINDS["ErrorInfo"](reason="X", domain="proxy").SerializeToString()},
    {"type_url": "type.googleapis.com/google.rpc.Help", "value": b"\xff"}]).SerializeToString()])
def test_what_something_between_says_is_no_reason_of_the_server_s(details):
    assert cause(_status.failed("why", Ended(details))) == ("UNAVAILABLE", None, None)
