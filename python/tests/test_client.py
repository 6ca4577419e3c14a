"""The client against a real server: the tokens are the same on every data path, and if the server is killed."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import croupier
from croupier import pb

VOCAB = 1000
PATHS = ["inline", "shared_memory"]


def logits(text, position, vocab=VOCAB):
    """The row of a text at a position. Any function of the two would do."""
    return np.random.default_rng((text, position)).normal(size=vocab).astype(np.float32) * 3


def params(seed):
    return {"seed": seed, "temperature": 0.9, "top_p": 0.95, "presence_penalty": 0.3}


def write(stream, texts, position):
    rows = stream.rows(len(texts))
    for row, text in zip(rows.array, texts):
        row[:] = logits(text, position)
    return rows


def text_of(server, count, data_path, texts=(1, 2, 3)):
    with croupier.connect(server.uds, VOCAB, data_path=data_path) as stream:
        assert stream.data_path == data_path
        sequences = [stream.open(prompt=[1, 2], **params(text)) for text in texts]
        for position in range(count):
            tokens = stream.sample(write(stream, texts, position), sequences)
            assert tokens == [sequence.tokens[-1] for sequence in sequences]
        return [sequence.tokens for sequence in sequences]


def test_tokens_are_the_same_on_both_data_paths(server):
    inline, shared = (text_of(server, 20, path) for path in PATHS)
    assert inline == shared
    assert len(set(map(tuple, inline))) == 3


def test_a_reply_may_be_larger_than_grpc_takes_by_itself(serve):
    """gRPC's default limit is 4 MiB."""
    vocab, count = 20_000, 40
    server, rows = serve(f"--max-top-logprobs={vocab}"), np.stack([logits(text, 0, vocab) for text in range(count)])

    def texts(stream):
        return [stream.open(seed=1, logprobs={"top_n": vocab}) for _ in range(count)]

    async def later():
        async with croupier.aio.connect(server.uds, vocab) as stream:
            return await stream.step(rows, texts(stream))

    with croupier.connect(server.uds, vocab) as stream:
        result = stream.step(rows, texts(stream))
    assert result == asyncio.run(later()) and result.ByteSize() > 4 << 20


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_arrays_of_one_s_own_are_taken_in_every_dtype(server, dtype):
    tokens = {}
    for path in PATHS:
        with croupier.connect(server.uds, VOCAB, dtype=dtype, data_path=path) as stream:
            sequence = stream.open(**params(5))
            tokens[path] = [stream.sample(logits(5, position), [sequence])[0] for position in range(10)]
    assert tokens["inline"] == tokens["shared_memory"]


def test_a_server_without_shared_memory_is_served_inline(serve, caplog):
    server = serve("--region-socket=none")
    caplog.set_level("INFO", "croupier")
    with croupier.connect(server.uds, VOCAB) as stream:
        assert stream.data_path == "inline"
        assert stream.data_path_reason == "the server offers no shared memory"
        assert caplog.messages == ["logits are sent in messages: the server offers no shared memory"]
        assert stream.sample(logits(1, 0), [stream.open(**params(1))])
    with pytest.raises(croupier.CroupierError, match="offers no shared memory; start the server with --uds or --region-socket$"):
        croupier.connect(server.uds, VOCAB, data_path="shared_memory")


def test_too_little_room_falls_back_too(serve):
    server = serve("--max-bytes-per-region=64KiB", "--max-region-bytes=64KiB")
    with croupier.connect(server.uds, VOCAB) as stream:
        assert stream.data_path == "inline" and "max_bytes_per_region" in stream.data_path_reason
        assert stream.data_path_reason.endswith("; its size comes from max_rows 64 and slots 2, connect with smaller ones")
    with pytest.raises(croupier.CroupierError, match="lease.bytes is .*; its size comes from max_rows 10000000 and slots 3, connect with smaller ones$") as error:
        croupier.connect(server.uds, VOCAB, data_path="shared_memory", max_rows=10**7, slots=3)
    assert "--uds" not in str(error.value)
    with croupier.connect(server.uds, VOCAB, max_rows=4) as stream:
        assert stream.data_path == "shared_memory" and stream.data_path_reason == ""
        stream.rows(5)
        assert stream.data_path_reason == "a step had more rows than max_rows, 4; connect with a larger one"
    with croupier.connect(server.uds, VOCAB, data_path="inline", vocab_shards=[500, 500]) as stream:
        assert stream.data_path_reason == "data_path is inline"
        with croupier.attach(stream.shard_token, 1) as rank:
            assert rank.data_path_reason == "rank 0 has no shared memory"


def test_a_text_goes_on_elsewhere_with_the_same_defaults_of_the_stream(server):
    """The defaults are not part of the text's own parameters."""
    options = {"default_params": {**params(1), "max_tokens": 12}, "eos_token_ids": [5]}
    with croupier.connect(server.uds, VOCAB, **options) as stream:
        whole = stream.open(top_k=50, prompt=[1, 2])
        for position in range(12):
            stream.sample(logits(1, position), [whole])
    with croupier.connect(server.uds, VOCAB, **options) as stream:
        text = stream.open(top_k=50, prompt=[1, 2])
        for position in range(6):
            stream.sample(logits(1, position), [text])
    assert not text.params.HasField("seed") and not text.params.HasField("temperature")
    with croupier.connect(server.uds, VOCAB, **options) as stream:
        text = stream.open(text.params, prompt=text.prompt, output=text.tokens, sampler_state=text.state)
        for position in range(6, 12):
            stream.sample(logits(1, position), [text])
    assert text.tokens == whole.tokens and text.finish_reason == whole.finish_reason == "max_tokens"


def test_a_change_of_a_text_s_parameters_changes_no_token(server):
    drawn = []
    for change, kill in ((False, False), (True, False), (True, True)):
        with croupier.connect(server.uds, VOCAB) as stream:
            text = stream.open(**params(5))
            for position in range(4):
                # Before it is opened, and when it is opened again.
                text.params.temperature = 0 if change else text.params.temperature
                if kill and position == 2:
                    server.kill()
                    server.start()
                stream.sample(np.zeros((1, VOCAB), np.float32), [text])
            drawn.append(text.tokens)
            assert stream.fork(text).params.temperature > 0.8
    assert drawn[0] == drawn[1] == drawn[2]


def test_an_error_that_the_caller_handles_keeps_its_place(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(**params(5))
        try:
            raise ValueError("of the caller")
        except ValueError as error:
            server.kill()
            server.start()
            stream.sample(logits(1, 0), [text])
            assert error.__traceback__ is not None
    assert len(text.tokens) == 1


@pytest.mark.parametrize("path", PATHS)
def test_a_killed_server_changes_no_token(server, path):
    expected = text_of(server, 30, path)
    with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
        sequences = [stream.open(prompt=[1, 2], **params(text)) for text in (1, 2, 3)]
        for position in range(30):
            rows = write(stream, (1, 2, 3), position)
            if position % 10 == 5:
                # Between two steps, with the rows already written: they are kept.
                server.kill()
                server.start()
            stream.sample(rows, sequences)
        assert [sequence.tokens for sequence in sequences] == expected
        assert stream.data_path == path


@pytest.mark.parametrize("path", PATHS)
def test_a_server_killed_with_a_step_under_way_changes_no_token(server, path):
    expected = text_of(server, 6, path)
    with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
        sequences = [stream.open(prompt=[1, 2], **params(text)) for text in (1, 2, 3)]
        for position in range(6):
            # The server is stopped, so that the step has arrived but has no answer when the server is killed.
            server.process.send_signal(signal.SIGSTOP)
            stream.submit(write(stream, (1, 2, 3), position), sequences)
            time.sleep(0.05)
            server.kill()
            server.start()
            assert all(work.status == pb.ROW_STATUS_OK for work in stream.result().work)
        assert [sequence.tokens for sequence in sequences] == expected


@pytest.mark.parametrize("fields", [{"mirostat": 2}, {"adaptive_target": 0.3}, {"mirostat": 1, "mirostat_tau": 2.0}])
def test_what_samplers_learned_survives_a_kill(server, fields):
    def run(kill):
        with croupier.connect(server.uds, VOCAB) as stream:
            sequence = stream.open(prompt=[1], seed=5, **fields)
            for position in range(30):
                if kill and position % 10 == 5:
                    server.kill()
                    server.start()
                stream.sample(write(stream, [1], position), [sequence])
            return sequence.tokens

    assert run(kill=True) == run(kill=False)


@pytest.mark.parametrize("fields", [{"mirostat": 2}, {"adaptive_target": 0.3}])
@pytest.mark.parametrize("given", [lambda state: state, lambda state: {field.name: value for field, value in state.ListFields()}])
def test_a_text_goes_on_elsewhere_with_what_its_samplers_learned(server, fields, given):
    with croupier.connect(server.uds, VOCAB) as stream, croupier.connect(server.uds, VOCAB) as another:
        text = stream.open(prompt=[1], seed=5, **fields)
        for position in range(15):
            stream.sample(logits(1, position), [text])
        moved = another.open(text.params, prompt=[1], output=text.tokens, sampler_state=given(text.state))
        anew = another.open(text.params, prompt=[1], output=text.tokens)
        for position in range(15, 40):
            stream.sample(logits(1, position), [text])
            if position == 30:
                server.kill()
                server.start()
            another.sample(np.stack([logits(1, position)] * 2), [moved, anew])
        assert moved.tokens == text.tokens != anew.tokens


def test_a_slot_comes_back_whatever_happens(server):
    with croupier.connect(server.uds, VOCAB, slots=1, data_path="shared_memory") as stream:
        sequence = stream.open(**params(1))
        for _ in range(3):
            with pytest.raises(TypeError, match="logits are object"):
                stream.sample(np.full(VOCAB, "x", object), [sequence])
            stream.discard(stream.rows(1))
            assert stream.sample(write(stream, [1], 0), [sequence])


def test_asyncio_goes_on_with_a_cancelled_step(server):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            sequence = stream.open(**params(1))
            await stream.sample(logits(1, 0), [sequence])
            server.process.send_signal(signal.SIGSTOP)
            # Wait until all of its threads are stopped, because one may still answer.
            os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(stream.sample(logits(1, 1), [sequence]), 0.2)
            server.process.send_signal(signal.SIGCONT)
            with pytest.raises(croupier.CroupierError, match=r"take them first with result\(\), or call give_up\(\)"):
                await stream.sample(logits(1, 1), [sequence])
            result = await stream.result()
            assert [result.work[0].tokens[0].token_id] == sequence.tokens[1:]

    asyncio.run(run())


def test_without_a_server_it_gives_up_in_time(server):
    server.kill()
    with pytest.raises(croupier.CroupierError, match="UNAVAILABLE"):
        croupier.connect(server.uds, VOCAB, reconnect_within=0.5)


def test_a_lost_region_is_told_and_not_sampled(serve):
    server = serve("--drain-timeout=1s")
    with croupier.connect(server.uds, VOCAB, data_path="shared_memory") as stream:
        sequence = stream.open(**params(1))
        first = stream.sample(write(stream, [1], 0), [sequence])
        rows = write(stream, [1], 1)
        # A server that shuts down cleanly frees the pages of its regions.
        server.process.terminate()
        server.process.wait()
        server.start()
        with pytest.raises(croupier.LogitsLost):
            stream.submit(rows, [sequence])
            stream.result()
        second = stream.sample(write(stream, [1], 1), [sequence])
        assert sequence.tokens == first + second
    assert sequence.tokens == text_of(server, 2, "inline", [1])[0]


def test_a_bad_row_fails_alone_and_is_named(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        good, bad = stream.open(**params(1)), stream.open(**params(2))
        rows = write(stream, [1, 2], 0)
        rows.array[1, 7] = np.nan
        with pytest.raises(croupier.RowError) as error:
            stream.sample(rows, [good, bad])
        [(failed, failure)] = error.value.failures.items()
        assert (failed, failure, failure.status) == (bad.id, "the row has a NaN logit, at token 7", "NAN_LOGITS")
        assert (len(good.tokens), len(bad.tokens)) == (1, 0)
        assert stream.sample(write(stream, [1, 2], 1), [good, bad])


def test_mistakes_are_told(server):
    with croupier.connect(server.uds, VOCAB, slots=2) as stream:
        with pytest.raises(ValueError, match="shape"):
            stream.sample(np.zeros(VOCAB - 1, np.float32), [stream.open(**params(1))])
        taken = [stream.rows(1), stream.rows(1)]
        with pytest.raises(croupier.CroupierError, match="every slot"):
            stream.rows(1)
        del taken
    with croupier.connect(server.uds, VOCAB) as stream:
        stream.open(temperature=-1.0)
        with pytest.raises(croupier.CroupierError, match="params.temperature"):
            stream.step(None)


def test_every_work_goes_through_a_region(server):
    def verified(path):
        with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
            sequence = stream.open(**params(3))
            draft = pb.VerifyWork(draft_token_ids=[4, 5], deterministic=pb.DeterministicDraft())
            work = pb.Work(sequence_id=sequence.id, verify=draft)
            result = stream.step(write(stream, [3, 3, 3], 0), [work])
            assert result.work[0].status == pb.ROW_STATUS_OK
            assert sequence.tokens == [token.token_id for token in result.work[0].tokens]
            return sequence.tokens

    assert verified("inline") == verified("shared_memory")


def test_asyncio_gives_the_same_text_and_survives_a_kill(server):
    async def run(path):
        async with croupier.aio.connect(server.uds, VOCAB, data_path=path) as stream:
            assert stream.data_path == path
            sequences = [stream.open(prompt=[1, 2], **params(text)) for text in (1, 2, 3)]
            for position in range(12):
                rows = write(stream, (1, 2, 3), position)
                if position == 6:
                    server.kill()
                    server.start()
                await stream.sample(rows, sequences)
            return [sequence.tokens for sequence in sequences]

    for path in PATHS:
        assert asyncio.run(run(path)) == text_of(server, 12, path)


def test_nothing_is_left_in_the_server(server):
    for _ in range(20):
        text_of(server, 1, "shared_memory")
    give_up = time.monotonic() + 60
    while server.regions():
        assert time.monotonic() < give_up, "a region is left"
        time.sleep(0.02)
    with croupier.connect(server.uds, VOCAB, data_path="shared_memory"):
        assert server.regions() == 1, "the count sees a region"


def test_the_bench_prints_its_table(server):
    bench = pathlib.Path(__file__).resolve().parents[1] / "bench.py"
    environment = {**os.environ, "PYTHONPATH": str(bench.parent)}
    command = [sys.executable, str(bench), server.uds, "--vocab-size=1000", "--steps=5"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("64 rows x 1000 f32, shared_memory, 5 steps")
    assert "| the client's own |" in done.stdout and "| <= 150 |" in done.stdout
