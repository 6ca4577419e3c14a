"""Calls of gRPC for threads: how they begin, are read and end, whatever a signal's handler interrupts."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

from .errors import CroupierError

#: Seconds that the server has to end a stream in order.
PART_WITHIN = 1.0
# How long gRPC's threads may take to end; they take some milliseconds.
_END_WITHIN = 2.0
_DIALLING = threading.Lock()
_HOLDING = threading.Condition.__enter__.__code__, threading.Condition.__exit__.__code__


def _forked() -> None:
    """In a fork nobody gives back a lock that another thread of its parent had."""
    global _DIALLING
    _DIALLING = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def dial(method: Any, outbox: queue.SimpleQueue[bytes | None], metadata: Any, threads: list[threading.Thread]) -> Iterator[bytes]:
    """Begins a call. `threads` get those that gRPC runs for it, and the one that begins it: a call that a signal's handler left half begun
    would have none that ends it, and who hangs up would wait for that for ever. Handlers run in the main thread alone."""
    begun: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def begin() -> None:
        # One after another, so that none takes the threads of another's call for its own.
        with _DIALLING:
            before = set(threading.enumerate())
            try:
                begun.put((method(iter(outbox.get, None), metadata=metadata), None))
            except BaseException as error:
                begun.put((None, error))
            finally:
                threads.extend(thread for thread in threading.enumerate() if thread not in before and _is_grpcs(thread))

    threads.append(threading.Thread(target=begin, daemon=True))
    start(threads[0])
    replies: Iterator[bytes]
    replies, error = begun.get()
    if error is not None:
        raise error
    return replies


def _is_grpcs(thread: threading.Thread) -> bool:
    """Whether gRPC runs it. The program may start threads of its own meanwhile."""
    return thread.daemon and str(getattr(getattr(thread, "_target", None), "__module__", None)).startswith("grpc.")


def start(thread: threading.Thread) -> None:
    """Starts a thread."""
    try:
        thread.start()
    except RuntimeError as error:
        _tell(error)
        raise


def following(replies: Iterator[bytes]) -> bytes:
    """The next reply."""
    try:
        return next(replies)
    except BaseException as error:
        _unlock(error, replies)
        _tell(error)
        raise


def is_active(call: Any) -> bool:
    """Whether a call has not ended."""
    try:
        is_so: bool = call.is_active()
        return is_so
    except BaseException as error:
        _unlock(error, call)
        raise


def _tell(error: BaseException) -> None:
    """Where a signal's handler ends a wait at the wrong moment, Python says that a lock is not held; this says what the handler did."""
    if isinstance(error, RuntimeError) and "lock" in str(error) and error.__context__ is not None:
        raise error.__context__ from None


def _unlock(error: BaseException, call: Any) -> None:
    """Gives back locks that this thread still has where a signal's handler ended a `with` of gRPC's between taking the lock and going in, or
    between going out and giving it back: gRPC's own threads would wait for it for ever, and with them whoever hangs up. It may be a call's
    or the connection's."""
    conditions: list[Any] = [getattr(getattr(call, "_state", None), "condition", None)]
    told: BaseException | None = error
    while told is not None:
        place = told.__traceback__
        while place is not None:
            if place.tb_frame.f_code in _HOLDING:
                conditions.append(place.tb_frame.f_locals["self"])
            place = place.tb_next
        # Of the handler's, where what it raised led to another.
        told = told.__context__
    for condition in conditions:
        while getattr(condition, "_is_owned", bool)():
            condition.release()


class Turn:
    """Whose turn it is on a stream or at a rank's answers: one at a time."""

    def __init__(self, who: str, of: str = "stream", amid: str = "step") -> None:
        self._lock, self._who, self._of, self._amid = threading.Lock(), who, of, amid

    def mine(self) -> threading.Lock:
        """What a `with` holds meanwhile: Python's own lock, since a signal's handler may end methods of ours before they give it back."""
        if not self.is_free():
            raise CroupierError(f"another {self._who} is in the middle of a {self._amid}; a {self._of} is for one {self._who} at a time")
        return self._lock

    def is_free(self) -> bool:
        """Whether nobody is in the middle of it."""
        return not self._lock.locked()


class Limit:
    """Cancels a call that has not answered within so many seconds."""

    def __init__(self, call: Any, seconds: float) -> None:
        self._call, self._seconds, self._is_over = call, seconds, False
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._end)
        self._timer.daemon = True

    def __enter__(self) -> Limit:
        start(self._timer)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def said(self) -> str:
        """What to say where it was cancelled for that."""
        return no_answer(self._seconds) if self._is_over else ""

    def _end(self) -> None:
        self._is_over = True
        self._call.cancel()


def is_gone(error: BaseException | None) -> bool:
    """Whether the server went away, so that another try may find it back."""
    if isinstance(error, (StopIteration, EOFError)):
        return True
    if not isinstance(error, grpc.RpcError):
        return False
    return is_from_core(error) or bool(error.code() == grpc.StatusCode.UNAVAILABLE)


def is_from_core(error: grpc.RpcError) -> bool:
    """Whether it is what asyncio's gRPC says of a write to a call that has ended; no server says it."""
    return bool(error.code() == grpc.StatusCode.INTERNAL and error.details() == "Internal error from Core")


def may_pass(error: BaseException | None) -> bool:
    """Whether connecting anew may work later: the server is not there yet, or still full of what was there before."""
    full = isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    return full or is_gone(error)


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
    except RuntimeError as error:
        # From Python 3.12 on no thread begins once the interpreter ends, and nothing would end the wait: the call is cut off.
        if "new thread" not in str(error):
            raise


def hang_up(owner: int, outbox: queue.SimpleQueue[bytes | None], channel: grpc.Channel, threads: list[threading.Thread]) -> None:
    """Ends a call and its connection, and waits for gRPC's threads: one that the interpreter stops at its end may hold a lock for which
    the call waits when it is freed after that, and the program would never end. Only the process `owner` does so: in a fork of it there
    are no such threads, and it would wait for ever."""
    if os.getpid() != owner:
        return
    outbox.put(None)
    if threading.current_thread() not in threads:
        _close(channel, threads)
        return
    # The garbage collector has found the stream in one of gRPC's own threads for it, for which closing waits. The program waits for this one.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=_close, args=(channel, threads), daemon=False).start()


def _close(channel: grpc.Channel, threads: list[threading.Thread]) -> None:
    give_up = time.monotonic() + _END_WITHIN
    # The one that begins the call may be at it still.
    _join(threads[:1], give_up)
    channel.close()
    _join(threads, give_up)


def _join(threads: list[threading.Thread], until: float) -> None:
    for thread in threads:
        # One whose start was interrupted perhaps never started.
        if thread is not threading.current_thread() and thread.is_alive():
            thread.join(max(0.0, until - time.monotonic()))
