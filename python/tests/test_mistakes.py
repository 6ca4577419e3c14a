"""A program's mistakes are reported where they are made, and change nothing else."""

import asyncio
import base64
import json
import os
import pickle
import subprocess

import numpy as np
import pytest

import croupier
from croupier import _ranks, pb
from test_client import PATHS, VOCAB, logits, params, write


def hot(token, count):
    rows = np.full((count, VOCAB), -10, np.float32)
    rows[:, token] = 10
    return rows


@pytest.mark.parametrize("path", PATHS)
def test_rows_are_sent_once(server, path):
    with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
        texts = [stream.open(**params(1))]
        rows = write(stream, [1], 0)
        stream.sample(rows, texts)
        with pytest.raises(ValueError, match=r"were sent .* take new ones with rows\(\)"):
            stream.sample(rows, texts)
        assert len(texts[0].tokens) == 1
        given_back = stream.rows(1)
        stream.discard(given_back)
        with pytest.raises(ValueError, match="discarded"):
            stream.sample(given_back, texts)
        # Its slot does not become free twice.
        stream.discard(given_back)
        taken = [stream.rows(1) for _ in range(2)]
        assert not np.shares_memory(taken[0].array, taken[1].array)
        for rows in taken:
            rows.array[:] = logits(1, 1)
            assert stream.sample(rows, texts)


@pytest.mark.parametrize("path", PATHS)
def test_rows_that_nobody_wrote_are_not_sent(server, path):
    """They contain an earlier step's logits, or whatever was in memory."""
    with croupier.connect(server.uds, VOCAB, data_path=path, slots=1) as stream:
        texts = [stream.open(temperature=0.0)]
        stream.sample(hot(3, 1), texts)
        rows = stream.rows(1)
        for send in stream.sample, stream.step, stream.submit, lambda rows, texts: stream.step((rows, stream.top_n(hot(3, 1), 5)), texts):
            with pytest.raises(ValueError, match=r"were not written.* write\(\) logits, or compute them in array"):
                send(rows, texts)
        # A failed write does not count as written.
        with pytest.raises(ValueError, match="shape"):
            rows.write(hot(3, 1)[:, 1:])
        with pytest.raises(ValueError, match="not written"):
            stream.sample(rows, texts)
        assert texts[0].tokens == [3]
        rows.write(hot(5, 1))
        stream.sample(rows, texts)
        rows = stream.rows(1)
        rows.array[:] = hot(7, 1)
        stream.sample(rows, texts)
        assert texts[0].tokens == [3, 5, 7]
        # Rows without any row need not be written.
        assert not stream.step(stream.rows(0), []).work


def test_asyncio_sends_no_rows_that_nobody_wrote(server):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            text, rows = stream.open(temperature=0.0), stream.rows(1)
            with pytest.raises(ValueError, match="not written"):
                await stream.sample(rows, [text])
            rows.array[:] = hot(5, 1)
            assert await stream.sample(rows, [text]) == [5]

    asyncio.run(run())


@pytest.mark.parametrize("path", PATHS)
def test_a_rank_sends_no_rows_that_nobody_wrote(server, path):
    with croupier.connect(server.uds, VOCAB, data_path=path, vocab_shards=[400, 600]) as stream:
        texts = [stream.open(temperature=0.0)]
        with croupier.attach(stream.shard_token, 1, data_path=path) as rank:
            for place, send in (rank, rank.send), (stream, lambda rows: stream.sample(rows, texts)):
                rows = place.rows(1)
                with pytest.raises(ValueError, match="not written"):
                    send(rows)
                rows.write(hot(7, 1)[:, :400] if place is stream else np.full((1, 600), -20, np.float32))
                send(rows)
            # The refused sends were not counted.
            assert rank.wait() == [] and texts[0].tokens == [7]


def test_the_place_of_rows_under_way_is_nobody_else_s(server):
    with croupier.connect(server.uds, VOCAB, data_path="shared_memory") as stream:
        texts = [stream.open(temperature=0.0) for _ in range(2)]
        rows, other = stream.rows(1), stream.rows(1)
        rows.array[:] = hot(1, 1)
        stream.submit(rows, texts[:1])
        stream.discard(rows)
        with pytest.raises(croupier.CroupierError, match="every slot"):
            stream.rows(1)
        other.array[:] = hot(7, 1)
        stream.submit(other, texts[1:])
        assert [stream.result().work[0].tokens[0].token_id for _ in range(2)] == [1, 7]


def test_a_rank_sends_rows_once(server):
    with croupier.connect(server.uds, VOCAB, vocab_shards=[400, 600]) as stream:
        texts = [stream.open(**params(1))]
        with croupier.attach(stream.shard_token, 1, data_path="shared_memory") as rank:
            rows = rank.rows(1)
            rows.array[:] = logits(1, 0)[400:]
            rank.send(rows)
            stream.sample(logits(1, 0)[:400], texts)
            assert rank.wait() == []
            with pytest.raises(ValueError, match="were sent"):
                rank.send(rows)
            rank.discard(rows)
            taken = [rank.rows(1) for _ in range(2)]
            assert not np.shares_memory(taken[0].array, taken[1].array)
            # The refused one was not counted.
            taken[0].array[:] = logits(1, 1)[400:]
            assert rank.send(taken[0]) == 2
            stream.sample(logits(1, 1)[:400], texts)


@pytest.mark.parametrize("path", PATHS)
def test_all_refused_texts_are_named_and_forgotten(server, path):
    with croupier.connect(server.uds, VOCAB, data_path=path, reconnect_within=10) as stream:
        good = stream.open(**params(1))
        bad = [stream.open(temperature=-1.0), stream.open(top_p=2.0)]
        with pytest.raises(croupier.OpenError, match="sequence 2: params.temperature.*sequence 3: params.top_p") as error:
            stream.sample(np.stack([logits(1, 0)] * 3), [good, *bad])
        assert sorted(error.value.failures) == [2, 3]
        assert list(stream.sequences) == [good.id]
        server.kill()
        server.start()
        stream.sample(logits(1, 1), [good])
        assert len(good.tokens) == 2


def test_a_text_that_is_refused_at_a_reconnect_fails_alone(server):
    with croupier.connect(server.uds, VOCAB, reconnect_within=10) as stream:
        good, long = stream.open(**params(1)), stream.open(prompt=[1] * 50, **params(2))
        stream.sample(np.stack([logits(1, 0), logits(2, 0)]), [good, long])
        server.kill()
        server.flags = ("--max-history-tokens=20",)
        server.start()
        with pytest.raises(croupier.OpenError, match="^sequence 2: prompt_token_ids: ") as error:
            stream.sample(np.stack([logits(1, 1), logits(2, 1)]), [good, long])
        assert (error.value.failures[long.id].status, error.value.failures[long.id].field) == ("RESOURCE_EXHAUSTED", "prompt_token_ids")
        assert list(error.value.failures) == [long.id] and list(stream.sequences) == [good.id]
        stream.sample(logits(1, 2), [good])
        assert (len(good.tokens), len(long.tokens)) == (3, 1)


def test_rows_and_texts_are_as_many(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(**params(text)) for text in (1, 2)]
        two = np.stack([logits(1, 0), logits(2, 0)])
        rows = write(stream, [1], 0)
        for given, count in ((logits(1, 0), 1), (two[:1].tolist(), 1), (np.concatenate([two, two]), 4), (rows, 1), (None, 0),
                             (stream.top_n(two[:1], 100), 1), ((two, stream.top_n(two[:1], 100)), 3)):
            with pytest.raises(ValueError, match=f"{count} rows for 2 sequences"):
                stream.sample(given, texts)
        assert stream.sample(two, texts)
        stream.sample(rows, texts[:1])

    async def run():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            with pytest.raises(ValueError, match="2 rows for 1 sequences"):
                await stream.sample(np.zeros((2, VOCAB), np.float32), [stream.open()])

    asyncio.run(run())


def test_texts_are_those_of_the_stream(server):
    with croupier.connect(server.uds, VOCAB) as stream, croupier.connect(server.uds, VOCAB) as another:
        own, closed, foreign = stream.open(**params(1)), stream.open(), another.open(**params(2))
        stream.close(closed)
        for text in (foreign, closed):
            # The text has the id of one that is open on this stream.
            with pytest.raises(ValueError, match=f"sequence {text.id} is not open on this stream"):
                stream.sample(logits(1, 0), [text])
            with pytest.raises(ValueError, match="is not open"):
                stream.step(logits(1, 0), [text, pb.Work(sequence_id=own.id, sample=pb.SampleWork(), first_row=0)])
        with pytest.raises(ValueError, match=f"sequence {foreign.id} does not belong to this stream: another stream opened it"):
            stream.close(foreign)
        # Closing the foreign text does not close the text with the same id on this stream.
        assert foreign.id in stream.sequences and list(another.sequences.values()) == [foreign]
        stream.close(closed)
        assert stream.sample(logits(1, 0), [own]) and another.sample(logits(2, 0), [foreign])


@pytest.mark.parametrize("options, said", [
    ({"slots": 0}, "slots is 0, must be in 1 ..= 4294967295"),
    ({"max_rows": 0}, "max_rows is 0, must be in 1 ..= 4294967295"),
    ({"max_rows": -1}, "max_rows is -1, must be in 1 ..= 4294967295"),
    ({"vocab_size": 0}, "vocab_size is 0, must be in 1 ..= 4294967295"),
    ({"vocab_size": 1 << 32}, "vocab_size is 4294967296, must be in 1 ..= 4294967295"),
    ({"slots": 1 << 60}, "slots is 1152921504606846976, must be in 1 ..= 4294967295"),
    ({"slots": 1 << 31, "max_rows": 1 << 31}, "max_rows is 2147483648 and slots 2147483648, which would take [0-9]{20,} bytes"),
])
def test_options_are_checked_before_anything_is_sent(options, said):
    with pytest.raises(ValueError, match=said):
        croupier.connect("unix:/none", **{"vocab_size": VOCAB, **options})


def test_listed_rows_are_checked(server):
    rows = [[1.0, 0.5]], [0.0]
    with pytest.raises(ValueError, match="beyond is 'drop', must be one of refuse, mark"):
        croupier.TopN([[1, 2]], *rows, beyond="drop")
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open()
        for ids, said in (([[-1, 2]], "has -1"), (np.array([[-1, 2]]), "has -1"), ([[1 << 32, 2]], "has 4294967296"), ([[1.5, 2]], "float64")):
            with pytest.raises(ValueError, match=r"ids\[0\] .*" + said):
                stream.sample(croupier.TopN(ids, *rows), [text])
        with pytest.raises(ValueError, match="beyond has 2 entries for 1 rows"):
            stream.sample(croupier.TopN([[1, 2]], *rows, beyond=["mark", "mark"]), [text])
        for n in (0, -3):
            with pytest.raises(ValueError, match=f"n is {n}, must be at least 1"):
                stream.top_n(logits(1, 0), n)
        with pytest.raises(ValueError, match="beyond is 'drop'"):
            stream.top_n(logits(1, 0), 5, beyond=["drop"])
        for work in ("x", None, 1):
            with pytest.raises(TypeError, match=r"work\[1\] is .*, must be a sequence of this stream or a croupier.pb.Work"):
                stream.step(logits(1, 0), [text, work])
        assert stream.sample(logits(1, 0), [text])


def test_biases_may_be_a_dict_of_token_ids(server):
    wire = [pb.LogitBias(token_id=5, bias=100.0), pb.LogitBias(token_id=7, bias=-1.0)]
    biases = {5: 100.0, 7: -1}
    with croupier.connect(server.uds, VOCAB, default_params={"logit_bias": {9: 200.0}}) as stream:
        for given in ({"logit_bias": biases}, {"logit_bias": {"5": 100, "7": -1}}, {"params": croupier.SamplingParams(logit_bias=biases)},
                      {"logit_bias": {np.int64(5): np.float32(100), 7: -1}}, {"params": {"logit_bias": biases}}, {"logit_bias": wire}):
            text = stream.open(**given)
            assert list(text.params.logit_bias) == wire
            assert stream.sample(logits(1, 0), [text]) == [5]
        assert stream.sample(logits(1, 0), [stream.open()]) == [9]
        for wrong in ({-1: 2.0}, {"five": 2.0}, {5: "much"}):
            with pytest.raises(ValueError, match="logit_bias is .*must be a dict of biases by token id"):
                stream.open(logit_bias=wrong)


def test_a_failure_has_a_status(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        with pytest.raises(croupier.RowError) as error:
            stream.sample(stream.top_n(logits(1, 1), 3), [stream.open(seed=1)])
        [failure] = error.value.failures.values()
        assert failure.status == "BEYOND_TOP_N"
        again = pickle.loads(pickle.dumps(failure))
        assert (again, again.status) == (failure, failure.status)


def test_an_error_names_some_texts_and_counts_the_others():
    few, many = ({text: "why not" for text in range(count)} for count in (8, 4000))
    assert str(croupier.OpenError(few)).count("why not") == 8 and "more" not in str(croupier.OpenError(few))
    error = croupier.RowError({text: croupier.Failure(why, "ALL_MASKED") for text, why in many.items()})
    assert str(error).endswith("sequence 7: why not; and 3992 more, see failures") and len(error.failures) == 4000


def test_what_is_no_text_no_rows_and_no_parameters_is_told(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=1)
        for wrong in text.id, "text", None:
            with pytest.raises(TypeError, match=f"sequence is {wrong!r}, must be a Sequence that `open` returned"):
                stream.close(wrong)
        for wrong in logits(1, 0), None:
            with pytest.raises(TypeError, match=f"rows is {type(wrong).__name__}, must be what rows\\(\\) returned"):
                stream.discard(wrong)
        for wrong, said in (("chat", "are str, .* did you mean preset='chat'"), (pb.Work(), "are Work"), ([1], "are list"),
                            (croupier.LogprobsParams(top_n=1), "are LogprobsParams")):
            said = f"parameters {said}" if isinstance(wrong, str) else f"parameters {said}, must be a croupier.SamplingParams, a croupier.pb.SamplingParams or a dict"
            with pytest.raises(TypeError, match=said):
                stream.open(wrong)
            with pytest.raises(TypeError, match=said):
                croupier.connect(server.uds, VOCAB, default_params=wrong)
        with pytest.raises(ValueError, match="logit_bias is .*must be a dict of biases by token id"):
            stream.open(logit_bias={5.5: 1.0})
        assert stream.sample(logits(1, 0), [text])
    with pytest.raises(TypeError, match="vocab_shards is 5, must be a list with the number of columns of each rank"):
        croupier.connect(server.uds, VOCAB, vocab_shards=5)
    # A numpy number is accepted.
    croupier.connect(server.uds, VOCAB, reconnect_within=np.float32(5)).end()


def test_what_is_no_rank_is_told(server):
    with croupier.connect(server.uds, VOCAB, vocab_shards=[400, 600]) as stream:
        for wrong in "1", 1.0, None:
            with pytest.raises(TypeError, match=f"rank is {wrong!r}, must be a whole number"):
                croupier.attach(stream.shard_token, wrong)
        facts = json.loads(base64.urlsafe_b64decode(stream.shard_token))
        for name in "address", "step":
            other = base64.urlsafe_b64encode(json.dumps({key: value for key, value in facts.items() if key != name}).encode()).decode()
            with pytest.raises(ValueError, match="token is not a shard token; give the `shard_token` of rank 0's stream"):
                croupier.attach(other, 1)


NO_NUMBERS = "5", None, [5], 1.5, -1, 1 << 64
NO_PLACES = "", 0, [], {}, [1], "12345", [1, 2, "3"], [1, 2, 3, 4, "5"], [1, 2, 3, 4, -5]


@pytest.mark.parametrize("name, wrong", [
    ("address", (None, 5, ["unix:/x"])), ("token", (None, 5, "xy", "abc", [])), ("dtype", (None, 5, "f64", "", ["f32"])),
    ("columns", (None, 5, {"400": 600}, "46", [400, "600"], [400, 600.0], [401, -1], [0, 0], [400, 1 << 32])),
    ("step", NO_NUMBERS), ("slots", NO_NUMBERS), ("max_rows", NO_NUMBERS), ("max_message_bytes", NO_NUMBERS),
    ("region", NO_PLACES), ("tokens", NO_PLACES),
])
def test_a_shard_token_that_was_damaged_is_told(name, wrong):
    facts = {"address": "unix:/none", "token": "ab" * 16, "columns": [400, 600], "dtype": "f32", "step": 1, "region": [1, 1, 64, 4096, 1008],
             "slots": 2, "max_rows": 64, "max_message_bytes": 1 << 20, "tokens": [0, 64, 8]}
    _ranks.RankSession(base64.urlsafe_b64encode(json.dumps(facts).encode()).decode(), 1, None, "auto")
    for value in wrong:
        token = base64.urlsafe_b64encode(json.dumps({**facts, name: value}).encode()).decode()
        for attach in croupier.attach, croupier.aio.attach:
            with pytest.raises(ValueError, match="^token is not a shard token; give the `shard_token` of rank 0's stream$"):
                attach(token, 1)


def test_rows_are_themselves_and_no_others(server):
    """Rows are not compared by content, which numpy would refuse as ambiguous."""
    with croupier.connect(server.uds, VOCAB) as stream:
        pair = [stream.rows(2), stream.rows(2)]
        for rows in pair:
            rows.array[:] = 0
        assert pair.index(pair[1]) == 1 and len(set(pair)) == 2 and pair[0] != pair[1]
        listed = [stream.top_n(np.stack([logits(1, 0)] * 2), 5) for _ in range(2)]
        assert listed.index(listed[1]) == 1 and len(set(listed)) == 2


@pytest.mark.parametrize("path", PATHS)
def test_logits_that_are_no_numbers_are_told_in_the_log_once_in_a_while(serve, path):
    server = serve(stderr=subprocess.PIPE)
    with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
        text = stream.open(**params(1))
        row = np.zeros((1, VOCAB), np.float32)
        row[0, -3:] = np.nan
        for _ in range(3):
            with pytest.raises(croupier.RowError, match="NaN"):
                stream.sample(row, [text])
    server.process.terminate()
    _, log = server.process.communicate(timeout=60)
    told = [line for line in log.decode().splitlines() if "bad logits" in line]
    assert len(told) == 1 and "step_id=" in told[0], log.decode()
    assert f'peer="unix, process {os.getpid()}" model="default"' in told[0], log.decode()
    assert f"sequence_id={text.id} row=0 column={VOCAB - 3} columns=3" in told[0], log.decode()


def test_of_a_row_that_lists_its_tokens_the_log_names_the_one_whose_logit_is_no_number(serve):
    server = serve(stderr=subprocess.PIPE)
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=1)
        rows = croupier.TopN(np.array([[7, 3, 11]]), np.array([[2.0, np.nan, np.nan]], np.float32), np.full(1, -np.inf, np.float32))
        with pytest.raises(croupier.RowError, match="NaN"):
            stream.sample(rows, [text])
    server.process.terminate()
    _, log = server.process.communicate(timeout=60)
    assert f"sequence_id={text.id} row=0 token_id=3 columns=2" in log.decode()


@pytest.mark.parametrize("given", [{"temperature": 10**400}, {"logit_bias": {5: 10**400}}, {"repetition_detection": {"min_count": 10**400}}])
def test_numbers_that_no_message_can_hold_are_named(given):
    with pytest.raises(ValueError, match=next(iter(given))):
        croupier.SamplingParams(**given).to_pb()
    with pytest.raises(IndexError, match="index is 5"):
        croupier.Draft(croupier.Sequence(1, pb.SamplingParams(), ()), [1]).path(5)


def test_credentials_are_those_of_grpc(server):
    with pytest.raises(TypeError, match="credentials is int"):
        croupier.connect("127.0.0.1:1", VOCAB, credentials=5)


def test_who_does_what_wrong_is_told_in_the_log_once_in_a_while(serve):
    """A metric says that there are such mistakes, and which. Only the log says where they come from."""
    server = serve("--log-level", "info", stderr=subprocess.PIPE)
    with croupier.connect(server.uds, VOCAB) as stream:
        text, idle = stream.open(seed=1), stream.open(seed=2, allowed_token_ids=[5])
        infinite, masked = np.zeros((1, VOCAB), np.float32), np.zeros((1, VOCAB), np.float32)
        infinite[0, 9], masked[0, 5] = np.inf, -np.inf
        for _ in range(3):
            with pytest.raises(croupier.RowError, match="infin"):
                stream.sample(infinite, [text])
            with pytest.raises(croupier.RowError):
                stream.sample(masked, [idle])
            with pytest.raises(croupier.OpenError):
                stream.open(temperature=-1.0)
                stream.sample(np.zeros((1, VOCAB), np.float32), [text])
        ids = text.id, idle.id
    for _ in range(3):
        with pytest.raises(croupier.CroupierError):
            croupier.connect(server.uds, 1 << 24)
    server.process.terminate()
    _, log = server.process.communicate(timeout=60)
    peer = f'peer="unix, process {os.getpid()}"'
    for said, where in [("bad logits", f"sequence_id={ids[0]} row=0 column=9 columns=1"),
                        ("work was not done", 'status="all_masked"'),
                        ("a sequence was not opened: params.temperature", 'status="invalid_argument"'),
                        ("refused: config.vocab_size", 'reason="INVALID_FIELD"')]:
        told = [line for line in log.decode().splitlines() if said in line]
        assert len(told) == 1 and peer in told[0] and where in told[0], (said, log.decode())
