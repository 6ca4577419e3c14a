"""How long the client waits for a server, what it logs meanwhile, and how it leaves."""

import asyncio
import logging
import os
import re
import signal
import socket
import threading
import time
import urllib.request

import numpy as np
import pytest

import croupier
from croupier import _access, _wire
from test_client import VOCAB, logits, params

NAMES = "sync asyncio".split()


def run(kind, address, use=None, **options):
    """Connects a stream, and samples once or calls `use` with it."""
    if kind == "sync":
        with croupier.connect(address, VOCAB, **options) as stream:
            return (use or (lambda stream: stream.sample(logits(1, 0), [stream.open(seed=1)])))(stream)

    async def whole():
        async with croupier.aio.connect(address, VOCAB, **options) as stream:
            return await (use or (lambda stream: stream.sample(logits(1, 0), [stream.open(seed=1)])))(stream)

    return asyncio.run(whole())


def stop(server):
    server.process.send_signal(signal.SIGSTOP)
    # Wait until all of its threads are stopped, because one may still answer.
    os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)


@pytest.mark.parametrize("kind", NAMES)
def test_a_server_that_comes_later_is_waited_for(server, kind, caplog):
    expected = run(kind, server.uds)
    server.kill()
    caplog.set_level(logging.WARNING, "croupier")
    late = threading.Timer(0.5, server.start)
    late.start()
    assert run(kind, server.uds, reconnect_within=60) == expected
    late.join()
    [said] = caplog.messages
    assert said.startswith(f"{server.uds} does not serve yet; waiting for up to 60 s: UNAVAILABLE")
    server.kill()
    started = time.monotonic()
    with pytest.raises(croupier.CroupierError, match="^UNAVAILABLE"):
        run(kind, server.uds, reconnect_within=0.3)
    assert 0.3 <= time.monotonic() - started < 20


async def done(kind, thing):
    return thing if kind == "sync" else await thing


def told(caplog):
    """The client's log records. asyncio also logs about other tests' event loops, which gRPC does not know to be closed."""
    return [record for record in caplog.records if record.name == "croupier"]


@pytest.mark.parametrize("kind", NAMES)
def test_a_server_that_is_lost_and_found_again_is_told(server, kind, caplog):
    caplog.set_level(logging.INFO, "croupier")
    rows, started = np.stack([logits(1, 0)] * 2), []

    def start():
        started.append(time.time())
        server.start()

    async def use(stream):
        texts = [stream.open(seed=seed) for seed in range(2)]
        await done(kind, stream.sample(rows, texts))
        # Nothing is logged about a working connection.
        assert not told(caplog)
        began = time.monotonic()
        server.kill()
        late = threading.Timer(0.5, start)
        late.start()
        await done(kind, stream.sample(rows, texts))
        took = time.monotonic() - began
        late.join()
        lost, found = told(caplog)
        assert lost.levelname == "WARNING"
        # asyncio's gRPC gives no reason if a write notices the loss first.
        why = "(UNAVAILABLE: .+|the connection was lost)"
        assert re.fullmatch(f"connection to {server.uds} lost: {why}; reconnecting for up to 60 s", lost.getMessage())
        assert found.levelname == "INFO"
        said = re.fullmatch(f"connected to {server.uds} again after ([0-9.]+) s, 2 texts opened again", found.getMessage())
        # The logged time is at least that until there was a server again, however long this process was suspended. It has three digits.
        assert 0.99 * (started[0] - lost.created) <= float(said[1]) <= 1.01 * took
        caplog.clear()
        # A connection that the client gave up is not lost: only the new connection is logged.
        await done(kind, stream.submit(rows, texts))
        await done(kind, stream.give_up())
        await done(kind, stream.sample(rows, texts))
        [found] = told(caplog)
        assert found.getMessage().startswith(f"connected to {server.uds} again after ")
        caplog.clear()
        await done(kind, stream.submit(rows, texts))
        await done(kind, stream.give_up())
        server.kill()
        late = threading.Timer(0.5, server.start)
        late.start()
        await done(kind, stream.sample(rows, texts))
        late.join()
        waiting, found = told(caplog)
        assert waiting.getMessage().startswith(f"{server.uds} does not serve any more; waiting for up to 60 s: UNAVAILABLE")
        assert found.getMessage().endswith(" s, 2 texts opened again")

    run(kind, server.uds, use if kind == "asyncio" else lambda stream: asyncio.run(use(stream)), reconnect_within=60, data_path="inline")


@pytest.mark.parametrize("kind", NAMES)
def test_a_server_that_is_lost_for_good_is_told_once_each_time(server, kind, caplog):
    caplog.set_level(logging.INFO, "croupier")

    async def use(stream):
        text = stream.open(seed=1)
        await done(kind, stream.sample(logits(1, 0), [text]))
        server.kill()
        for _ in range(2):
            with pytest.raises(croupier.CroupierError, match="given up"):
                await done(kind, stream.sample(logits(1, 0), [text]))

    run(kind, server.uds, use if kind == "asyncio" else lambda stream: asyncio.run(use(stream)), reconnect_within=0.5, data_path="inline")
    lost, still = [record.getMessage() for record in told(caplog)]
    assert lost.startswith(f"connection to {server.uds} lost: ") and still.startswith(f"{server.uds} does not serve any more; waiting for up to 0.5 s: ")


@pytest.mark.parametrize("kind", NAMES)
def test_a_server_that_takes_connections_and_hangs_is_given_up(server, kind):
    stop(server)
    started = time.monotonic()
    with pytest.raises(croupier.CroupierError, match="did not answer within 2 s"):
        run(kind, server.uds, reconnect_within=0.1)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("kind", NAMES)
def test_a_server_that_hangs_in_a_step_is_noticed(server, kind, monkeypatch):
    """The client's timeouts are divided by ten. gRPC's own timeout would still be a minute."""
    real = _wire.options

    def sooner(address):
        return [(name, value // 10 if name.endswith("_ms") else value) for name, value in real(address)]

    monkeypatch.setattr(_access, "options", sooner)

    def use(stream):
        text = stream.open()
        stream.sample(logits(1, 0), [text])
        stop(server)
        stream.sample(logits(1, 1), [text])

    async def waiting(stream):
        text = stream.open()
        await stream.sample(logits(1, 0), [text])
        stop(server)
        await stream.sample(logits(1, 1), [text])

    started = time.monotonic()
    with pytest.raises(croupier.CroupierError, match="did not answer within 2 s; steps without a result are given up"):
        run(kind, server.uds, use if kind == "sync" else waiting, reconnect_within=0.1)
    assert time.monotonic() - started < 30


def test_a_step_has_a_deadline(server):
    with croupier.connect(server.uds, VOCAB, vocab_shards=[400, 600]) as stream:
        text = stream.open()
        with croupier.attach(stream.shard_token, 1):
            # The other rank's columns do not arrive.
            with pytest.raises(croupier.RowError) as error:
                stream.sample(logits(1, 0)[:400], [text], deadline_ms=50)
            assert error.value.failures[text.id].status == "DEADLINE_EXCEEDED"
            stream.submit(logits(1, 0)[:400], [text], deadline_ms=50)
            assert stream.result().work[0].status == croupier.pb.ROW_STATUS_DEADLINE_EXCEEDED
            result = stream.step(logits(1, 0)[:400], [text], deadline_ms=50, traceparent="none")
            assert result.work[0].status == croupier.pb.ROW_STATUS_DEADLINE_EXCEEDED
        for wrong, said in ((-1, "deadline_ms is -1, must be in 0"), (1.5, "deadline_ms is 1.5, must be a whole number")):
            with pytest.raises((ValueError, TypeError), match=said):
                stream.sample(logits(1, 0)[:400], [text], deadline_ms=wrong)

    async def use(stream):
        text = stream.open()
        for send in (stream.sample, stream.step, stream.submit):
            await send(logits(1, 0), [text], deadline_ms=60_000)
        return len((await stream.result()).work)

    assert run("asyncio", server.uds, use) == 1


def ended(port, method, count):
    """The codes of ended calls, once there are `count` of them."""
    give_up = time.monotonic() + 30
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            lines = [line for line in page.read().decode().splitlines() if line.startswith(f'croupier_requests_total{{method="{method}"')]
        codes = {line.split('code="')[1].split('"')[0]: int(line.split()[-1]) for line in lines}
        codes = {code: number for code, number in codes.items() if number}
        if sum(codes.values()) >= count:
            return codes
        assert time.monotonic() < give_up, codes
        time.sleep(0.02)


def test_the_end_of_a_stream_is_no_cancellation(serve):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = serve(f"--admin=127.0.0.1:{port}")
    for kind in NAMES:
        run(kind, server.uds)
    with croupier.connect(server.uds, VOCAB) as stream:
        # The result is not taken.
        stream.submit(logits(1, 0), [stream.open()])
    with pytest.raises(RuntimeError), croupier.connect(server.uds, VOCAB) as stream:
        raise RuntimeError
    assert ended(port, "Decode", 4) == {"OK": 4}

    async def bring(token):
        async with croupier.aio.attach(token, 1) as rank:
            await rank.send(logits(1, 1)[400:])

    with croupier.connect(server.uds, VOCAB, vocab_shards=[400, 600]) as stream:
        text = stream.open(**params(1))
        with croupier.attach(stream.shard_token, 1) as rank:
            rank.send(logits(1, 0)[400:])
            stream.sample(logits(1, 0)[:400], [text])
        asyncio.run(bring(stream.shard_token))
        stream.sample(logits(1, 1)[:400], [text])
    assert ended(port, "Attach", 2) == {"OK": 2}
    # The client leaves even if the server does not end the call.
    stream = croupier.connect(server.uds, VOCAB)
    stop(server)
    started = time.monotonic()
    stream.end()
    assert time.monotonic() - started < 20


def test_asyncio_wants_its_with(server):
    async def use():
        stream = croupier.aio.connect(server.uds, VOCAB)
        text = stream.open()
        for call in (lambda: stream.sample(logits(1, 0), [text]), lambda: stream.submit(None, []), stream.result):
            with pytest.raises(croupier.CroupierError, match="not connected: use it in `async with croupier.aio.connect"):
                await call()
        with pytest.raises(croupier.CroupierError, match="async with"):
            stream.rows(1)
        await stream.end()
        async with croupier.aio.connect(server.uds, VOCAB, vocab_shards=[400, 600]) as stream:
            rank = croupier.aio.attach(stream.shard_token, 1)
            for call in (lambda: rank.send(logits(1, 0)[400:]), lambda: rank.rows(1)):
                with pytest.raises(croupier.CroupierError, match="not attached: use it in `async with croupier.aio.attach"):
                    await call()
            await rank.end()

    asyncio.run(use())


def test_a_stream_is_for_one_at_a_time(server):
    said = "another {} is in the middle of a step; only one {} at a time may use a stream"

    async def use():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            texts = [stream.open(seed=seed) for seed in range(2)]
            done = await asyncio.gather(*(stream.sample(logits(1, 0), [text]) for text in texts), return_exceptions=True)
            assert [str(each) for each in done if isinstance(each, Exception)] == [said.format("task", "task")]
            assert await stream.sample(np.stack([logits(1, 1)] * 2), texts)

    asyncio.run(use())
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(seed=seed) for seed in range(2)]
        stop(server)
        first = threading.Thread(target=stream.sample, args=(logits(1, 0), texts[:1]))
        first.start()
        while stream._turn.is_free():
            time.sleep(0.001)
        for use in (lambda: stream.sample(logits(1, 0), texts[1:]), lambda: stream.submit(logits(1, 0), texts[1:]), stream.result):
            with pytest.raises(croupier.CroupierError, match=said.format("thread", "thread")):
                use()
        server.process.send_signal(signal.SIGCONT)
        first.join()
        assert [len(text.tokens) for text in texts] == [1, 0]
        assert stream.sample(logits(1, 0), texts[1:])
