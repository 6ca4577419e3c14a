"""gRPC calls for threads: how they begin, are read and end, whatever a signal handler interrupts."""

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

#: Seconds that the server gets to end a stream in order.
PART_WITHIN = 1.0
# How long to wait for gRPC's threads to end. They take some milliseconds.
_END_WITHIN = 2.0
_DIALLING = threading.Lock()
_HOLDING = threading.Condition.__enter__.__code__, threading.Condition.__exit__.__code__


def _forked() -> None:
    """After a fork, nobody gives back a lock that another thread of the parent held."""
    global _DIALLING
    _DIALLING = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def dial(method: Any, outbox: queue.SimpleQueue[bytes | None], metadata: Any, threads: list[threading.Thread]) -> Iterator[bytes]:
    """Begins a call. `threads` receives the threads that gRPC runs for it, and the thread that begins it. The call
    begins in a thread of its own because signal handlers run only in the main thread: a call that a handler left half
    begun would have no thread that ends it, and whoever hangs up would wait for that forever."""
    begun: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def begin() -> None:
        # One after another, so that no call takes the threads of another call for its own.
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
    """Whether gRPC runs this thread. The program may start threads of its own meanwhile."""
    return thread.daemon and str(getattr(getattr(thread, "_target", None), "__module__", None)).startswith("grpc.")


def start(thread: threading.Thread) -> None:
    """Starts a thread."""
    try:
        thread.start()
    except KeyError as error:
        # A signal handler raised just after the thread began, and Python no longer finds it among those that begin.
        raise (error.__context__ or error) from None
    except RuntimeError as error:
        _tell(error)
        raise


def following(replies: Iterator[bytes]) -> bytes:
    """Returns the next reply."""
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
    """If a signal handler ends a wait at the wrong moment, Python reports that a lock is not held. This raises what the
    handler raised instead."""
    if isinstance(error, RuntimeError) and "lock" in str(error) and error.__context__ is not None:
        raise error.__context__ from None


def _unlock(error: BaseException, call: Any) -> None:
    """Releases locks that this thread still holds. They remain if a signal handler ended one of gRPC's `with`
    statements between taking the lock and entering the body, or between leaving the body and releasing the lock.
    gRPC's own threads, and whoever hangs up, would wait for such a lock forever. It may be a call's lock or the
    connection's."""
    conditions: list[Any] = [getattr(getattr(call, "_state", None), "condition", None)]
    told: BaseException | None = error
    while told is not None:
        place = told.__traceback__
        while place is not None:
            if place.tb_frame.f_code in _HOLDING:
                conditions.append(place.tb_frame.f_locals["self"])
            place = place.tb_next
        # Look at the handler's error too, if it led to another one.
        told = told.__context__
    for condition in conditions:
        while getattr(condition, "_is_owned", bool)():
            condition.release()


class Turn:
    """Ensures that only one user at a time is on a stream or at a rank's answers."""

    def __init__(self, who: str, of: str = "stream", amid: str = "step") -> None:
        self._lock, self._who, self._of, self._amid = threading.Lock(), who, of, amid

    def mine(self) -> threading.Lock:
        """The lock to hold in a `with`. It is Python's own lock, because a signal handler could end a method of ours
        before it gives a lock back."""
        if not self.is_free():
            raise CroupierError(f"another {self._who} is in the middle of a {self._amid}; only one {self._who} at a time may use a {self._of}")
        return self._lock

    def is_free(self) -> bool:
        """Whether nobody is in the middle of it."""
        return not self._lock.locked()


class Limit:
    """Cancels a call that has not answered within this many seconds."""

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
        """The message if the call was cancelled for that reason, else empty."""
        return no_answer(self._seconds) if self._is_over else ""

    def _end(self) -> None:
        self._is_over = True
        self._call.cancel()


def is_gone(error: BaseException | None) -> bool:
    """Whether the server went away, so that another attempt may find it again."""
    if isinstance(error, (StopIteration, EOFError)):
        return True
    if not isinstance(error, grpc.RpcError):
        return False
    return is_from_core(error) or bool(error.code() == grpc.StatusCode.UNAVAILABLE)


def is_from_core(error: grpc.RpcError) -> bool:
    """Whether this is what asyncio's gRPC raises for a write to a call that has ended. No server says it."""
    return bool(error.code() == grpc.StatusCode.INTERNAL and error.details() == "Internal error from Core")


#: What gRPC raises for a call that ended.
_OWN = (grpc.RpcError, StopIteration, EOFError)


def forget(error: BaseException | None) -> None:
    """Drops where an error that was dealt with, and those of gRPC behind it, were raised. An error of gRPC is the call
    itself, so the frames there refer to it. Through the callers' frames, the logits and the region of the step that was
    interrupted would stay until the garbage collector runs. Other errors behind it may be the caller's, who handles one
    while it uses the stream."""
    dealt_with = set()
    while error is not None and id(error) not in dealt_with:
        dealt_with.add(id(error))
        error.__traceback__ = None
        behind = error.__cause__ or error.__context__
        error = behind if isinstance(behind, _OWN) else None


def is_too_late(error: BaseException | None) -> bool:
    """Whether the server ended the call because messages took too long: replies were not read, or a message did not
    arrive."""
    return isinstance(error, grpc.RpcError) and bool(error.code() == grpc.StatusCode.ABORTED)


def may_pass(error: BaseException | None) -> bool:
    """Whether connecting again may work later: the server is not there yet, or is still full of what was there
    before, or messages took too long."""
    full = isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    return full or is_gone(error) or is_too_late(error)


def no_answer(seconds: float) -> str:
    """The message about a server that accepted a connection but did not answer."""
    return f"the server did not answer within {seconds:.3g} s"


def end_in_order(outbox: queue.SimpleQueue[bytes | None], replies: Any) -> None:
    """Ends a call in order, if the server does so soon. The server counts a call that is cut off as cancelled."""
    outbox.put(None)
    try:
        with Limit(replies, PART_WITHIN):
            while True:
                following(replies)
    except (grpc.RpcError, StopIteration):
        pass
    except RuntimeError as error:
        # From Python 3.12 on, no thread starts while the interpreter ends, and nothing would end the wait. So the call
        # is cut off.
        if "new thread" not in str(error):
            raise


def hang_up(owner: int, outbox: queue.SimpleQueue[bytes | None], channel: grpc.Channel, threads: list[threading.Thread]) -> None:
    """Ends a call and its connection, and waits for gRPC's threads. If the interpreter stopped such a thread at its
    end, the thread could hold a lock for which the call waits when it is freed after that, and the program would never
    end. Only the process `owner` waits: a fork of it has no such threads and would wait forever."""
    if os.getpid() != owner:
        return
    outbox.put(None)
    closed: queue.SimpleQueue[None] = queue.SimpleQueue()

    def close() -> None:
        try:
            _close(channel, threads)
        finally:
            closed.put(None)

    # In a thread of its own, for which the program waits. A signal handler that ended a close would leave gRPC's channel
    # half closed, and the next close would wait for the rest forever. Handlers run only in the main thread.
    is_grpcs = threading.current_thread() in threads
    try:
        start(threading.Thread(target=close, daemon=False))
    except RuntimeError:
        # From Python 3.12 on, no thread starts while the interpreter ends.
        if not is_grpcs:
            close()
        return
    # If the garbage collector has found the stream in one of gRPC's own threads for it, closing waits for this thread.
    if not is_grpcs:
        closed.get()


def _close(channel: grpc.Channel, threads: list[threading.Thread]) -> None:
    give_up = time.monotonic() + _END_WITHIN
    # The thread that begins the call may still be running.
    _join(threads[:1], give_up)
    channel.close()
    _join(threads, give_up)


def _join(threads: list[threading.Thread], until: float) -> None:
    for thread in threads:
        # A thread whose start was interrupted may never have started.
        if thread is not threading.current_thread() and thread.is_alive():
            thread.join(max(0.0, until - time.monotonic()))
