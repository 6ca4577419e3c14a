"""The arguments for a text are checked where they are given, and a mistake does not stop other texts."""

import gc
import pickle
import re

import numpy as np
import pytest

import croupier
from croupier import Draft, pb
from test_client import PATHS, VOCAB, logits, params, text_of, write

MOST = (1 << 32) - 1


@pytest.mark.parametrize("given, said", [
    ({"prompt": [-1]}, rf"prompt\[0\] is -1, must be in 0 \.\.= {MOST}$"),
    ({"prompt": [5, "a"]}, r"prompt\[1\] is 'a', must be a whole number"),
    ({"prompt": np.array([1.0, 2.0])}, r"prompt\[0\] is 1.0, must be a whole number"),
    ({"prompt": np.array([[1, 2]])}, r"prompt\[0\] is \[1, 2\], must be a whole number"),
    ({"prompt": [5, True]}, r"prompt\[1\] is True, must be a token id, a whole number"),
    ({"output": np.array([False])}, r"output\[0\] is False, must be a token id"),
    ({"prompt": "text"}, "prompt is str, must be a list of token ids"),
    ({"prompt": 5}, "prompt is 5, must be a list of token ids"),
    ({"prompt": np.int64(5)}, "prompt is .*5.*, must be a list of token ids"),
    ({"output": [7, 1 << 32]}, rf"output\[1\] is 4294967296, must be in 0 \.\.= {MOST}"),
    ({"sequence_id": -1}, "sequence_id is -1, must be in 0"),
    ({"sequence_id": 1 << 64}, "sequence_id is 18446744073709551616, must be in 0"),
    ({"sequence_id": "a"}, "sequence_id is 'a', must be a whole number"),
    ({"sequence_id": True}, "sequence_id is True, must be a whole number"),
    ({"sampler_state": 5}, "sampler_state is 5, must be a SamplerState"),
])
def test_a_text_is_checked_when_it_is_opened(server, given, said):
    with croupier.connect(server.uds, VOCAB) as stream:
        good = stream.open(**params(1))
        with pytest.raises((ValueError, TypeError), match=said):
            stream.open(**given)
        assert list(stream.sequences) == [good.id]
        assert stream.sample(logits(1, 0), [good])


def test_token_ids_come_in_many_forms(server):
    with croupier.connect(server.uds, VOCAB, eos_token_ids=np.array([9])) as stream:
        forms = ([1, 2], (1, 2), range(1, 3), iter([1, 2]), np.array([1, 2]), np.array([1, 2], np.uint8), [np.int64(1), np.uint32(2)])
        texts = [stream.open(prompt=form, output=list(form) if not hasattr(form, "__next__") else [1, 2], seed=3) for form in forms]
        assert all(text.prompt == (1, 2) and text.tokens == [1, 2] for text in texts)
        assert all(type(token) is int for text in texts for token in (*text.prompt, *text.tokens))
        assert len(set(stream.sample(np.stack([logits(1, 0)] * len(texts)), texts))) == 1
        assert stream.open(sequence_id=np.int64(77)).id == 77
        # Failed calls had no effect: the ids continue.
        assert stream.open().id == 78


@pytest.mark.parametrize("options, said", [
    ({"vocab_size": "100"}, "vocab_size is '100', must be a whole number"),
    ({"max_rows": 2.5}, "max_rows is 2.5, must be a whole number"),
    ({"eos_token_ids": [-1]}, r"eos_token_ids\[0\] is -1, must be in 0"),
    ({"eos_token_ids": 5}, "eos_token_ids is 5, must be a list of token ids"),
    ({"vocab_shards": [500, 0]}, r"vocab_shards\[1\] is 0, must be in 1 ..= 4294967295"),
    ({"vocab_size": True}, "vocab_size is True, must be a whole number"),
    ({"max_rows": True}, "max_rows is True, must be a whole number"),
    ({"slots": True}, "slots is True, must be a whole number"),
    ({"vocab_shards": [999, True]}, r"vocab_shards\[1\] is True, must be a whole number"),
    ({"reconnect_within": True}, "reconnect_within is True, must be a number of seconds, at least 0"),
    ({"model": "\ud800"}, r"model is '\\ud800', must be valid Unicode; '\\ud800' is half of a character"),
])
def test_options_are_checked(options, said):
    with pytest.raises((ValueError, TypeError), match=said):
        croupier.connect("unix:/none", **{"vocab_size": VOCAB, **options})


def test_true_is_no_count(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text, speculation = stream.open(**params(1)), croupier.Speculation(stream)
        for name, call in (("n", lambda: stream.top_n(logits(1, 0), True)), ("count", lambda: stream.rows(True)),
                           ("deadline_ms", lambda: stream.sample(logits(1, 0), [text], deadline_ms=True)),
                           ("at_most", lambda: speculation.chain([text], list, True)),
                           ("parents[0]", lambda: speculation.tree([text], list, [False]))):
            with pytest.raises(TypeError, match=rf"{re.escape(name)} is (True|False), must be a whole number"):
                call()
        with pytest.raises(ValueError, match=r"traceparent is '\\ud800', must be valid Unicode"):
            stream.sample(logits(1, 0), [text], traceparent="\ud800")
        assert stream.sample(logits(1, 0), [text])


def test_rows_and_work_are_as_many(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(seed=seed) for seed in range(2)]
        rows = np.stack([logits(1, at) for at in range(9)])
        speculation = croupier.Speculation(stream)
        drafts = [Draft(texts[0], [1, 2]), Draft(texts[1], [3])]
        for count in (9, 4, 6):
            for wrong in (rows[:count], stream.top_n(rows[:count], 10)):
                with pytest.raises(ValueError, match=rf"logits have {count} rows, these drafts take 5 \(3 \+ 2\)$"):
                    speculation.verify(drafts, wrong)
        for wrong, count in ((rows[:5], 5), (rows[:1], 1), (None, 0)):
            for send in (stream.step, stream.submit):
                with pytest.raises(ValueError, match=rf"logits have {count} rows, this work takes 2 \(1 \+ 1\)"):
                    send(wrong, texts)
        assert not stream._session.waiting and not any(text.tokens for text in texts)
        speculation.verify(drafts, rows[:5])
        # Works that name their rows may share rows and leave some out.
        works = [pb.Work(sequence_id=text.id, sample=pb.SampleWork(), first_row=3) for text in texts]
        assert [work.status for work in stream.step(rows, works).work] == [pb.ROW_STATUS_OK] * 2


@pytest.mark.parametrize("path", PATHS)
def test_rows_that_are_never_sent_give_their_slots_back(server, path):
    with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
        text = stream.open(prompt=[1, 2], **params(1))

        def step(position, fails):
            rows = stream.rows(1)
            if fails:
                raise RuntimeError("the model's")
            rows.write(logits(1, position))
            stream.sample(rows, [text])

        for position in range(4):
            for _ in range(5):
                with pytest.raises(RuntimeError):
                    step(position, True)
                with pytest.raises(ValueError, match="rows for 2 sequences"):
                    stream.sample(write(stream, [1], position), [text, text])
            gc.collect()
            step(position, False)
        assert text.tokens == text_of(server, 4, "inline", [1])[0]
        # Slots of steps in flight are returned once.
        for position in (4, 5):
            stream.submit(write(stream, [1], position), [text])
            gc.collect()
        for _ in range(2):
            stream.result()
        assert sorted(stream._session.free) == ([0, 1] if path == "shared_memory" else [])


def test_what_takes_the_slots_is_said(server):
    with croupier.connect(server.uds, VOCAB, data_path="shared_memory") as stream:
        text = stream.open(**params(1))
        stream.submit(logits(1, 0), [text])
        held = stream.rows(1)
        for use in (lambda: stream.rows(1), lambda: stream.submit(logits(1, 1), [text])):
            with pytest.raises(croupier.CroupierError, match="every slot is taken: 1 by steps without a result, 1 by rows that were not sent"):
                use()
        del held
        stream.submit(logits(1, 1), [text])
        with pytest.raises(ValueError, match="count is -1, must be at least 0"):
            stream.rows(-1)


def test_a_rank_s_rows_give_their_slots_back(server):
    with croupier.connect(server.uds, VOCAB, vocab_shards=[400, 600]) as stream:
        with croupier.attach(stream.shard_token, 1, data_path="shared_memory") as rank:
            for _ in range(5):
                rank.rows(1)
            held = [rank.rows(1) for _ in range(2)]
            with pytest.raises(croupier.CroupierError, match="every slot"):
                rank.rows(1)
            del held
            with pytest.raises(ValueError, match="count is -1"):
                rank.rows(-1)


@pytest.mark.parametrize("own, defaults, output, reason", [
    ({"max_tokens": 2}, None, [1, 2], "max_tokens"),
    ({"max_tokens": 2}, None, [1, 2, 3], "max_tokens"),
    ({}, {"max_tokens": 2}, [1, 2], "max_tokens"),
    ({"max_tokens": 3}, {"max_tokens": 2}, [1, 2], None),
    ({"max_tokens": 0}, {"max_tokens": 2}, [1, 2], None),
    ({"max_tokens": 3}, None, [1, 2], None),
    ({"stop_token_ids": [2]}, None, [1, 2], "stop_token"),
    ({"stop_token_ids": [2]}, None, [2, 1], None),
    ({"stop_token_ids": [9]}, None, [1, 9], "stop_token"),
    ({}, {"stop_token_ids": [2]}, [2], "stop_token"),
    ({"stop_token_sequences": [{"token_ids": [1, 2]}, {"token_ids": [5]}], "min_tokens": 0}, None, [3, 1, 2], "stop_sequence"),
    ({"stop_token_sequences": [{"token_ids": [1, 2]}, {"token_ids": [5]}]}, None, [1, 2, 3], None),
    ({"stop_token_sequences": [[1, 2]], "max_tokens": 3}, None, [3, 1, 2], "stop_sequence"),
    ({"stop_token_sequences": [[1, 2]], "max_tokens": 4}, None, [1, 2, 3, 4], "max_tokens"),
    ({"stop_token_sequences": [[1, 2], (5,)], "min_tokens": 0}, None, [3, 1, 2], "stop_sequence"),
    ({"stop_token_sequences": [{"token_ids": [1, 2]}]}, None, [2], None),
    ({"stop_token_sequences": [{"token_ids": [1, 2]}], "min_tokens": 3}, None, [1, 2], None),
    ({"max_tokens": 2}, {"stop_token_sequences": [croupier.TokenSequence(token_ids=[1, 2])], "min_tokens": 2}, [1, 2], "stop_sequence"),
    ({}, None, [1, 9], "eos"),
    ({"ignore_eos": True}, None, [1, 9], None),
    ({"max_tokens": 2}, None, [1, 9], "eos"),
    ({"max_tokens": 2}, None, [], None),
])
def test_a_text_that_has_ended_says_so_at_once(server, own, defaults, output, reason):
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[9], default_params=defaults) as stream:
        text = stream.open(output=output, seed=1, **own)
        assert text.finish_reason == reason and text.tokens == output
        assert list(stream.sequences) == ([] if reason else [text.id])
        if reason:
            with pytest.raises(ValueError, match=f"sequence {text.id} has ended, finish_reason is '{reason}'"):
                stream.sample(logits(1, 0), [text])
            other = stream.open()
            assert other.id != text.id
            # The server refuses it too.
            forced = stream._session
            text.finish_reason = None
            forced.sequences[text.id] = text
            forced.opening[text.id] = text
            with pytest.raises(croupier.RowError, match="has ended"):
                stream.sample(logits(1, 0), [text])
        else:
            assert stream.sample(logits(1, 0), [text])


def test_drafts_are_checked(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text, speculation = stream.open(seed=1), croupier.Speculation(stream)
        draft = Draft(text, np.array([1, 2]), parents=np.array([-1, -1]))
        assert (draft.token_ids, draft.parents) == ([1, 2], [-1, -1])
        speculation.verify([draft], np.stack([logits(1, at) for at in range(3)]))
        for wrong, said in ((lambda: Draft(text, [-1]), r"token_ids\[0\] is -1"), (lambda: Draft(text, [1], [1.5]), r"parents\[0\] is 1.5"),
                            # In a cycle, the path would have no end.
                            (lambda: Draft(text, [1, 2], [1, 0]), r"parents\[0\] is 1, must be in -1 ..= -1"),
                            (lambda: Draft(text, [1, 2], [-1]), "parents has 1 entries, must have one for each of 2 draft tokens"),
                            (lambda: Draft(5), "sequence is 5, must be a Sequence that `open` returned"),
                            (lambda: speculation.verify([text], logits(1, 0)), r"drafts\[0\] is Sequence, must be a Draft; Draft\(text\)"),
                            (lambda: speculation.chain([text, stream.open()], lambda pairs: np.zeros((1, VOCAB))), "returned 1 rows for 2 texts"),
                            (lambda: speculation.chain([text], lambda pairs: None), "the draft model returned NoneType, must return a row of logits for each of 1 texts$"),
                            (lambda: speculation.chain([text, stream.open()], lambda pairs: [[0.0] * VOCAB, [0.0]]),
                             rf"returned rows of the shapes \({VOCAB},\), \(1,\), must return rows of equal length"),
                            (lambda: speculation.chain([text], logits(1, 0)), "model is ndarray, must be a function that takes pairs"),
                            (lambda: speculation.chain([text], never, token_masks=[None]), "token_masks is list, must be a function that takes pairs"),
                            (lambda: speculation.chain([text], None), "model is NoneType, must be a function that takes pairs"),
                            (lambda: croupier.AsyncSpeculation(stream), "; Speculation needs a stream from croupier.connect, AsyncSpeculation one from croupier.aio.connect$"),
                            (lambda: croupier.Speculation(5), "stream is 5; Speculation needs a stream from croupier.connect"),
                            (lambda: speculation.tree([text], never, 3), "parents is int, must be a list of whole numbers"),
                            (lambda: speculation.told([text], [5]), "result is list, must be the StepResult that `step` or `result` returned"),
                            (lambda: speculation.length(text, 2.5), "at_most is 2.5, must be a whole number"),
                            (lambda: speculation.length([text], 2), "must be a Sequence that `open` returned")):
            with pytest.raises((ValueError, TypeError), match=said):
                wrong()


def test_a_model_that_is_to_be_waited_for_is_told_where(server):
    async def model(pairs):
        raise AssertionError("not waited for")

    with croupier.connect(server.uds, VOCAB) as stream:
        with pytest.warns(RuntimeWarning, match="never awaited"), pytest.raises(TypeError, match="returned coroutine, .*; an async model needs AsyncSpeculation$"):
            croupier.Speculation(stream).chain([stream.open()], model)
            gc.collect()


def never(pairs):
    raise AssertionError("the model is not asked")


def test_failures_of_drafts_have_a_status_and_errors_can_be_pickled(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts, speculation = [stream.open(seed=seed) for seed in range(2)], croupier.Speculation(stream)
        rows = np.stack([logits(1, at) for at in range(4)])
        rows[2] = np.nan
        with pytest.raises(croupier.SpeculationError) as verifying:
            speculation.verify([Draft(text, [1]) for text in texts], rows)
        assert verifying.value.failures[texts[1].id].status == "NAN_LOGITS"
        with pytest.raises(croupier.SpeculationError) as drafting:
            speculation.chain(texts, lambda pairs: np.full((len(pairs), VOCAB), np.nan, np.float32))
        assert [failure.status for failure in drafting.value.failures.values()] == ["NAN_LOGITS"] * 2
        opening = croupier.OpenError({3: "params.top_p: is wrong"})
        for error in (verifying.value, drafting.value, opening, croupier.RowError(verifying.value.failures)):
            again = pickle.loads(pickle.dumps(error))
            assert type(again) is type(error) and str(again) == str(error) and again.failures == error.failures
        [kept, _] = pickle.loads(pickle.dumps(verifying.value)).verified
        assert kept.token_ids == texts[0].tokens == kept.sequence.tokens and kept.sequence.params == texts[0].params
        assert kept.result == verifying.value.verified[0].result


@pytest.mark.parametrize("path", PATHS)
def test_rows_that_no_work_uses_are_left_out(server, path):
    with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
        texts = [stream.open(**params(text)) for text in (1, 2)]
        rows = np.concatenate([logits(text, 0).reshape(1, VOCAB) for text in (1, 2, 3, 4)])
        works = [pb.Work(sequence_id=text.id, sample=pb.SampleWork(), first_row=at) for at, text in enumerate(texts)]
        result = stream.step(rows, works)
        others = [stream.open(**params(text)) for text in (1, 2)]
        assert [work.tokens[0].token_id for work in result.work] == stream.sample(rows[:2], others)
