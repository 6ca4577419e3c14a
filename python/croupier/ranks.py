"""Ranks above 0 of a tensor-parallel worker, for threads."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING

import grpc

from ._access import access_of
from ._checks import MOST_64, whole
from ._options import AccessOptions, RankOptions, seconds
from ._ranks import ATTACH_WITHIN, METHOD, NO_SLOT, RankFront, RankSession
from ._types import Rows
from ._call import Limit, Turn, dial, end_in_order, following, hang_up, is_active
from ._status import failed, said
from .client import connect
from .errors import CroupierError

if TYPE_CHECKING:
    from ._forms import Whole
    from typing_extensions import Unpack


def attach(token: str, rank: int, **options: Unpack[RankOptions]) -> Rank:
    """A rank above 0, attached to the stream with this `shard_token`; see `Rank`. Use it in a `with`."""
    return Rank(token, rank, **options)


class Rank(RankFront):
    """Sends one rank's columns of the rows that rank 0 samples. For one thread at a time.

    address: the server's address, if this rank reaches it by another one than rank 0 does.
    attach_within: longest time to wait for the server's first answer, in seconds.
    data_path, tls_ca and the options after it: as for `Stream`.

    All ranks count steps in the same way: the first rows that rank 0 sends are step 1, and so are the first rows from
    here. A rank that attaches later continues with the step after the last. When rank 0 has ended, or has connected
    again, the group is over: attach again with its new token.
    """

    def __init__(self, token: str, rank: int, *, address: str | None = None, data_path: str = "auto",
                 attach_within: float = ATTACH_WITHIN, **access: Unpack[AccessOptions]) -> None:
        super().__init__()
        self._is_cut_off, self._turn = False, Turn("thread", "rank", "wait")
        self._session = RankSession(token, rank, address, data_path)
        limit = seconds("attach_within", attach_within)
        self._access = access_of("attach", self._session.address, access, RankOptions)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = self._access.channel()
        threads: list[threading.Thread] = []
        self._hang_up = weakref.finalize(self, hang_up, os.getpid(), self._outbox, self._channel, threads)
        self._outbox.put(self._session.hello)
        self._replies = dial(self._channel.stream_stream(METHOD), self._outbox, self._access.metadata(), threads)
        limited = Limit(self._replies, limit)
        try:
            with limited:
                answer = self._read()
            self._session.attached(answer, self._session.mapped(answer))
        except BaseException as error:
            # There is no call that could be ended in order.
            self._hang_up()
            self.end()
            if isinstance(error, CroupierError) and limited.said():
                raise CroupierError(limited.said()) from error
            self._access.raise_hinted(error)
            raise

    def __enter__(self) -> Rank:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Leaves the group. Whatever was sent before stays valid."""
        # Nothing is called in between, so of several threads only one reads what is left. gRPC has no second reader.
        is_first, self._is_ended = not self._is_ended, True
        if self._is_forked():
            return
        try:
            # If another thread, or the code that a signal handler interrupted, waits for an answer, that wait ends with
            # the connection.
            if is_first and self._hang_up.alive and not self._is_cut_off and self._turn.is_free():
                end_in_order(self._outbox, self._replies)
        finally:
            if self._session.region:
                self._session.region.close()
            self._hang_up()

    def rows(self, count: int) -> Rows:
        """Rows of this rank's columns to write logits into. Then give them to `send`. Waits for room."""
        self._wait_for_room()
        return self._session.rows(count)

    def send(self, logits: Whole, step_id: int | None = None) -> int:
        """Announces this rank's columns of the next step, or of `step_id`, which must be a later one. Returns the step
        id."""
        self._send_unsent()
        # Checked before room is waited for and taken.
        self._session.number(step_id)
        if not isinstance(logits, Rows):
            self._wait_for_room()
        with self._session.to_announce(logits) as rows:
            self._send_unsent()
            step = self._session.announce(rows, step_id)
        self._send_unsent()
        return step

    def tokens(self, step_id: int, timeout: float = 60.0) -> list[list[int]]:
        """Waits until a sent step is sampled, and returns the tokens of each of its works; a work that failed has none.
        They are read from shared memory, so rank 0 need not pass them on. Call it for each step before as many further
        steps are sent as there are slots, and before rank 0 ends its stream."""
        step_id, until = whole("step_id", step_id, 1, MOST_64), time.monotonic() + seconds("timeout", timeout)
        if self._session.unsent:
            self._send_unsent()
        while self._session.may_be_refused(step_id):
            self._answer()
        while (tokens := self._session.tokens(step_id, until, timeout)) is None:
            # First take the answers that came before the end of the call, then raise why it ended.
            while not is_active(self._replies):
                self._answer()
        return tokens

    def wait(self) -> list[int]:
        """Waits until everything that was sent is done with. Returns the steps whose rows were not sampled."""
        while self._session.waiting:
            self._answer()
        return self._session.told()

    def _wait_for_room(self) -> None:
        self._send_unsent()
        while not self._session.has_room() and self._session.waiting:
            self._answer()
        if not self._session.has_room():
            raise CroupierError(NO_SLOT)

    def _answer(self) -> None:
        """Takes in one answer."""
        self._send_unsent()
        try:
            self._session.answered(self._read())
        except CroupierError:
            raise
        except BaseException:
            # gRPC continues the read, which nobody can take up again, and nobody can tell how much was taken in.
            self._is_cut_off = True
            raise

    def _send_unsent(self) -> None:
        """Sends the unsent shard as soon as it may be sent, before anything else is sent or read."""
        self._check_not_ended()
        while pause := self._session.pause():
            time.sleep(pause)
        if unsent := self._session.unsent:
            # Nothing comes between these two lines: a signal handler runs only after a call.
            self._session.unsent = None
            self._outbox.put(unsent.message)

    def _read(self) -> bytes:
        self._check_not_ended()
        try:
            with self._turn.mine():
                return following(self._replies)
        except (grpc.RpcError, StopIteration) as error:
            self._check_not_ended()
            over = "the group has ended: rank 0 ended its stream"
            raise failed(over if isinstance(error, StopIteration) else said(error), error) from error

    def _check_not_ended(self) -> None:
        super()._check_not_ended()
        if self._is_cut_off:
            raise CroupierError("the rank was interrupted during a wait, which ended its call; attach again")


class Sampler:
    """`connect` and `attach` under one name."""

    connect = staticmethod(connect)
    attach = staticmethod(attach)
