"""What asyncio's streams and ranks have in common about calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from ._regions import Region
from ._call import PART_WITHIN
from .errors import CroupierError

_Given = TypeVar("_Given")

#: What ends a call, or says that it has ended.
ENDED = (grpc.RpcError, asyncio.InvalidStateError, EOFError)

#: For the server's first headers, which something between may hold back until there is an answer, in seconds.
_HEADERS_WITHIN = 1.0


def is_cancelled() -> bool:
    """Whether somebody cancelled this task; Python 3.10 does not know."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is not None and cancelling() > 0


class Entered:
    """What connects where it is entered, by `async with` alone."""

    _entered_as: str

    # Not for type checkers, which see both mistakes without it.
    if not TYPE_CHECKING:
        def __enter__(self):
            raise TypeError(f"use it in `async with {self._entered_as}`, not in `with`")

        def __exit__(self, *_):
            pass

        def __await__(self):
            raise TypeError(f"it is not awaited: use it in `async with {self._entered_as}`, which connects")


class Home:
    """The event loop in which a stream or rank is connected: in another one gRPC's calls neither go on nor end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._loop: asyncio.AbstractEventLoop | None = None

    def settle(self) -> None:
        """Makes the running loop its own."""
        self._loop = asyncio.get_running_loop()

    def is_elsewhere(self) -> bool:
        """Whether the running loop is another one."""
        return self._loop is not None and self._loop is not asyncio.get_running_loop()

    def check(self) -> None:
        """Tells where it is used in another one."""
        if self.is_elsewhere():
            raise CroupierError(f"the {self._what} is of another event loop, in which it was connected; connect another one in this loop")


async def within(doing: Coroutine[Any, Any, _Given], most: float) -> _Given:
    """What this gives, or asyncio.TimeoutError after so many seconds. As asyncio.wait_for, which before Python 3.12 loses a cancellation that
    comes just as `doing` ends, and leaves an error in it that asyncio then tells of as one that nobody retrieved."""
    task, is_late = _watched(doing), False
    try:
        await asyncio.wait([task], timeout=most)
    finally:
        # Nothing of it goes on behind this.
        if not task.done():
            is_late = True
            task.cancel()
            await asyncio.wait([task])
    if is_late and task.cancelled():
        raise asyncio.TimeoutError
    return task.result()


async def begin(call: Any) -> None:
    """Waits until the server took the call: a first write that meets its refusal would hide what that says."""
    with contextlib.suppress(asyncio.TimeoutError):
        await within(call.initial_metadata(), _HEADERS_WITHIN)


async def leased(lease: Callable[..., Region | str], *about: Any) -> Region | str:
    """What a thread leases. It goes on where this is cancelled, and what it got then is given back."""
    leasing = asyncio.ensure_future(asyncio.to_thread(lease, *about))
    try:
        return await asyncio.shield(leasing)
    except asyncio.CancelledError:
        leasing.add_done_callback(_give_back)
        raise


def _give_back(leasing: asyncio.Future[Region | str]) -> None:
    if not leasing.cancelled() and not leasing.exception() and isinstance(region := leasing.result(), Region):
        region.close()


class Steady:
    """A call whose reads and writes go on where the task that waits for them is cancelled: gRPC would end the call. What is read then is the
    next reader's, and what is written has its place before all that is written later."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._reading: asyncio.Future[Any] | None = None
        self._writing: asyncio.Future[Any] | None = None

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF."""
        if self._reading is None:
            self._reading = _watched(self.call.read())
        reading = self._reading
        await asyncio.shield(reading)
        # Who is cancelled leaves it, though it be done. At the end of a call it stays: that is what all later ones find.
        if reading is self._reading:
            self._reading = None
        return reading.result()

    async def write(self, message: bytes) -> None:
        """Sends a message, also where this is cancelled."""
        self._writing = _watched(self._written(self._writing, message))
        await asyncio.shield(self._writing)

    async def _written(self, before: asyncio.Future[Any] | None, message: bytes) -> None:
        if before is not None:
            await before
        await self.call.write(message)

    async def done_writing(self) -> None:
        """Behind what is being written."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
        await self.call.done_writing()

    def done(self) -> bool:
        """Whether the call has ended."""
        is_so: bool = self.call.done()
        return is_so


def _watched(doing: Coroutine[Any, Any, _Given]) -> asyncio.Future[_Given]:
    """A task of its own. asyncio would tell of an error in it that nobody waits for any more."""
    task = asyncio.ensure_future(doing)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def end_in_order(call: Any) -> None:
    """Ends a call in order, if the server does so soon: one that is cut off counts as cancelled there."""
    async def end() -> None:
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass

    try:
        await within(end(), PART_WITHIN)
    except (asyncio.TimeoutError, *ENDED):
        pass
