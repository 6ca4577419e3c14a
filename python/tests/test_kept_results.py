"""An error about some texts of a step contains the results of the other texts, because they cannot be obtained again."""

import asyncio
import contextlib
import inspect
import pickle

import numpy as np
import pytest

import croupier
from croupier import Draft, pb
from test_client import VOCAB, logits
from test_split import BYTES, TEXTS, batch

REFUSAL = pb.Refusal(reason="QUEUE_FULL", message="no room", retry_after_ms=1)
DONE, FAILED = pb.ROW_STATUS_OK, pb.ROW_STATUS_UNKNOWN_SEQUENCE


@contextlib.asynccontextmanager
async def threads(*args, **options):
    with croupier.connect(*args, **options) as stream:
        yield stream, croupier.Speculation(stream)


@contextlib.asynccontextmanager
async def tasks(*args, **options):
    async with croupier.aio.connect(*args, **options) as stream:
        yield stream, croupier.AsyncSpeculation(stream)


async def done(given):
    """The result of a call, awaited if necessary."""
    return await given if inspect.isawaitable(given) else given


@pytest.fixture(params=[threads, tasks])
def connected(request):
    return request.param


def rows(count):
    return np.stack([logits(text, 0) for text in range(count)])


def opened(stream):
    """A text that can be opened and one that cannot."""
    return stream.open(prompt=[1, 2, 3], seed=3, logprobs={"top_n": 2}), stream.open(temperature=-1.0)


async def step(stream, work):
    await done(stream.step(rows(len(work)), work))


async def sample(stream, work):
    await done(stream.sample(rows(len(work)), work))


async def submit(stream, work):
    await done(stream.submit(rows(len(work)), work))
    await done(stream.result())


@pytest.mark.parametrize("call", [step, sample, submit])
def test_a_refused_opening_keeps_the_result_of_the_others(server, connected, call):
    async def run():
        async with connected(server.uds, VOCAB) as (stream, _):
            good, bad = opened(stream)
            with pytest.raises(croupier.OpenError, match="sequence 2: params.temperature") as error:
                await call(stream, [good, bad])
            opens, works = error.value.result.open, error.value.result.work
            assert [each.status for each in opens] == [pb.OPEN_STATUS_OK, pb.OPEN_STATUS_INVALID_ARGUMENT]
            assert [each.status for each in works] == [DONE, FAILED]
            [token] = works[0].tokens
            assert good.tokens == [token.token_id] and len(token.top_logprobs) == 2 and error.value.verified == []
            again = pickle.loads(pickle.dumps(error.value))
            assert (again.failures, again.result, str(again)) == (error.value.failures, error.value.result, str(error.value))

    asyncio.run(run())


def test_a_refused_opening_keeps_what_became_of_drafts(server, connected):
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            good, bad = opened(stream)
            tree = Draft(good, [3, 1, 4], [-1, -1, 1])
            with pytest.raises(croupier.OpenError) as error:
                await done(speculation.verify([Draft(bad), tree], rows(5)))
            [nothing, verified] = error.value.verified
            assert nothing is None and verified.draft is tree and verified.token_ids == good.tokens
            assert verified.last_token in ("recovered", "bonus") and verified.lossless and len(verified.accepted_path) == len(good.tokens) - 1
            assert verified.result == error.value.result.work[1] and verified.result.tokens[0].top_logprobs
            assert pickle.loads(pickle.dumps(error.value)).verified[1].accepted_path == verified.accepted_path

    asyncio.run(run())


def test_a_row_that_fails_keeps_the_result_of_the_others(server, connected):
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            texts, given = [stream.open(seed=seed, logprobs={"top_n": 2}) for seed in range(2)], rows(2)
            given[1] = np.nan
            for call in (lambda: stream.sample(given, texts)), (lambda: speculation.verify([Draft(text) for text in texts], given)):
                with pytest.raises(croupier.RowError) as error:
                    await done(call())
                works = error.value.result.work
                assert [each.status for each in works] == [DONE, pb.ROW_STATUS_NAN_LOGITS]
                assert texts[0].tokens[-1] == works[0].tokens[0].token_id and works[0].tokens[0].top_logprobs
                assert pickle.loads(pickle.dumps(error.value)).result == error.value.result

    asyncio.run(run())


def test_a_refused_opening_hides_no_row_of_another_text_that_failed(server, connected):
    async def run():
        async with connected(server.uds, VOCAB) as (stream, speculation):
            given = rows(3)
            given[1] = np.nan
            for call, kind in (stream.sample, croupier.RowError), (lambda logits, texts: speculation.verify([Draft(text) for text in texts], logits),
                                                                   croupier.SpeculationError):
                (good, bad), other = opened(stream), stream.open(seed=4)
                with pytest.raises(croupier.OpenError) as error:
                    await done(call(given, [good, other, bad]))
                why = error.value.__cause__
                assert type(why) is kind and error.value.failures.keys() == {bad.id}
                assert {number: failure.status for number, failure in why.failures.items()} == {other.id: "NAN_LOGITS"}
                assert why.result == error.value.result and len(good.tokens) == 1 and not other.tokens
                # Without such a row there is no cause: the row of a text that was not opened says nothing more.
                with pytest.raises(croupier.OpenError) as error:
                    await done(call(rows(3), [good, other, stream.open(temperature=-1.0)]))
                assert error.value.__cause__ is None

    asyncio.run(run())


def refusing(stream, number):
    """Makes the server have no room for the message with this number, as long as others are queued after it."""
    answer = stream._session.answer

    def instead(reply):
        told = pb.DecodeResponse.FromString(reply)
        if told.step.step_id == number:
            reply = pb.DecodeResponse(step=pb.StepResult(step_id=number, refusal=REFUSAL)).SerializeToString()
        return answer(reply)

    stream._session.answer = instead


def test_a_part_without_room_keeps_the_result_of_the_other_parts(serve, connected):
    async def run():
        async with connected(serve(*BYTES).uds, VOCAB, data_path="inline") as (stream, _):
            texts = [stream.open(seed=text, logprobs={"top_n": 1}) for text in TEXTS]
            await done(stream.step(None))
            # Two kinds of work that emit nothing are in the second part, for which there is no room.
            draft, score = pb.Work(sequence_id=texts[5].id, draft=pb.DraftWork()), pb.Work(score=pb.ScoreWork(token_ids=[1]))
            work = [*texts[:5], draft, score, *texts[6:-1]]
            refusing(stream, stream._session.numbers + 2)
            for _ in range(2):
                await done(stream.submit(batch(0), work))
            with pytest.raises(croupier.RowError, match=f"^sequence {texts[4].id}: refused: no room; sequence {texts[5].id}: ") as error:
                await done(stream.result())
            result, failures = error.value.result, error.value.failures
            there = [each.status == DONE for each in result.work]
            first, end = there.index(False), len(there) - there[::-1].index(False)
            assert (first, end) == (4, 8) and not any(there[first:end])
            assert {each.message for each in result.work[first:end]} == {"refused: no room"}
            assert {number: failure.status for number, failure in failures.items()} == {text.id: "REFUSED" for text in (*texts[4:6], texts[6])}
            for text, each in zip([*texts[:4], *texts[7:-1]], [*result.work[:4], *result.work[8:]]):
                assert text.tokens == [token.token_id for token in each.tokens] and each.tokens[0].top_logprobs
            assert texts[4].tokens == [] and len((await done(stream.result())).work) == len(work)

    asyncio.run(run())
