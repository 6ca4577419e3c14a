"""Handling of calls that asyncio's streams and ranks share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from ._regions import Region
from ._call import PART_WITHIN
from .errors import CroupierError

_Given = TypeVar("_Given")

#: Errors that end a call, or that say that it has ended.
ENDED = (grpc.RpcError, asyncio.InvalidStateError, EOFError)

#: Seconds to wait for the server's first headers. Something in between may hold them back until there is an answer.
_HEADERS_WITHIN = 1.0


def is_cancelled() -> bool:
    """Whether somebody cancelled this task. Python 3.10 does not know."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is not None and cancelling() > 0


class Entered:
    """A base for objects that connect in `async with`. They cannot be entered in any other way."""

    _entered_as: str

    # Hidden from type checkers, which report both mistakes without these methods.
    if not TYPE_CHECKING:
        def __enter__(self):
            raise TypeError(f"use it in `async with {self._entered_as}`, not in `with`")

        def __exit__(self, *_):
            pass

        def __await__(self):
            raise TypeError(f"it cannot be awaited; use it in `async with {self._entered_as}`, which connects")


class Home:
    """The call and the connection of a stream or rank, and the event loop in which they are. In another loop, they would
    neither continue nor end. They end when nothing refers to the stream or rank any more: gRPC itself keeps both for as
    long as the loop runs."""

    def __init__(self, what: str, owner: object) -> None:
        self._what = what
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        self.channel: Any = None
        self.call: Any = None
        self._ending: asyncio.Future[None] | None = None
        weakref.finalize(owner, self.leave).atexit = False

    def settle(self) -> None:
        """Makes the running loop the home."""
        self._loop = asyncio.get_running_loop()

    def is_elsewhere(self) -> bool:
        """Whether the running loop is another one."""
        return self._loop is not None and self._loop is not asyncio.get_running_loop()

    async def end(self, ending: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs `ending`, or waits for the one that runs. It continues if those who wait for it are cancelled: closing
        the connection under another one's read would raise a cancellation there, of a task that nobody cancelled."""
        if self._ending is None or self._ending.done():
            self._ending = _watched(ending())
        running = self._ending
        await asyncio.wait([running])
        if not running.cancelled():
            running.result()

    def leave(self) -> None:
        """Ends the call and the connection from anywhere, in their own loop."""
        call, channel, self.call, self.channel = self.call, self.channel, None, None
        if call is None or call.done() or self._loop is None or self._process != os.getpid():
            return

        def end() -> None:
            call.call.cancel()
            _watched(channel.close())

        # A loop that is closed runs nothing any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(end)

    def check(self) -> None:
        """Raises CroupierError if the running loop is another one."""
        if self.is_elsewhere():
            raise CroupierError(f"the {self._what} was connected in another event loop; connect a new one in this loop")


async def within(doing: Coroutine[Any, Any, _Given], most: float) -> _Given:
    """The result of `doing`, or asyncio.TimeoutError after `most` seconds. It differs from asyncio.wait_for before
    Python 3.12, which loses a cancellation that comes just as `doing` ends, and leaves an error in it that asyncio then
    reports as never retrieved."""
    task, is_late = _watched(doing), False
    try:
        await asyncio.wait([task], timeout=most)
    finally:
        # Nothing of it may continue after this.
        if not task.done():
            is_late = True
            task.cancel()
            await asyncio.wait([task])
    if is_late and task.cancelled():
        raise asyncio.TimeoutError
    return task.result()


async def begin(call: Any) -> None:
    """Waits until the server has accepted the call. If it refused the call and a first write came before that is known,
    the write's error would hide the reason."""
    with contextlib.suppress(asyncio.TimeoutError):
        await within(call.initial_metadata(), _HEADERS_WITHIN)


async def leased(lease: Callable[..., Region | str], *about: Any) -> Region | str:
    """Leases in a thread. If this is cancelled, the thread continues, and what it leases then is given back."""
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
    """A call whose reads and writes continue if the task that waits for them is cancelled, because gRPC would end the
    call otherwise. A message that is read then goes to the next reader. A message that is written then keeps its place
    before later ones."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._reading: asyncio.Future[Any] | None = None
        self._writing: asyncio.Future[Any] | None = None

    async def read(self) -> Any:
        """Returns the next message, or grpc.aio.EOF."""
        if self._reading is None:
            self._reading = _watched(self.call.read())
        reading = self._reading
        await asyncio.shield(reading)
        # A cancelled reader leaves the finished read for the next one. The read that found the end of the call stays,
        # so that all later readers find it too.
        if reading is self._reading:
            self._reading = None
        return reading.result()

    async def write(self, message: bytes) -> None:
        """Sends a message, even if this is cancelled."""
        self._writing = _watched(self._written(self._writing, message))
        await asyncio.shield(self._writing)

    async def _written(self, before: asyncio.Future[Any] | None, message: bytes) -> None:
        if before is not None:
            await before
        await self.call.write(message)

    async def done_writing(self) -> None:
        """Ends the writing side after the message that is being written."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
        await self.call.done_writing()

    def done(self) -> bool:
        """Whether the call has ended."""
        is_so: bool = self.call.done()
        return is_so


def _watched(doing: Coroutine[Any, Any, _Given]) -> asyncio.Future[_Given]:
    """Runs `doing` in a task of its own. asyncio would report an error in it if nobody waits for it any more."""
    task = asyncio.ensure_future(doing)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def end_in_order(call: Any) -> None:
    """Ends a call in order, if the server does so soon. The server counts a call that is cut off as cancelled."""
    async def end() -> None:
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass

    try:
        await within(end(), PART_WITHIN)
    except (asyncio.TimeoutError, *ENDED):
        pass
