"""The client for asyncio: as `croupier.connect`, with `async with` and `await`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import grpc

from ._aio_call import ENDED, Entered, Home, Steady, begin, end_in_order, is_cancelled, leased, within
from ._aio_ranks import Rank, attach
from ._checks import listed
from ._front import NO_STEP, Front, backing_off
from ._info import ANSWER_WITHIN, Asked
from ._options import AccessOptions, StreamOptions
from ._results import checked
from ._status import failed, said
from ._types import Part, Rows, Sequence, Step
from ._wire import METHOD
from ._call import Turn, forget, no_answer
from .client import room_until, sampled, try_within
from .errors import CroupierError
from .schema import pb

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._forms import Logits, Masks, Work

__all__ = ["Rank", "Sampler", "Stream", "attach", "connect", "server_info"]

#: Most messages without an answer. Then one is awaited, because a server whose answers nobody reads stops reading too.
_AHEAD = 16


def connect(address: str, vocab_size: int, **options: Unpack[StreamOptions]) -> Stream:
    """A stream to the server at `address`. Use it in an `async with`. The options are those of `croupier.Stream`."""
    return Stream(address, vocab_size, **options)


async def server_info(address: str, *, answer_within: float = ANSWER_WITHIN, **access: Unpack[AccessOptions]) -> pb.GetServerInfoResponse:
    """See `croupier.server_info`."""
    asked = Asked(address, answer_within, access)
    async with asked.access.channel(grpc.aio) as channel:
        try:
            answer: pb.GetServerInfoResponse = await asked.call(channel)
            return answer
        except grpc.RpcError as error:
            raise asked.failed(error) from error


class Stream(Front, Entered):
    """One Decode stream, for one task at a time. If that task is cancelled in the middle of a step, the next call must
    be `result`, which continues the step, or `give_up`."""

    _entered_as = "croupier.aio.connect(...) as stream"

    def __init__(self, address: str, vocab_size: int, **options: Unpack[StreamOptions]) -> None:
        super().__init__(address, vocab_size, **options)
        self._turn, self._home = Turn("task"), Home("stream", self)
        # A message that the server had no room for, and when to send it again. It goes before any other message.
        self._refused: tuple[float, Part] | None = None

    async def __aenter__(self) -> Stream:
        if self._is_ended or self._home.call is not None:
            raise CroupierError("the stream was ended; connect a new one" if self._is_ended else "the stream is connected already")
        self._home.settle()
        try:
            with self._waited():
                await self._keep_trying()
        except BaseException:
            self._home.call = None
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        """Ends the stream and frees what it holds."""
        is_up = self._home.call is not None and not (self._is_ended or self._is_down)
        self._is_ended = True
        if self._is_forked():
            return
        if self._home.is_elsewhere():
            # Nothing can be awaited in this loop. The connection ends when its owner is freed.
            self._session.leave_region()
            self._home.leave()
            return
        await self._home.end(lambda: self._end(is_up))

    async def _end(self, is_up: bool) -> None:
        try:
            if is_up and self._turn.is_free():
                await end_in_order(self._home.call)
        finally:
            self._session.leave_region()
            if self._home.channel is not None:
                await self._home.channel.close()

    def _check_not_ended(self) -> None:
        if self._home.call is None and not self._is_ended:
            raise CroupierError(f"the stream is not connected: use it in `async with {self._entered_as}`")
        super()._check_not_ended()

    def rows(self, count: int, *, draft: bool = False) -> Rows:
        self._check_not_ended()
        return super().rows(count, draft=draft)

    rows.__doc__ = Front.rows.__doc__

    async def sample(self, logits: Logits, sequences: Iterable[Sequence], *, token_masks: Masks | None = None,
                     traceparent: str = "", deadline_ms: int = 0) -> list[int]:
        """See `croupier.Stream`."""
        texts = listed("sequences", sequences, "texts", "text")
        work: Iterable[Work] = texts if token_masks is None else self.masked(texts, token_masks)
        return sampled(texts, *await self._step(logits, work, one_each=True, traceparent=traceparent, deadline_ms=deadline_ms))

    async def step(self, logits: Logits, work: Iterable[Work] = (), *, traceparent: str = "",
                   deadline_ms: int = 0) -> pb.StepResult:
        """See `croupier.Stream`."""
        return checked(*await self._step(logits, listed("work", work, "texts or works", "text"), traceparent=traceparent, deadline_ms=deadline_ms))

    async def submit(self, logits: Logits, work: Iterable[Work], *, traceparent: str = "", deadline_ms: int = 0) -> None:
        """See `croupier.Stream`."""
        with self._turn.mine():
            await self._be_connected()
            with self._kept(len(self._session.steps)):
                await self._begin(logits, work, keep=True, traceparent=traceparent, deadline_ms=deadline_ms)
                await self._send()

    async def result(self) -> pb.StepResult:
        """See `croupier.Stream`. It also continues a step that was cancelled."""
        with self._turn.mine():
            self._check_not_ended()
            self._home.check()
            if not self._session.steps:
                raise CroupierError(NO_STEP)
            with self._kept():
                await self._be_connected()
                await self._send()
                return checked(*await self._receive())

    async def give_up(self) -> None:
        """See `croupier.Stream`. After a cancelled step, the stream continues on another connection."""
        with self._turn.mine():
            self._home.check()
            if self._session.steps and not self._is_ended:
                self._is_down = True
                self._session.give_up()
                self._session.steps.clear()
                await self._home.channel.close()

    async def _step(self, logits: Logits, work: Iterable[Work], **options: Any) -> tuple[Step, pb.StepResult]:
        with self._turn.mine():
            self._check_whole()
            if self._session.steps:
                raise CroupierError("results of steps that were submitted or cancelled were not taken yet; take them first with result(), "
                                    "or call give_up()")
            await self._be_connected()
            with self._kept():
                await self._begin(logits, work, **options)
                await self._send()
                return await self._receive()

    @contextlib.contextmanager
    def _kept(self, before: int = 0) -> Iterator[None]:
        """Lets a cancelled step continue with `result`, with the logits as they are now, on this connection, whose
        reads and writes continue. Any other exception in the middle of a step ends the connection too. If there are no
        more steps than `before`, the step has not begun."""
        try:
            yield
        except CroupierError:
            raise
        except BaseException as error:
            if len(self._session.steps) > before:
                self._is_down |= not isinstance(error, asyncio.CancelledError)
                self._session.keep_rows()
            with self._waited():
                raise

    @contextlib.contextmanager
    def _waited(self) -> Iterator[None]:
        """Around waits: if another task ended the call, raises that instead of the cancellation that gRPC makes of it."""
        try:
            yield
        except asyncio.CancelledError:
            if self._is_ended and not is_cancelled():
                super()._check_not_ended()
            raise

    async def _be_connected(self) -> None:
        self._check_whole()
        self._home.check()
        with self._waited():
            if self._is_down:
                await self._reconnect()
            elif self._is_to_leave():
                await self._move_on()

    async def _begin(self, logits: Logits, work: Iterable[Work], **options: Any) -> None:
        # In the loop this would block it. If it is cancelled, nothing has happened yet.
        if logits is not None and self._session.wanted == "device_memory":
            await asyncio.to_thread(self._session.synchronize)
        self._session.step(logits, work, **options)

    async def _send(self) -> None:
        """Sends the parts that are to be sent."""
        while part := self._session.not_begun():
            await self._send_refused()
            if len(self._session.waiting) < _AHEAD and self._session.may_send(part):
                await self._put(self._session.send(part))
            else:
                await self._take()

    async def _send_refused(self) -> None:
        """Sends a refused part again after its pause. If it is cancelled in the pause, the next call does it."""
        if self._refused is not None:
            due, part = self._refused
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._refused = None
            await self._put(self._session.encode(part))

    async def _receive(self) -> tuple[Step, pb.StepResult]:
        while self._session.steps[0].left:
            await self._take()
        return self._session.take()

    async def _put(self, message: bytes) -> None:
        """Sends a message that the session already counts as waiting. After a reconnect, it has been sent by that."""
        try:
            await self._home.call.write(message)
        except ENDED as error:
            await self._go_on(error)

    async def _take(self) -> None:
        """Takes in one answer."""
        await self._send_refused()
        try:
            reply = await self._read()
        except ENDED as error:
            await self._go_on(error)
            return
        self._is_torn = True
        refused = self._session.answer(reply)
        self._is_torn = self._is_late = False
        if refused:
            self._refused = time.monotonic() + refused[0], refused[1]

    async def _go_on(self, error: BaseException) -> None:
        self._check_not_ended()
        why = await self._failed(error)
        if not self._is_worth_reconnecting(why):
            raise self._given_up(why) from error
        forget(error)
        forget(why)
        await self._reconnect(said(why))

    async def _read(self) -> bytes:
        message = await self._home.call.read()
        if message is grpc.aio.EOF:
            raise EOFError
        reply: bytes = message
        return reply

    async def _failed(self, error: BaseException) -> BaseException:
        """Why the call ended. A write to a call that has ended says only that it has."""
        why = error
        if not isinstance(error, grpc.RpcError):
            why = EOFError()
            try:
                await self._read()
            except grpc.RpcError as failed:
                why = failed
            except (asyncio.InvalidStateError, EOFError):
                pass
        return why

    async def _connect(self, until: float) -> None:
        self._home.channel, self._refused = self._access.channel(grpc.aio), None
        self._home.call = Steady(self._home.channel.stream_stream(METHOD)(metadata=self._access.metadata(self._traceparent)))
        seconds = try_within(until)
        try:
            ready = await within(self._begun(), seconds)
            self._session.offered(ready)
            self._session.move(await leased(self._session.lease, ready, self._address))
        except asyncio.TimeoutError as error:
            await self._home.channel.close()
            raise CroupierError(no_answer(seconds)) from error
        except ENDED as error:
            why = await self._failed(error)
            await self._home.channel.close()
            raise failed(said(why) + self._access.hint(why), why) from why
        except BaseException:
            # After any other exception, including the task's own cancellation, the server already has a stream.
            await self._home.channel.close()
            raise

    async def _begun(self) -> pb.StreamReady:
        await begin(self._home.call.call)
        await self._home.call.write(pb.DecodeRequest(config=self._session.config).SerializeToString())
        return pb.DecodeResponse.FromString(await self._read()).ready

    async def _move_on(self) -> None:
        """See `croupier.Stream`."""
        channel, call, began = self._home.channel, self._home.call, time.monotonic()
        self._is_down = True
        try:
            await self._connect(began)
        except CroupierError as error:
            if self._home.channel is not channel:
                await self._home.channel.close()
            self._home.channel, self._home.call = channel, call
            self._stay(began, said(error))
            self._is_down = False
            return
        except BaseException:
            await channel.close()
            raise
        try:
            await end_in_order(call)
        finally:
            await channel.close()
        try:
            await self._reopen(time.monotonic() + self._patience)
        except (CroupierError, *ENDED) as error:
            await self._reconnect(said(error if isinstance(error, CroupierError) else await self._failed(error)))
        super()._check_not_ended()
        self._say_connected()
        self._is_down = False

    async def _reconnect(self, why: str = "") -> None:
        # Until the connection is complete, so that after a cancellation nobody finds half of one.
        self._is_down = True
        self._say_lost(why)
        await self._home.channel.close()
        try:
            await self._keep_trying(self._reopen)
        except CroupierError as error:
            self._check_not_ended()
            raise self._given_up(error) from error
        self._is_down = False
        self._session.raise_if_lost()

    async def _keep_trying(self, then: Callable[[float], Awaitable[None]] | None = None) -> None:
        """See `croupier.Stream`."""
        give_up, pauses = time.monotonic() + self._patience, backing_off()
        while True:
            # Another task may have ended the stream meanwhile.
            super()._check_not_ended()
            try:
                await self._connect(give_up)
                super()._check_not_ended()
                if then is not None:
                    await then(give_up)
                    super()._check_not_ended()
                self._has_served = True
                self._say_connected()
                return
            except (CroupierError, *ENDED) as error:
                cause, why = error.__cause__, error
                if not isinstance(error, CroupierError):
                    cause = await self._failed(error)
                    why = failed(said(cause), cause)
                if self._home.channel is not None:
                    await self._home.channel.close()
                if not self._is_worth_waiting(cause) or time.monotonic() > give_up:
                    raise why from cause
                self._say_waiting(said(why))
                forget(error)
                forget(why)
            await asyncio.sleep(next(pauses))

    async def _reopen(self, until: float) -> None:
        """See `croupier.Stream`."""
        first, rest = self._session.again()
        for part in first:
            await self._home.call.write(self._session.encode(part))
            over = room_until(until)
            while refused := self._session.answer(await self._read()):
                if time.monotonic() > over:
                    self._session.wait_no_more(part)
                    break
                await asyncio.sleep(refused[0])
                await self._home.call.write(self._session.encode(part))
        for part in rest:
            await self._home.call.write(self._session.encode(part))


class Sampler:
    """`connect` and `attach` under one name."""

    connect = staticmethod(connect)
    attach = staticmethod(attach)
