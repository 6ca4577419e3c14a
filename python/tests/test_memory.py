"""The memory of a step is free once the step is done, without the garbage collector."""

import asyncio
import gc
import threading
import weakref

import numpy as np
import pytest

from test_client import PATHS, VOCAB
from test_waiting import NAMES, done, run


@pytest.fixture(autouse=True)
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def used(kind, address, use, **options):
    """Calls `use`, a coroutine, with a stream of either kind."""
    run(kind, address, (lambda stream: asyncio.run(use(stream))) if kind == "sync" else use, **options)


def fresh(count):
    """Logits in an array of their own, as a model returns them, and a reference that does not keep them."""
    logits = np.zeros((count, VOCAB), np.float32)
    return logits, weakref.ref(logits)


@pytest.mark.parametrize("flags", [[], ["--max-rows-per-step=1"]])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", NAMES)
def test_no_logits_stay_when_their_step_is_done(serve, kind, path, flags):
    async def use(stream):
        texts = [stream.open(seed=seed) for seed in range(2)]
        for _ in range(3):
            logits, kept = fresh(len(texts))
            await done(kind, stream.sample(logits, texts))
            del logits
            assert kept() is None

    used(kind, serve(*flags).uds, use, data_path=path)


@pytest.mark.parametrize("kind", NAMES)
def test_no_logits_stay_when_their_step_was_given_up(server, kind):
    async def use(stream):
        text = stream.open(seed=1)
        await done(kind, stream.submit(fresh(1)[0], [text]))
        kept = weakref.ref(stream._session.steps[0].parts[0].logits)
        await done(kind, stream.give_up())
        assert kept() is None and text.tokens == []

    used(kind, server.uds, use)


@pytest.mark.parametrize("late", [0, 0.4])
@pytest.mark.parametrize("kind", NAMES)
def test_neither_logits_nor_region_stay_when_the_server_was_killed(server, kind, late):
    """Also after attempts to connect that failed."""
    async def use(stream):
        text = stream.open(seed=1)
        for count in range(1, 4):
            region = weakref.ref(stream._session.region)
            rows = stream.rows(1)
            rows.array[:] = 0
            server.kill()
            starting = threading.Timer(late, server.start)
            starting.start()
            await done(kind, stream.sample(rows, [text]))
            starting.join()
            kept = weakref.ref(rows)
            del rows
            assert len(text.tokens) == count and region() is None and kept() is None

    used(kind, server.uds, use, reconnect_within=60)
