"""Ranks of a tensor-parallel worker: the tokens are those of whole rows, in one process, in several, and after one is killed."""

import asyncio
import os
import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import croupier
from croupier import _ranks, pb
from test_client import PATHS, VOCAB, logits, params, text_of
from test_waiting import NAMES, done

TEXTS = (1, 2, 3)
COUNT = 12
SHARDS = [[VOCAB], [500, 500], [334, 333, 333], [400, 300, 200, 100], [125] * 8]


def columns_of(shards, rank):
    return slice(sum(shards[:rank]), sum(shards[: rank + 1]))


def write(rows, position, columns):
    for row, text in zip(rows.array, TEXTS):
        row[:] = logits(text, position)[columns]
    return rows


def bring(token, rank, shards, path, count=COUNT):
    """The work of a rank above 0."""
    with croupier.attach(token, rank, data_path=path) as sampler:
        assert sampler.data_path == path
        assert sampler.vocab_range == range(VOCAB)[columns_of(shards, rank)]
        for position in range(count):
            sampler.send(write(sampler.rows(len(TEXTS)), position, columns_of(shards, rank)))
        assert sampler.wait() == []


def together(server, shards, path, paths=None):
    with croupier.connect(server.uds, VOCAB, data_path=path, vocab_shards=shards) as stream:
        ranks = range(1, len(shards))
        work = [threading.Thread(target=bring, args=(stream.shard_token, rank, shards, (paths or {}).get(rank, path)))
                for rank in ranks]
        for thread in work:
            thread.start()
        sequences = [stream.open(prompt=[1, 2], **params(text)) for text in TEXTS]
        for position in range(COUNT):
            rows = stream.rows(len(TEXTS))
            assert rows.array.shape == (len(TEXTS), shards[0])
            stream.sample(write(rows, position, columns_of(shards, 0)), sequences)
        for thread in work:
            thread.join()
        return [sequence.tokens for sequence in sequences]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shards", SHARDS, ids=len)
def test_any_number_of_ranks_gives_the_tokens_of_whole_rows(server, shards, path):
    assert together(server, shards, path) == text_of(server, COUNT, "inline")


def test_ranks_may_take_different_ways(server):
    shards = [400, 300, 200, 100]
    expected = text_of(server, COUNT, "inline")
    assert together(server, shards, "shared_memory", {2: "inline"}) == expected


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_arrays_of_one_s_own_are_taken_in_every_dtype(server, dtype):
    with croupier.connect(server.uds, VOCAB, dtype=dtype) as stream:
        sequence = stream.open(**params(5))
        expected = [stream.sample(logits(5, position), [sequence])[0] for position in range(6)]
    for path in PATHS:
        with croupier.Sampler.connect(server.uds, VOCAB, dtype=dtype, data_path=path, vocab_shards=[300, 700]) as stream:
            sequence = stream.open(**params(5))
            with croupier.Sampler.attach(stream.shard_token, 1, data_path=path) as rank:
                for position in range(6):
                    rank.send(logits(5, position)[300:])
                    stream.sample(logits(5, position)[:300], [sequence])
            assert sequence.tokens == expected


def test_every_rank_has_the_tokens_without_a_message_of_rank_0(server):
    """The logits depend on earlier tokens, as a model's do: a rank with other tokens would send other columns."""
    shards, seen = [400, 300, 300], {1: [], 2: []}

    def rows_of(rows, tokens, columns):
        for row, text in zip(rows.array, TEXTS):
            row[:] = logits(text, sum(tokens[text - 1]))[columns]
        return rows

    def follow(token, rank):
        texts = [[] for _ in TEXTS]
        with croupier.attach(token, rank) as sampler:
            for position in range(COUNT):
                step = sampler.send(rows_of(sampler.rows(len(TEXTS)), texts, columns_of(shards, rank)))
                for text, tokens in zip(texts, sampler.tokens(step)):
                    text.extend(tokens)
        seen[rank] = texts

    def run(shards, ranks):
        with croupier.connect(server.uds, VOCAB, data_path="shared_memory", vocab_shards=shards) as stream:
            work = [threading.Thread(target=follow, args=(stream.shard_token, rank)) for rank in ranks]
            for thread in work:
                thread.start()
            sequences = [stream.open(**params(text), logprobs={}) for text in TEXTS]
            for position in range(COUNT):
                rows = rows_of(stream.rows(len(TEXTS)), [s.tokens for s in sequences], columns_of(shards or [VOCAB], 0))
                stream.step(rows, sequences)
            for thread in work:
                thread.join()
            return [sequence.tokens for sequence in sequences]

    expected = run(None, [])
    assert run(shards, [1, 2]) == expected
    assert seen == {1: expected, 2: expected}


def test_tokens_that_are_gone_or_never_come_are_told(server):
    with croupier.connect(server.uds, VOCAB, vocab_shards=[300, 700], slots=2, max_rows=8) as stream:
        sequence = stream.open(**params(1))
        with croupier.attach(stream.shard_token, 1) as rank:
            for position in range(4):
                rank.send(logits(1, position)[300:])
                stream.sample(logits(1, position)[:300], [sequence])
            assert [rank.tokens(step) for step in (2, 3, 4)] == [[[token]] for token in sequence.tokens[1:]]
            with pytest.raises(croupier.CroupierError, match="step 1 are gone"):
                rank.tokens(1)
            with pytest.raises(croupier.CroupierError, match="did not arrive within 0.2 s"):
                rank.tokens(5, timeout=0.2)
        with croupier.attach(stream.shard_token, 1, data_path="inline") as rank:
            with pytest.raises(croupier.CroupierError, match="shared memory"):
                rank.tokens(1)
        # Rows without a slot are sent inline. A failed row gives no tokens.
        with croupier.attach(stream.shard_token, 1) as rank:
            rows = np.array([logits(text, 5) for text in range(100)])
            rows[3] = np.nan
            texts = [stream.open(**params(text)) for text in range(100)]
            assert len(rows) > rank._session.group.max_rows
            step = rank.send(rows[:, 300:])
            with pytest.raises(croupier.RowError):
                stream.sample(rows[:, :300], texts)
            assert rank.tokens(step) == [[*text.tokens] for text in texts] and texts[3].tokens == []
            # Rank 0 leaves, so nobody waits for further tokens.
            waiting = threading.Thread(target=stream.end)
            began = time.monotonic()
            waiting.start()
            with pytest.raises(croupier.CroupierError, match="the group has ended"):
                rank.tokens(step + 1, timeout=60)
            assert time.monotonic() - began < 30
            waiting.join()


def test_a_task_that_waits_for_tokens_can_be_cancelled(server):
    async def run():
        async with croupier.aio.Sampler.connect(server.uds, VOCAB, vocab_shards=[300, 700]) as stream:
            async with croupier.aio.Sampler.attach(stream.shard_token, 1) as rank:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(rank.tokens(1, timeout=60), 0.2)

    began = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - began < 30


def test_asyncio_has_ranks_too(server):
    shards = [300, 400, 300]
    seen = {1: [], 2: []}

    async def bring_columns(token, rank):
        async with croupier.aio.Sampler.attach(token, rank) as sampler:
            for position in range(COUNT):
                step = await sampler.send(write(await sampler.rows(len(TEXTS)), position, columns_of(shards, rank)))
                seen[rank].append(await sampler.tokens(step))
            assert await sampler.wait() == []

    async def run():
        async with croupier.aio.Sampler.connect(server.uds, VOCAB, vocab_shards=shards) as stream:
            work = [asyncio.create_task(bring_columns(stream.shard_token, rank)) for rank in (1, 2)]
            sequences = [stream.open(prompt=[1, 2], **params(text)) for text in TEXTS]
            for position in range(COUNT):
                await stream.sample(write(stream.rows(len(TEXTS)), position, columns_of(shards, 0)), sequences)
            await asyncio.gather(*work)
            return [sequence.tokens for sequence in sequences]

    expected = text_of(server, COUNT, "inline")
    assert asyncio.run(run()) == expected
    steps = [[[token] for token in step] for step in zip(*expected)]
    assert seen == {1: steps, 2: steps}


RANK = """
import sys
import croupier
from test_client import VOCAB, logits
token, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with croupier.attach(token, 1, data_path=path) as rank:
    for position in range(count):
        rows = rank.rows(1)
        rows.array[0] = logits(1, position)[400:]
        rank.send(rows)
        print("sent", flush=True)
    print(rank.wait(), flush=True)
    sys.stdin.read()
"""


def rank_process(token, path, count):
    here = pathlib.Path(__file__).resolve().parent
    environment = {**os.environ, "PYTHONPATH": f"{here}:{here.parent}"}
    command = [sys.executable, "-c", RANK, token, path, str(count)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("path", PATHS)
def test_a_rank_that_is_killed_fails_its_rows_and_another_takes_its_place(server, path):
    expected = text_of(server, 4, "inline", [1])[0]
    with croupier.connect(server.uds, VOCAB, data_path=path, vocab_shards=[400, 600]) as stream:
        sequence = stream.open(prompt=[1, 2], **params(1))
        process = rank_process(stream.shard_token, path, 2)
        own = [logits(1, position)[:400] for position in range(4)]
        # The process takes a while to start. Both shards arrive before their steps.
        assert [process.stdout.readline() for _ in range(2)] == ["sent\n"] * 2
        assert [stream.sample(own[0], [sequence]), stream.sample(own[1], [sequence])] == [[t] for t in expected[:2]]
        assert process.stdout.readline() == "[]\n", "both were sampled"
        process.kill()
        process.wait()
        # Nobody announces step 3.
        with pytest.raises(croupier.RowError, match="rank 1 has left"):
            stream.sample(own[2], [sequence])
        assert sequence.tokens == expected[:2], "nothing was lost"
        with croupier.attach(stream.shard_token, 1) as rank:
            for position in (2, 3):
                assert rank.send(logits(1, position)[400:]) == position + 2
                stream.sample(own[position], [sequence])
        assert sequence.tokens == expected


def test_a_killed_server_changes_no_token(server):
    expected = text_of(server, 6, "inline", [1])[0]
    with croupier.connect(server.uds, VOCAB, vocab_shards=[400, 600]) as stream:
        sequence = stream.open(prompt=[1, 2], **params(1))
        rank = croupier.attach(stream.shard_token, 1)
        for position in range(6):
            if position == 3:
                server.kill()
                server.start()
                # The other rank's columns are gone, so these rows cannot be sampled by themselves.
                with pytest.raises(croupier.LogitsLost):
                    stream.sample(logits(1, position)[:400], [sequence])
                with pytest.raises(croupier.CroupierError):
                    rank.wait() or rank.send(logits(1, position)[400:]) and rank.wait()
                rank.end()
                rank = croupier.attach(stream.shard_token, 1)
            rank.send(logits(1, position)[400:])
            stream.sample(logits(1, position)[:400], [sequence])
        rank.end()
        assert sequence.tokens == expected


def test_mistakes_are_told(serve):
    server = serve("--shard-timeout=2s")
    with croupier.connect(server.uds, VOCAB, vocab_shards=[400, 600]) as stream:
        token = stream.shard_token
        sequence = stream.open(**params(1))
        with pytest.raises(croupier.RowError, match="did not attach"):
            stream.sample(logits(1, 0)[:400], [sequence])
        with pytest.raises(ValueError, match="shape"):
            stream.sample(logits(1, 0), [sequence])
        for rank in (0, 2):
            with pytest.raises(ValueError, match="rank"):
                croupier.attach(token, rank)
        with pytest.raises(ValueError, match="shard_token"):
            croupier.attach("nonsense", 1)
        with croupier.attach(token, 1) as rank:
            with pytest.raises(croupier.CroupierError, match="ALREADY_EXISTS"):
                croupier.attach(token, 1)
            with pytest.raises(ValueError, match="shape"):
                rank.send(logits(1, 0))
            assert rank.send(logits(1, 0)[400:]) == 2, "step 1 has failed"
            stream.sample(logits(1, 0)[:400], [sequence])
            assert rank.wait() == []
            taken = [rank.rows(1), rank.rows(1)]
            with pytest.raises(croupier.CroupierError, match="every slot"):
                rank.rows(1)
            del taken
    with pytest.raises(croupier.CroupierError, match="PERMISSION_DENIED"):
        croupier.attach(token, 1)
    with croupier.connect(server.uds, VOCAB) as stream:
        with pytest.raises(croupier.CroupierError, match="vocab_shards"):
            stream.shard_token
    with pytest.raises(croupier.CroupierError, match="config.vocab_shards.columns"):
        croupier.connect(server.uds, VOCAB, vocab_shards=[400, 500])


def test_steps_that_were_not_sampled_are_told(serve):
    server = serve("--shard-timeout=2s")
    with croupier.connect(server.uds, VOCAB, vocab_shards=[400, 300, 300]) as stream:
        sequence = stream.open(**params(1))
        with croupier.attach(stream.shard_token, 1) as rank:
            rank.send(logits(1, 0)[400:700])
            with pytest.raises(croupier.RowError, match="rank 2 did not attach"):
                stream.sample(logits(1, 0)[:400], [sequence])
            assert rank.wait() == [1]
            with croupier.attach(stream.shard_token, 2) as other:
                rank.send(logits(1, 0)[400:700])
                other.send(logits(1, 0)[700:])
                stream.sample(logits(1, 0)[:400], [sequence])
                assert (rank.wait(), other.wait()) == ([], [])
        assert len(sequence.tokens) == 1


def test_works_without_logits_and_ranks_do_not_disturb_each_other(server):
    with croupier.connect(server.uds, VOCAB, vocab_shards=[400, 600]) as stream:
        sequence = stream.open(**params(1))
        with croupier.attach(stream.shard_token, 1) as rank:
            for position in range(3):
                # A step without rows does not count as a step of the ranks.
                extra = stream.open(**params(2))
                stream.step(None)
                stream.close(extra)
                assert rank.send(logits(1, position)[400:]) == position + 1
                result = stream.step(logits(1, position)[:400], [sequence])
                assert result.work[0].status == pb.ROW_STATUS_OK
        assert len(sequence.tokens) == 3


def test_the_example_runs(server):
    root = pathlib.Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root / "python")}
    command = [sys.executable, root / "examples" / "python" / "tensor_parallel.py", server.uds, "3"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert said.stdout.endswith("3 ranks draw the same tokens as one\n"), said
    for wrong in ([], [server.uds], [server.uds, "many"], [server.uds, "0"]):
        said = subprocess.run([*command[:2], *wrong], env=environment, capture_output=True, text=True)
        assert said.returncode == 2 and said.stderr.startswith("usage: ") and "Traceback" not in said.stderr, said


@pytest.mark.parametrize("kind", NAMES)
def test_columns_that_are_not_announced_leave_their_slot_free(server, kind, monkeypatch):
    """Also while somebody has the errors, whose frames refer to the rows."""
    def failing(*_):
        raise OverflowError("no announcement")

    columns, kept = logits(1, 0)[500:], []

    async def use(rank):
        await done(kind, rank.send(columns))
        free = rank._session.free
        assert len(free) == 1
        monkeypatch.setattr(_ranks, "Announced", failing)
        for step_id, error in ((1, ValueError), (2, OverflowError)) * 2:
            with pytest.raises(error) as raised:
                await done(kind, rank.send(columns, step_id=step_id))
            kept.append(raised.value)
            assert rank._session.free == free

    async def attached(token):
        async with croupier.aio.attach(token, 1) as rank:
            await use(rank)

    with croupier.connect(server.uds, VOCAB, vocab_shards=[500, 500], slots=2) as stream:
        if kind == "asyncio":
            asyncio.run(attached(stream.shard_token))
        else:
            with croupier.attach(stream.shard_token, 1) as rank:
                asyncio.run(use(rank))
