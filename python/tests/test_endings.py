"""What happens after a stream has ended: by an error, because there is no server, or by the program."""

import asyncio
import gc
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

import croupier
from croupier import pb
from test_client import PATHS, VOCAB, logits, params, text_of, write


#: A work without a kind, which ends a stream.
SHAPELESS = pb.Work(sequence_id=1)
ENDED = pytest.raises(croupier.CroupierError, match=r"INVALID_ARGUMENT: .*work\[\d+\].*texts are unchanged, and the next step connects again")


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_goes_on_after_an_error_that_ended_it(server, path):
    expected = text_of(server, 4, "inline", [1])[0]
    with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
        text = stream.open(prompt=[1, 2], **params(1))
        stream.sample(write(stream, [1], 0), [text])
        other = stream.open(**params(2))
        with ENDED:
            stream.step(write(stream, [2], 0), [other, SHAPELESS])
        stream.sample(write(stream, [1], 1), [text])
        stream.submit(write(stream, [2], 0), [other, SHAPELESS])
        stream.submit(write(stream, [1], 2), [text])
        with ENDED:
            stream.result()
        with pytest.raises(croupier.CroupierError, match="given up"):
            stream.result()
        # The text that the refused step was to open is also open.
        rows = write(stream, [1, 2], 2)
        rows.array[1] = logits(2, 0)
        stream.sample(rows, [text, other])
        assert stream.data_path == path
        # No slot is lost.
        taken = [stream.rows(1) for _ in range(2)]
        stream.discard(taken[0])
        stream.sample(write(stream, [1], 3), [text])
        assert text.tokens == expected and len(other.tokens) == 1


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_goes_on_when_the_server_is_back_too_late(server, path):
    expected = text_of(server, 4, path, [1])[0]
    with croupier.connect(server.uds, VOCAB, data_path=path, reconnect_within=0.2) as stream:
        text = stream.open(prompt=[1, 2], **params(1))
        stream.sample(write(stream, [1], 0), [text])
        stream.submit(write(stream, [1], 1), [text])
        stream.result()
        server.kill()
        for _ in range(2):
            with pytest.raises(croupier.CroupierError, match="UNAVAILABLE.*the next step connects again"):
                stream.sample(logits(1, 2), [text])
            with pytest.raises(croupier.CroupierError, match="no step was submitted"):
                stream.result()
        server.start()
        # Rows are in shared memory again immediately.
        stream.sample(write(stream, [1], 2), [text])
        assert stream.data_path == path
        stream.sample(logits(1, 3), [text])
        assert text.tokens == expected


def test_asyncio_goes_on_too(server):
    expected = text_of(server, 4, "inline", [1])[0]

    async def run():
        async with croupier.aio.connect(server.uds, VOCAB, reconnect_within=0.2) as stream:
            text = stream.open(prompt=[1, 2], **params(1))
            await stream.sample(logits(1, 0), [text])
            with ENDED:
                await stream.step(np.zeros((2, VOCAB), np.float32), [stream.open(seed=2), SHAPELESS])
            await stream.sample(logits(1, 1), [text])
            server.kill()
            for _ in range(2):
                with pytest.raises(croupier.CroupierError, match="UNAVAILABLE.*connects again"):
                    await stream.sample(logits(1, 2), [text])
            server.start()
            for position in (2, 3):
                await stream.sample(write(stream, [1], position), [text])
            return text.tokens, stream

    tokens, stream = asyncio.run(run())
    assert tokens == expected
    with pytest.raises(croupier.CroupierError, match="was ended"):
        asyncio.run(stream.sample(logits(1, 4), list(stream.sequences.values())))


def test_a_stream_that_was_ended_says_so(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(**params(1))
    for use in (lambda: stream.sample(logits(1, 0), [text]), lambda: stream.submit(None, []), stream.result, lambda: stream.rows(1)):
        with pytest.raises(croupier.CroupierError, match="was ended; connect a new one"):
            use()


def test_a_result_wants_a_step(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        with pytest.raises(croupier.CroupierError, match="no step was submitted"):
            stream.result()


@pytest.mark.parametrize("kind", ["rows", "array"])
def test_rows_that_wait_for_what_opens_go_along_when_the_server_is_killed(serve, kind):
    server = serve("--max-message-bytes=8KiB")

    def run(kill):
        with croupier.connect(server.uds, VOCAB, data_path="shared_memory") as stream:
            texts = [stream.open(prompt=[1] * 4000, **params(text)) for text in (1, 2, 3)]
            given = write(stream, (1, 2, 3), 0) if kind == "rows" else np.stack([logits(text, 0) for text in (1, 2, 3)])
            if kill:
                server.kill()
                server.start()
            return stream.sample(given, texts) + stream.sample(write(stream, (1, 2, 3), 1), texts)

    assert run(kill=True) == run(kill=False)


FORGETFUL = """
import sys, croupier
first = croupier.connect(sys.argv[1], 10)
first.sample([0.0] * 10, [first.open()])
streams = [croupier.connect(sys.argv[1], 10, data_path="inline") for _ in range(4)]
for stream in streams:
    stream.submit([0.0] * 10, [stream.open()])
"""


def test_a_program_ends_though_its_streams_were_not_ended(server):
    here = pathlib.Path(__file__).resolve().parent
    command = [sys.executable, "-c", FORGETFUL, server.uds]
    environment = {**os.environ, "PYTHONPATH": str(here.parent)}
    # If nothing ended the streams, about one program in five would hang.
    for _ in range(3):
        programs = [subprocess.Popen(command, env=environment) for _ in range(4)]
        try:
            assert [program.wait(timeout=60) for program in programs] == [0] * 4
        finally:
            for program in programs:
                program.kill()


def test_a_stream_that_nobody_has_is_ended(server):
    stream = croupier.connect(server.uds, VOCAB, data_path="shared_memory")
    stream.sample(logits(1, 0), [stream.open()])
    assert server.regions() == 1
    del stream
    gc.collect()
    give_up = time.monotonic() + 60
    while server.regions():
        assert time.monotonic() < give_up, "a region is left"
        time.sleep(0.02)
