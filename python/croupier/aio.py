"""The client for asyncio: as `croupier.connect`, with `async with` and `await`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import grpc

from ._front import Front
from ._session import METHOD, Rows, Sequence, options
from ._ranks import METHOD as ATTACH, RankFront, RankSession
from .client import _AGAIN, is_gone, may_pass, said, sampled
from .errors import CroupierError
from .schema import pb


def connect(address: str, vocab_size: int, **options: Any) -> Stream:
    """A stream to the server at `address`; use it in an `async with`. Options as of `croupier.Stream`."""
    return Stream(address, vocab_size, **options)


class Stream(Front):
    """One Decode stream. For one task at a time. One that is cancelled in the middle of a step leaves it unusable."""

    def __init__(self, address: str, vocab_size: int, **options: Any) -> None:
        super().__init__(address, vocab_size, **options)
        self._broken = False

    async def __aenter__(self) -> Stream:
        await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        """Ends the stream and frees what it holds."""
        if self._session.region:
            self._session.region.close()
        await self._channel.close()

    async def sample(self, logits: Any, sequences: Iterable[Sequence]) -> list[int]:
        """The next token of each sequence, from its row. Raises `RowError` where a row has none."""
        return sampled(*await self._step(logits, list(sequences)))

    async def step(self, logits: Any, work: Iterable[Any] = ()) -> Any:
        """Any work: sequences to sample or `Work` messages. Gives the `StepResult`."""
        return (await self._step(logits, list(work)))[1]

    async def _step(self, logits: Any, work: list[Any]) -> tuple[Any, Any]:
        if self._broken or self._session.waiting:
            raise CroupierError("the stream was left in the middle of a step; connect again")
        # Here it would hold up the loop; nothing has happened yet if it is cancelled.
        if logits is not None and self._session.wanted == "device_memory":
            await asyncio.to_thread(self._session.synchronize)
        message = self._session.step(logits, work)
        try:
            return await self._answered(message)
        except asyncio.CancelledError:
            # Whether the server has the step cannot be known, and gRPC ends a call whose read is cancelled.
            self._broken = True
            raise

    async def _answered(self, message: bytes) -> tuple[Any, Any]:
        while True:
            try:
                await self._call.write(message)
                step, result = self._session.result(await self._read())
            except (grpc.RpcError, asyncio.InvalidStateError, EOFError) as error:
                failed = await self._failed(error)
                if not is_gone(failed):
                    raise CroupierError(said(failed)) from error
                await self._reconnect()
                step, result = self._session.result(await self._read())
            if not result.HasField("refusal"):
                return step, result
            await asyncio.sleep(result.refusal.retry_after_ms / 1000)
            message = self._session.encode(step)

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

    async def _connect(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._address, options=options(self._address))
        self._call = self._channel.stream_stream(METHOD)()
        try:
            await self._call.write(pb.DecodeRequest(config=self._session.config).SerializeToString())
            ready = pb.DecodeResponse.FromString(await self._read()).ready
            await asyncio.to_thread(self._session.lease, ready, self._address)
        except (grpc.RpcError, asyncio.InvalidStateError, EOFError) as error:
            failed = await self._failed(error)
            await self._channel.close()
            raise CroupierError(said(failed)) from failed
        except CroupierError:
            await self._channel.close()
            raise

    async def _reconnect(self) -> None:
        give_up = time.monotonic() + self._patience
        await self._channel.close()
        while True:
            try:
                await self._connect()
                await self._reopen()
                break
            except (CroupierError, grpc.RpcError, asyncio.InvalidStateError, EOFError) as failed:
                cause = failed.__cause__ if isinstance(failed, CroupierError) else await self._failed(failed)
                if not may_pass(cause) or time.monotonic() > give_up:
                    if isinstance(failed, CroupierError):
                        raise
                    raise CroupierError(said(cause)) from failed
                await self._channel.close()
            await asyncio.sleep(_AGAIN)
        self._session.raise_if_lost()

    async def _reopen(self) -> None:
        """As of `croupier.Stream`."""
        first, *rest = self._session.again()
        await self._call.write(first)
        while (result := self._session.result(await self._read())[1]).HasField("refusal"):
            await asyncio.sleep(result.refusal.retry_after_ms / 1000)
            await self._call.write(first)
        for message in rest:
            await self._call.write(message)


def attach(token: str, rank: int, **options: Any) -> Rank:
    """A rank above 0; use it in an `async with`. Options as of `croupier.Rank`."""
    return Rank(token, rank, **options)


class Rank(RankFront):
    """As `croupier.Rank`, for one task at a time."""

    def __init__(self, token: str, rank: int, *, address: str | None = None, data_path: str = "auto") -> None:
        self._session = RankSession(token, rank, address, data_path)

    async def __aenter__(self) -> Rank:
        session = self._session
        self._channel = grpc.aio.insecure_channel(session.address, options=options(session.address))
        self._call = self._channel.stream_stream(ATTACH)()
        try:
            await self._write(session.hello)
            await asyncio.to_thread(session.attached, await self._read())
        except BaseException:
            await self.end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        """Leaves the group. What was sent stays good."""
        if self._session.region:
            self._session.region.close()
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

    async def wait(self) -> list[int]:
        """As of `croupier.Rank`."""
        while self._session.waiting:
            await self._answer()
        return self._session.told()

    async def _wait_for_room(self) -> None:
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
