"""Ranks above 0 of a tensor-parallel worker, for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import grpc

from ._access import access_of
from ._checks import MOST_64, whole
from ._aio_call import Entered, Home, Steady, begin, end_in_order, is_cancelled, leased, within
from ._options import AccessOptions, RankOptions, seconds
from ._ranks import ATTACH_WITHIN, METHOD, NO_SLOT, RankFront, RankSession
from ._types import Rows
from ._call import no_answer
from ._status import failed, said
from .errors import CroupierError

if TYPE_CHECKING:
    from ._forms import Whole
    from typing_extensions import Unpack


def attach(token: str, rank: int, **options: Unpack[RankOptions]) -> Rank:
    """A rank above 0. Use it in an `async with`. The options are those of `croupier.Rank`."""
    return Rank(token, rank, **options)


class Rank(RankFront, Entered):
    """As `croupier.Rank`, for one task at a time."""

    _entered_as = "croupier.aio.attach(...) as rank"

    def __init__(self, token: str, rank: int, *, address: str | None = None, data_path: str = "auto",
                 attach_within: float = ATTACH_WITHIN, **access: Unpack[AccessOptions]) -> None:
        super().__init__()
        self._broken, self._home = False, Home("rank", self)
        self._session = RankSession(token, rank, address, data_path)
        self._attach_within = seconds("attach_within", attach_within)
        self._access = access_of("attach", self._session.address, access, RankOptions)

    async def __aenter__(self) -> Rank:
        session = self._session
        if self._is_ended or self._home.call is not None:
            raise CroupierError("the rank was ended; attach again" if self._is_ended else "the rank is attached already")
        self._home.settle()
        self._home.channel = self._access.channel(grpc.aio)
        self._home.call = Steady(self._home.channel.stream_stream(METHOD)(metadata=self._access.metadata()))
        try:
            answer = await within(self._said_hello(), self._attach_within)
            session.attached(answer, await leased(session.mapped, answer))
        except BaseException as error:
            # There is no call that could be ended in order.
            self._home.call = None
            await self.end()
            if isinstance(error, asyncio.TimeoutError):
                raise CroupierError(no_answer(self._attach_within)) from error
            self._access.raise_hinted(error)
            raise
        return self

    async def _said_hello(self) -> bytes:
        await begin(self._home.call.call)
        await self._write(self._session.hello)
        return await self._read()

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        """Leaves the group. Whatever was sent before stays valid."""
        self._is_ended = True
        if self._is_forked():
            return
        if self._home.is_elsewhere():
            # As for a stream.
            self._leave_region()
            self._home.leave()
            return
        await self._home.end(self._end)

    async def _end(self) -> None:
        try:
            if self._home.call is not None and not self._home.call.done():
                await end_in_order(self._home.call)
        finally:
            self._leave_region()
            if self._home.channel is not None:
                await self._home.channel.close()

    def _leave_region(self) -> None:
        if self._session.region:
            self._session.region.close()

    async def rows(self, count: int) -> Rows:
        """See `croupier.Rank`."""
        await self._wait_for_room()
        return self._session.rows(count)

    async def send(self, logits: Whole, step_id: int | None = None) -> int:
        """See `croupier.Rank`."""
        await self._send_unsent()
        # Checked before room is waited for and taken.
        self._session.number(step_id)
        if not isinstance(logits, Rows):
            await self._wait_for_room()
        with self._session.to_announce(logits) as rows:
            await self._send_unsent()
            step = self._session.announce(rows, step_id)
        await self._send_unsent()
        return step

    async def tokens(self, step_id: int, timeout: float = 60.0) -> list[list[int]]:
        """See `croupier.Rank`."""
        self._check_attached()
        step_id, until = whole("step_id", step_id, 1, MOST_64), time.monotonic() + seconds("timeout", timeout)
        if self._session.unsent:
            await self._send_unsent()
        while self._session.may_be_refused(step_id):
            await self._answer()
        while (tokens := await asyncio.to_thread(self._session.tokens, step_id, until, timeout)) is None:
            # First take the answers that came before the end of the call, then raise why it ended.
            while self._home.call.done():
                await self._answer()
        return tokens

    async def wait(self) -> list[int]:
        """See `croupier.Rank`."""
        self._check_attached()
        while self._session.waiting:
            await self._answer()
        return self._session.told()

    def _check_attached(self) -> None:
        if self._home.call is None:
            self._check_not_ended()
            raise CroupierError(f"the rank is not attached: use it in `async with {self._entered_as}`")
        self._home.check()

    def _check_connected(self) -> None:
        self._check_not_ended()
        self._check_attached()
        if self._broken:
            raise CroupierError("the rank was interrupted during a send or a wait, which ended its call; attach again")

    async def _wait_for_room(self) -> None:
        await self._send_unsent()
        while not self._session.has_room() and self._session.waiting:
            await self._answer()
        if not self._session.has_room():
            raise CroupierError(NO_SLOT)

    async def _answer(self) -> None:
        """Takes in one answer."""
        await self._send_unsent()
        await self._whole(self._take_in())

    async def _take_in(self) -> None:
        self._session.answered(await self._read())

    async def _send_unsent(self) -> None:
        """See `croupier.Rank`."""
        self._check_connected()
        while pause := self._session.pause():
            await asyncio.sleep(pause)
        await self._whole(self._send_out())

    async def _send_out(self) -> None:
        if unsent := self._session.unsent:
            # From here on it will be sent, even if somebody cancels this.
            self._session.unsent = None
            await self._write(unsent.message)

    async def _write(self, message: bytes) -> None:
        try:
            await self._home.call.write(message)
        except asyncio.InvalidStateError:
            # The call is over. Reading from it raises the reason.
            await self._read()
        except grpc.RpcError as error:
            raise failed(said(error), error) from error

    async def _whole(self, doing: Awaitable[None]) -> None:
        """Runs something after which the rank is unusable if it fails midway, because nobody can tell how much was sent
        or taken in. If it is cancelled, the next call continues."""
        try:
            await doing
        except CroupierError:
            raise
        except BaseException as error:
            is_cancelled_alone = isinstance(error, asyncio.CancelledError)
            self._broken |= not is_cancelled_alone
            if is_cancelled_alone and self._is_ended and not is_cancelled():
                self._check_not_ended()
            raise

    async def _read(self) -> bytes:
        try:
            message = await self._home.call.read()
        except grpc.RpcError as error:
            self._check_not_ended()
            raise failed(said(error), error) from error
        if message is grpc.aio.EOF:
            self._check_not_ended()
            raise CroupierError("the group has ended: rank 0 ended its stream")
        answer: bytes = message
        return answer
