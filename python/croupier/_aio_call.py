"""What asyncio's streams and ranks have in common about calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc

from ._regions import Region
from ._call import PART_WITHIN

#: What ends a call, or says that it has ended.
ENDED = (grpc.RpcError, asyncio.InvalidStateError, EOFError)

#: For the server's first headers, which something between may hold back until there is an answer, in seconds.
_HEADERS_WITHIN = 1.0


def is_cancelled() -> bool:
    """Whether somebody cancelled this task; Python 3.10 does not know."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is not None and cancelling() > 0


async def begin(call: Any) -> None:
    """Waits until the server took the call: a first write that meets its refusal would hide what that says."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(call.initial_metadata(), _HEADERS_WITHIN)


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


async def end_in_order(call: Any) -> None:
    """Ends a call in order, if the server does so soon: one that is cut off counts as cancelled there."""
    async def end() -> None:
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass

    try:
        await asyncio.wait_for(end(), PART_WITHIN)
    except (asyncio.TimeoutError, *ENDED):
        pass
