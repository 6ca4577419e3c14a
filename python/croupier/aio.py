"""The client for asyncio: as `croupier.connect`, with `async with` and `await`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

import grpc

from ._access import access_of
from ._front import Front, Turn
from ._options import AccessOptions, RankOptions, StreamOptions
from ._ranks import METHOD as ATTACH, RankFront, RankSession
from ._types import Rows, Sequence, Step
from ._wire import METHOD
from .client import AGAIN, PART_WITHIN, is_gone, may_pass, no_answer, said, sampled, try_within
from .errors import CroupierError
from .schema import pb

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: What ends a call, or says that it has ended.
_ENDED = (grpc.RpcError, asyncio.InvalidStateError, EOFError)
#: Messages without an answer before one is awaited: a server whose answers nobody reads stops reading too.
_AHEAD = 16


def connect(address: str, vocab_size: int, **options: Unpack[StreamOptions]) -> Stream:
    """A stream to the server at `address`; use it in an `async with`. Options as of `croupier.Stream`."""
    return Stream(address, vocab_size, **options)


class Stream(Front):
    """One Decode stream. For one task at a time. One that is cancelled in the middle of a step leaves it unusable."""

    def __init__(self, address: str, vocab_size: int, **options: Unpack[StreamOptions]) -> None:
        super().__init__(address, vocab_size, **options)
        self._broken = False
        self._turn = Turn("task")
        self._channel: Any = None
        self._call: Any = None

    async def __aenter__(self) -> Stream:
        await self._keep_trying()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        """Ends the stream and frees what it holds."""
        is_up = self._call is not None and not (self._is_ended or self._is_down or self._broken)
        self._is_ended = True
        if is_up and self._turn.is_free():
            await end_in_order(self._call)
        if self._session.region:
            self._session.region.close()
        if self._channel is not None:
            await self._channel.close()

    def _check_not_ended(self) -> None:
        if self._call is None and not self._is_ended:
            raise CroupierError("the stream is not connected: use it in `async with croupier.aio.connect(...) as stream`")
        super()._check_not_ended()

    def rows(self, count: int) -> Rows:
        self._check_not_ended()
        return super().rows(count)

    rows.__doc__ = Front.rows.__doc__

    async def sample(self, logits: Any, sequences: Iterable[Sequence], *, traceparent: str = "", deadline_ms: int = 0) -> list[int]:
        """As of `croupier.Stream`."""
        return sampled((await self._step(logits, list(sequences), one_each=True, traceparent=traceparent, deadline_ms=deadline_ms))[0])

    async def step(self, logits: Any, work: Iterable[Any] = (), *, traceparent: str = "", deadline_ms: int = 0) -> Any:
        """As of `croupier.Stream`."""
        return (await self._step(logits, list(work), traceparent=traceparent, deadline_ms=deadline_ms))[1]

    async def submit(self, logits: Any, work: Iterable[Any], *, traceparent: str = "", deadline_ms: int = 0) -> None:
        """As of `croupier.Stream`."""
        with self._turn:
            await self._whole(self._send(logits, work, keep=True, traceparent=traceparent, deadline_ms=deadline_ms))

    async def result(self) -> Any:
        """As of `croupier.Stream`."""
        with self._turn:
            self._check_not_ended()
            if not self._session.steps:
                raise CroupierError("no step was submitted, or what was is given up")
            return (await self._whole(self._receive()))[1]

    async def _step(self, logits: Any, work: list[Any], **options: Any) -> tuple[Step, Any]:
        with self._turn:
            if self._session.steps and not self._broken:
                raise CroupierError("steps that were submitted wait for their results; take them first, with result()")
            await self._whole(self._send(logits, work, **options))
            return await self._whole(self._receive())

    async def _whole(self, doing: Coroutine[Any, Any, Any]) -> Any:
        """What leaves the stream unusable if it is cancelled."""
        if self._broken:
            doing.close()
            raise CroupierError("the stream was left in the middle of a step; connect again")
        try:
            return await doing
        except asyncio.CancelledError:
            # Whether the server has the step cannot be known, and gRPC ends a call whose read is cancelled.
            self._broken = bool(self._session.steps)
            raise

    async def _send(self, logits: Any, work: Iterable[Any], **options: Any) -> None:
        session = self._session
        self._check_not_ended()
        if self._is_down:
            await self._reconnect()
        # Here it would hold up the loop; nothing has happened yet if it is cancelled.
        if logits is not None and session.wanted == "device_memory":
            await asyncio.to_thread(session.synchronize)
        for part in session.step(logits, work, **options).parts:
            while len(session.waiting) >= _AHEAD or not session.may_send(part):
                await self._take()
            await self._put(session.send(part))

    async def _receive(self) -> tuple[Step, Any]:
        while self._session.steps[0].left:
            await self._take()
        return self._session.take()

    async def _put(self, message: bytes) -> None:
        """Sends what the session waits for already: after a reconnect that has sent it."""
        try:
            await self._call.write(message)
        except _ENDED as error:
            await self._go_on(error)

    async def _take(self) -> None:
        """One answer."""
        try:
            reply = await self._read()
        except _ENDED as error:
            await self._go_on(error)
            return
        if refused := self._session.answer(reply):
            after, part = refused
            await asyncio.sleep(after)
            await self._put(self._session.encode(part))

    async def _go_on(self, error: BaseException) -> None:
        self._check_not_ended()
        failed = await self._failed(error)
        if not is_gone(failed):
            raise self._given_up(said(failed)) from error
        await self._reconnect()

    async def _read(self) -> bytes:
        message = await self._call.read()
        if message is grpc.aio.EOF:
            raise EOFError
        return message

    async def _failed(self, error: BaseException) -> BaseException:
        """Why the call ended: a write to one that has says only that it has."""
        if isinstance(error, grpc.RpcError):
            return error
        try:
            await self._read()
        except grpc.RpcError as why:
            return why
        except (asyncio.InvalidStateError, EOFError):
            pass
        return EOFError()

    async def _connect(self, until: float) -> None:
        self._channel = self._access.channel(grpc.aio)
        self._call = self._channel.stream_stream(METHOD)(metadata=self._access.metadata(self._traceparent))
        seconds = try_within(until)
        try:
            ready = await asyncio.wait_for(self._begun(), seconds)
            await asyncio.to_thread(self._session.lease, ready, self._address)
        except asyncio.TimeoutError as error:
            await self._channel.close()
            raise CroupierError(no_answer(seconds)) from error
        except _ENDED as error:
            failed = await self._failed(error)
            await self._channel.close()
            raise CroupierError(said(failed) + self._access.hint(failed)) from failed
        except CroupierError:
            await self._channel.close()
            raise

    async def _begun(self) -> Any:
        await self._call.write(pb.DecodeRequest(config=self._session.config).SerializeToString())
        return pb.DecodeResponse.FromString(await self._read()).ready

    async def _reconnect(self) -> None:
        await self._channel.close()
        try:
            await self._keep_trying(self._reopen)
        except CroupierError as error:
            raise self._given_up(said(error)) from error
        self._is_down = False
        self._session.raise_if_lost()

    async def _keep_trying(self, then: Callable[[], Awaitable[None]] | None = None) -> None:
        """As of `croupier.Stream`."""
        give_up = time.monotonic() + self._patience
        while True:
            try:
                await self._connect(give_up)
                if then is not None:
                    await then()
                self._is_new = False
                return
            except (CroupierError, *_ENDED) as error:
                cause = error.__cause__ if isinstance(error, CroupierError) else await self._failed(error)
                if self._channel is not None:
                    await self._channel.close()
                why = error if isinstance(error, CroupierError) else CroupierError(said(cause))
                if not may_pass(cause) or time.monotonic() > give_up:
                    raise why from cause
                self._say_waiting(said(why))
            await asyncio.sleep(AGAIN)

    async def _reopen(self) -> None:
        """As of `croupier.Stream`."""
        first, rest = self._session.again()
        for part in first:
            await self._call.write(self._session.encode(part))
            while refused := self._session.answer(await self._read()):
                await asyncio.sleep(refused[0])
                await self._call.write(self._session.encode(part))
        for part in rest:
            await self._call.write(self._session.encode(part))


async def end_in_order(call: Any) -> None:
    """Ends a call in order, if the server does so soon: one that is cut off counts as cancelled there."""
    async def end() -> None:
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass

    try:
        await asyncio.wait_for(end(), PART_WITHIN)
    except (asyncio.TimeoutError, *_ENDED):
        pass


def attach(token: str, rank: int, **options: Unpack[RankOptions]) -> Rank:
    """A rank above 0; use it in an `async with`. Options as of `croupier.Rank`."""
    return Rank(token, rank, **options)


class Rank(RankFront):
    """As `croupier.Rank`, for one task at a time."""

    def __init__(self, token: str, rank: int, *, address: str | None = None, data_path: str = "auto",
                 **access: Unpack[AccessOptions]) -> None:
        self._session = RankSession(token, rank, address, data_path)
        self._access = access_of("attach", self._session.address, access, RankOptions)
        self._channel: Any = None
        self._call: Any = None

    async def __aenter__(self) -> Rank:
        session = self._session
        self._channel = self._access.channel(grpc.aio)
        self._call = self._channel.stream_stream(ATTACH)(metadata=self._access.metadata())
        try:
            await self._write(session.hello)
            await asyncio.to_thread(session.attached, await self._read())
        except BaseException:
            # Nothing is left to be ended in order.
            self._call = None
            await self.end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        """Leaves the group. What was sent stays good."""
        if self._call is not None:
            await end_in_order(self._call)
        if self._session.region:
            self._session.region.close()
        if self._channel is not None:
            await self._channel.close()

    async def rows(self, count: int) -> Rows:
        """As of `croupier.Rank`."""
        await self._wait_for_room()
        return self._session.rows(count)

    async def send(self, logits: Any, step_id: int | None = None) -> int:
        """As of `croupier.Rank`."""
        if not isinstance(logits, Rows):
            await self._wait_for_room()
            logits = self._session.placed(logits)
        step, message = self._session.announce(logits, step_id)
        await self._write(message)
        return step

    async def tokens(self, step_id: int, timeout: float = 60.0) -> list[list[int]]:
        """As of `croupier.Rank`."""
        until = time.monotonic() + timeout
        while self._session.may_be_refused(step_id):
            await self._answer()
        while (tokens := await asyncio.to_thread(self._session.tokens, step_id, until, timeout)) is None:
            pass
        return tokens

    async def wait(self) -> list[int]:
        """As of `croupier.Rank`."""
        while self._session.waiting:
            await self._answer()
        return self._session.told()

    def _check_connected(self) -> None:
        if self._call is None:
            raise CroupierError("the rank is not attached: use it in `async with croupier.aio.attach(...) as rank`")

    async def _wait_for_room(self) -> None:
        self._check_connected()
        while not self._session.has_room() and self._session.waiting:
            await self._answer()
        if not self._session.has_room():
            raise CroupierError("every slot is written and not sent; send or discard one first")

    async def _answer(self) -> None:
        again = self._session.answered(await self._read())
        if again:
            await asyncio.sleep(again[1])
            await self._write(again[0])

    async def _write(self, message: bytes) -> None:
        self._check_connected()
        try:
            await self._call.write(message)
        except asyncio.InvalidStateError:
            # The call is over; reading says why.
            await self._read()
        except grpc.RpcError as error:
            raise CroupierError(said(error)) from error

    async def _read(self) -> bytes:
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            raise CroupierError(said(error)) from error
        if message is grpc.aio.EOF:
            raise CroupierError("the group is over: rank 0 has ended its stream")
        return message


class Sampler:
    """`connect` and `attach` under one name."""

    connect = staticmethod(connect)
    attach = staticmethod(attach)
