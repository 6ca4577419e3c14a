"""Calls of gRPC for threads: how they begin, are read and end, whatever a signal's handler interrupts."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

#: Seconds that the server has to end a stream in order.
PART_WITHIN = 1.0
# How long gRPC's threads may take to end; they take some milliseconds.
_END_WITHIN = 2.0
_DIALLING = threading.Lock()


def dial(method: Any, outbox: queue.SimpleQueue[bytes | None], metadata: Any, threads: list[threading.Thread]) -> Iterator[bytes]:
    """Begins a call. `threads` get those that gRPC runs for it."""
    # One after another, so that none takes the threads of another's call for its own.
    with _DIALLING:
        before = set(threading.enumerate())
        replies: Iterator[bytes] = method(iter(outbox.get, None), metadata=metadata)
        threads += [thread for thread in threading.enumerate() if thread not in before and _is_grpcs(thread)]
        return replies


def _is_grpcs(thread: threading.Thread) -> bool:
    """Whether gRPC runs it. The program may start threads of its own meanwhile."""
    return thread.daemon and str(getattr(getattr(thread, "_target", None), "__module__", None)).startswith("grpc.")


def following(replies: Iterator[bytes]) -> bytes:
    """The next reply. Where a signal's handler ends the wait for it at the wrong moment, Python says that a lock of gRPC's is not held;
    this says what the handler did."""
    try:
        return next(replies)
    except BaseException as error:
        unlock(replies)
        if isinstance(error, RuntimeError) and error.__context__ is not None:
            raise error.__context__ from None
        raise


def is_active(call: Any) -> bool:
    """Whether a call has not ended."""
    try:
        return call.is_active()
    except BaseException:
        unlock(call)
        raise


def unlock(call: Any) -> None:
    """Gives back the lock of a call that this thread still has where a signal's handler ended a `with` of gRPC's between taking the lock
    and going in: gRPC's own threads would wait for it for ever, and with them whoever hangs up."""
    condition = getattr(getattr(call, "_state", None), "condition", None)
    is_owned = getattr(condition, "_is_owned", lambda: False)
    while is_owned():
        condition.release()


class Limit:
    """Cancels a call that has not answered within so many seconds."""

    def __init__(self, call: Any, seconds: float) -> None:
        self._call, self._seconds, self._is_over = call, seconds, False
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._end)
        self._timer.daemon = True

    def __enter__(self) -> Limit:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def said(self) -> str:
        """What to say where it was cancelled for that."""
        return no_answer(self._seconds) if self._is_over else ""

    def _end(self) -> None:
        self._is_over = True
        self._call.cancel()


def no_answer(seconds: float) -> str:
    """What is said of a server that took a connection and nothing else."""
    return f"the server did not answer within {seconds:.3g} s"


def end_in_order(outbox: queue.SimpleQueue[bytes | None], replies: Any) -> None:
    """Ends a call in order, if the server does so soon: one that is cut off counts as cancelled there."""
    outbox.put(None)
    try:
        with Limit(replies, PART_WITHIN):
            while True:
                following(replies)
    except (grpc.RpcError, StopIteration):
        pass


def hang_up(owner: int, outbox: queue.SimpleQueue[bytes | None], channel: grpc.Channel, threads: list[threading.Thread]) -> None:
    """Ends a call and its connection, and waits for gRPC's threads: one that the interpreter stops at its end may hold a lock for which
    the call waits when it is freed after that, and the program would never end. Only the process `owner` does so: in a fork of it there
    are no such threads, and it would wait for ever."""
    if os.getpid() != owner:
        return
    outbox.put(None)
    channel.close()
    give_up = time.monotonic() + _END_WITHIN
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, give_up - time.monotonic()))
