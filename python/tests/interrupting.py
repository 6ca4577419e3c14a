"""Interrupts a call at each point where it can be: a signal's handler that raises, and for asyncio a task that is cancelled.

Python runs handlers behind calls, jumps back and at the start of functions, before 3.11 behind any jump, so that is where `Points` raises. A
trace function stands in for the signal."""

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
    """What a handler raises."""


def alarm():
    raise Alarm


class Points:
    """Raises at the `count`-th point of the client, or does what is done by another thread."""

    def __init__(self, count, also=()):
        self.left, self.before, self.does, self.here = count, {}, alarm, _HERE + also
        #: Functions in the middle of which it was.
        self.within = []

    def call(self, does):
        """Whether it was interrupted."""
        # From 3.12 on opcodes are traced only where a frame has asked for it before.
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
            # A jump that is not taken is none.
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
    """Cancels the task at the `count`-th wait of what it does."""

    def __init__(self, count):
        self.left = count

    async def call(self, doing):
        """Whether it was cancelled."""
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
                # It is what is waited for here that is cancelled: the task looks at this when it has it.
                asyncio.current_task().cancel()
            try:
                yield waited
                does = lambda: next(waits)
            except BaseException as error:
                does = lambda error=error: waits.throw(error)


async def _awaited(doing):
    return await doing


def each_point(attempt, least, every=1, also=()):
    """Makes an attempt for each point, or for one of some: it is given what may interrupt a call. There are so many at least.
    `also`: where other files are whose points count too."""
    if sys.version_info >= (3, 13):
        pytest.skip("from Python 3.13 on not all opcodes of a function are traced")
    # What is here already is not looked through each time.
    gc.freeze()
    try:
        for count in itertools.count(1, every):
            points = Points(count, also)
            attempt(points)
            gc.collect()
            if points.left > 0:
                assert count > least, f"there were only {count - 1} points"
                return
    finally:
        gc.unfreeze()


async def each_wait(attempt, least):
    """The same for each wait of a task."""
    for count in itertools.count(1):
        waits = Waits(count)
        await attempt(waits)
        if waits.left > 0:
            assert count > least, f"there were only {count - 1} waits"
            return


@pytest.fixture
def in_time():
    """Ends a test that would wait for ever."""
    def handler(*_):
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, handler)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
