"""Interrupts a call at each point where that is possible: by a signal handler that raises, or in asyncio by cancelling the task.

Python runs handlers after calls, after backward jumps (before 3.11 after any jump) and at the start of functions, so `Points` raises
there. A trace function replaces the signal."""

import asyncio
import contextlib
import dis
import gc
import itertools
import pathlib
import signal
import sys
import types

import pytest

import croupier

_HERE = (str(pathlib.Path(croupier.__file__).parent), contextlib.__file__)
_POINTS = ("CALL", "RESUME", "JUMP_BACKWARD") if sys.version_info >= (3, 11) else ("CALL", "RESUME", "JUMP", "POP_JUMP")


class Alarm(Exception):
    """The exception that a handler raises."""


def alarm():
    raise Alarm


class Points:
    """Raises at the `count`-th point of the client, or calls `does` there, as if another thread did."""

    def __init__(self, count, also=()):
        self.left, self.before, self.does, self.here = count, {}, alarm, _HERE + also
        #: The functions that were running at that point.
        self.within = []

    def call(self, does):
        """Whether the call was interrupted."""
        # From 3.12 on, opcodes are traced only if a frame has asked for it before.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._entered)
        try:
            does()
            return False
        except Alarm:
            return True
        finally:
            sys.settrace(None)
            self.before.clear()

    def _entered(self, frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(self.here):
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return self._passed
        return None

    def _passed(self, frame, event, _):
        if event == "opcode":
            before, at = self.before.get(frame, ("RESUME", 0))
            self.before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]], frame.f_lasti
            # A jump that is not taken does not count.
            if before.startswith(_POINTS) and not (before.startswith("POP_JUMP") and frame.f_lasti == at + 2):
                self.left -= 1
                if not self.left:
                    self.before.clear()
                    sys.settrace(None)
                    while frame is not None:
                        self.within.append(frame.f_code.co_name)
                        frame = frame.f_back
                    self.does()
        elif event == "return":
            self.before.pop(frame, None)
        return self._passed


class Waits:
    """Cancels the task at the `count`-th wait of its work."""

    def __init__(self, count):
        self.left = count

    async def call(self, doing):
        """Whether the task was cancelled."""
        try:
            await asyncio.ensure_future(_awaited(self._counted(doing)))
            return False
        except asyncio.CancelledError:
            return True

    @types.coroutine
    def _counted(self, doing):
        waits, does = doing.__await__(), lambda: next(waits)
        while True:
            try:
                waited = does()
            except StopIteration as done:
                return done.value
            self.left -= 1
            if not self.left:
                # This cancels what the task waits for: the task checks for the cancellation once `waited` is yielded to it.
                asyncio.current_task().cancel()
            try:
                yield waited
                does = lambda: next(waits)
            except BaseException as error:
                does = lambda error=error: waits.throw(error)


async def _awaited(doing):
    return await doing


def each_point(attempt, least, every=1, also=()):
    """Calls `attempt` for every `every`-th point, with the `Points` that interrupt a call. There must be at least `least` points. `also`:
    paths of other files whose points also count."""
    if sys.version_info >= (3, 13):
        pytest.skip("from Python 3.13 on not all opcodes of a function are traced")
    # Objects that exist already need not be searched in each collection.
    gc.freeze()
    try:
        for count in itertools.count(1, every):
            points = Points(count, also)
            begin_anew()
            attempt(points)
            gc.collect()
            if points.left > 0:
                assert count > least, f"there were only {count - 1} points"
                return
    finally:
        gc.unfreeze()


async def each_wait(attempt, least):
    """Calls `attempt` for each wait of a task."""
    for count in itertools.count(1):
        waits = Waits(count)
        begin_anew()
        await attempt(waits)
        if waits.left > 0:
            assert count > least, f"there were only {count - 1} waits"
            return


# Seconds after which an attempt, or a test that makes none, waits for ever.
FOR_EVER = 120


def begin_anew():
    """Gives the next attempt the time of `in_time`, if that is in use: a busy server may take longer for all attempts together."""
    if signal.alarm(0):
        signal.alarm(FOR_EVER)


@pytest.fixture
def in_time():
    """Fails a test that would wait for ever."""
    def handler(*_):
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, handler)
    signal.alarm(FOR_EVER)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
