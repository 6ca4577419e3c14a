"""Cancellations at any time during the waits of the asyncio client."""

import asyncio
import signal

import grpc
import pytest

import croupier
from croupier import _aio_call
from croupier._aio_call import begin, within
from test_client import VOCAB, logits
from test_leaving import SHARDS, stop


class Refused(Exception):
    """An error with which a call may end."""


@pytest.mark.parametrize("outcome", [None, Refused], ids=["done", "failed"])
@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_that_comes_as_the_work_ends_is_not_lost(outcome, turns):
    told, ran = [], []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        go = asyncio.Event()

        class Call:
            async def initial_metadata(self):
                await go.wait()
                ran.append(True)
                if outcome is not None:
                    raise outcome

        async def connecting():
            await begin(Call())
            await asyncio.sleep(60)

        task = asyncio.create_task(within(connecting(), 60))
        for _ in range(5):
            await asyncio.sleep(0)
        go.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled = task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        assert done, "the cancellation was lost: the task goes on"
        if cancelled:
            assert task.cancelled()
        else:
            with pytest.raises(Refused):
                task.result()

    asyncio.run(main())
    assert told == [] and (ran == [True] or turns == 0)


def test_what_takes_too_long_is_cancelled_before_that_is_told():
    async def main():
        ended = []

        async def work():
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0)
                ended.append(True)

        with pytest.raises(asyncio.TimeoutError):
            await within(work(), 0.01)
        assert ended == [True]
        with pytest.raises(Refused):
            await within(failing(), 5)
        assert await within(asyncio.sleep(0, "given"), 5) == "given"
        # gRPC raises this in a task that reads from a call which another task ended. It is not a timeout.
        with pytest.raises(asyncio.CancelledError):
            await within(ended_elsewhere(), 5)

    async def failing():
        raise Refused

    async def ended_elsewhere():
        raise asyncio.CancelledError

    asyncio.run(main())


def test_there_is_nothing_to_continue_if_a_cancelled_step_had_not_begun(server):
    async def main():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            text = stream.open(seed=1)
            await stream.sample(logits(1, 0), [text])
            await stream.submit(logits(1, 1), [text])
            await stream.give_up()
            server.kill()
            # It connects again first, which takes until there is a server.
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(stream.sample(logits(1, 1), [text]), 0.1)
            with pytest.raises(croupier.CroupierError, match="a step that was cancelled or interrupted had not begun yet, or was already complete"):
                await stream.result()
            server.start()
            assert len(text.tokens) == 1 and await stream.sample(logits(1, 1), [text]) == text.tokens[1:]

    asyncio.run(main())


async def begun(server, of):
    """A stream or rank, with something sent."""
    stream = await croupier.aio.connect(server.uds, VOCAB, vocab_shards=SHARDS if of == "rank" else None).__aenter__()
    if of == "stream":
        await stream.sample(logits(1, 0), [stream.open(seed=1)])
        return stream, stream
    return stream, await croupier.aio.attach(stream.shard_token, 1).__aenter__()


@pytest.mark.parametrize("of", ["stream", "rank"])
def test_tasks_that_end_one_at_a_time_are_not_cancelled_by_each_other(server, of):
    async def run():
        for _ in range(5):
            zero, one = await begun(server, of)
            assert await asyncio.gather(one.end(), one.__aexit__(None, None, None), one.end(), return_exceptions=True) == [None] * 3
            await zero.end()

    asyncio.run(run())


@pytest.mark.parametrize("of", ["stream", "rank"])
def test_an_end_goes_on_if_one_who_waits_for_it_is_cancelled(server, monkeypatch, of):
    monkeypatch.setattr(_aio_call, "PART_WITHIN", 60)

    async def run():
        zero, one = await begun(server, of)
        stop(server)
        ends = [asyncio.create_task(one.end()) for _ in range(3)]
        await asyncio.sleep(0.1)
        ends[0].cancel()
        await asyncio.wait(ends, timeout=0.2)
        assert [end.done() for end in ends] == [True, False, False] and ends[0].cancelled()
        server.process.send_signal(signal.SIGCONT)
        assert await asyncio.wait_for(asyncio.gather(*ends[1:], one.end()), 30) == [None] * 3
        assert await one._home.call.call.code() == grpc.StatusCode.OK, "it was not cut off"
        await zero.end()

    asyncio.run(run())
