"""Cancellations at any time during the waits of the asyncio client."""

import asyncio

import croupier
import pytest
from croupier._aio_call import begin, within
from test_client import VOCAB, logits


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
