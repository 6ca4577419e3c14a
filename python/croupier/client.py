"""The client for threads."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import grpc

from ._call import Limit, Turn, dial, end_in_order, following, hang_up, is_gone, no_answer
from ._checks import listed
from ._front import Front, backing_off
from ._options import StreamOptions
from ._results import checked
from ._status import failed, said
from ._types import Part, Rows, Sequence, Step
from ._wire import METHOD
from .errors import CroupierError, Failure, RowError
from .schema import pb

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._forms import Logits, Masks, Work

#: A try to connect has so many seconds at least: with a patience of nothing there would be none.
_TRY_WITHIN = 2.0
#: Each message that opens texts again is tried for so many seconds at least, however late the connection came. What the server has no room for
#: at first it may have later: a stream that was lost has its places until the server has noticed.
_ROOM_WITHIN = 3.0


def connect(address: str, vocab_size: int, **options: Unpack[StreamOptions]) -> Stream:
    """A stream to the server at `address`, `unix:PATH` or `HOST:PORT`; see `Stream`. Use it in a `with`."""
    return Stream(address, vocab_size, **options)


class Stream(Front):
    """One Decode stream. Leaving it frees its sequences. For one thread at a time.

    dtype: number format of the logits, "f32", "f16" or "bf16", or as numpy, PyTorch or ml_dtypes have it: `np.float16`, `torch.bfloat16`.
    data_path: "auto" takes shared memory where it is to be had, "shared_memory" insists on it, "inline" does not ask.
    "device_memory" is memory of the GPU that the server samples on: rows have `__cuda_array_interface__`, and so may logits.
    A step waits for all that this process has asked of that GPU, since the server does not.
    device: the UUID of that GPU, as `nvidia-smi -L` shows it, with "device_memory": another one is refused. Default: the server's.
    max_rows, slots: rows of the largest step, and how many steps may be written or under way, for shared and device memory. More `rows` than
    that go in messages with "auto", and are a ValueError with "shared_memory" and "device_memory".
    reconnect_within: seconds to try when the server is not there yet, or gone later. Then sequences are opened again with their tokens
    so far, and steps without a result are sent again: the tokens are those that would have come. A server that asks to leave, since it
    drains or has had the stream for `max_connection_age`, is left in the same way between two steps, once HOST:PORT leads to another;
    with shared memory, ranks, or drafts that it keeps, only when it goes.
    vocab_shards: columns of each tensor-parallel rank. This is rank 0 then: its rows have the first of them, the other ranks
    `attach` with `shard_token` and bring the rest. What was under way when the server went away is `LogitsLost`.
    tls_ca, tls_cert, tls_key, tls_name, auth_token, credentials: TLS and tokens, for HOST:PORT. The first three name files, PEM: the
    authorities of the server's certificate, and where the server asks for one the client's own; tls_name is the name in the server's
    certificate where `address` has another. auth_token is a token or a function that gives it. All are read anew for each connection.
    `grpc.ChannelCredentials` do in place of files.
    """

    def __init__(self, address: str, vocab_size: int, **options: Unpack[StreamOptions]) -> None:
        super().__init__(address, vocab_size, **options)
        self._turn = Turn("thread")
        # Of the connection, and of one that it moved away from.
        self._hang_up: Callable[[], Any] = lambda: None
        self._left = self._hang_up
        self._keep_trying(lambda _: None)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends the stream and frees what it holds."""
        is_up = not (self._is_ended or self._is_down)
        self._is_ended = True
        if self._is_forked():
            return
        try:
            if is_up and self._turn.is_free():
                end_in_order(self._outbox, self._replies)
        finally:
            self._session.leave_region()
            self._left()
            self._hang_up()

    def rows(self, count: int) -> Rows:
        with self._turn.mine():
            self._be_connected()
            # Taken by name: a signal's handler that comes behind the last call of a `with` may find it left and not ended.
            rows = super().rows(count)
        return rows

    rows.__doc__ = Front.rows.__doc__

    def sample(self, logits: Logits, sequences: Iterable[Sequence], *, token_masks: Masks | None = None, traceparent: str = "",
               deadline_ms: int = 0) -> list[int]:
        """The next token of each sequence, from its row. Raises `RowError` where a row has none, and `OpenError` where a sequence was not opened;
        the others have their tokens, and the error has the whole step's `result`.

        token_masks: which tokens may come, as engines for grammars fill it: int32 or uint32 words of shape (rows, vocab_size / 32
        rounded up), bit i % 32 of word i / 32 for token i; or bool of shape (rows, vocab_size); or a list with a row or None for each
        sequence.
        deadline_ms: rows that the server has not begun so long after it had the step are not sampled; 0 is no deadline."""
        texts = listed("sequences", sequences, "texts", "text")
        work: Iterable[Work] = texts if token_masks is None else self.masked(texts, token_masks)
        return sampled(texts, *self._step(logits, work, one_each=True, traceparent=traceparent, deadline_ms=deadline_ms))

    def step(self, logits: Logits, work: Iterable[Work] = (), *, traceparent: str = "",
             deadline_ms: int = 0) -> pb.StepResult:
        """Any work: sequences to sample or `Work` messages. Gives the `StepResult`: works that failed say so in their `status`, and
        raise nothing. Raises `OpenError` where sequences were not opened; the works of the others were done, and are in its `result`."""
        return checked(*self._step(logits, listed("work", work, "texts or works", "text"), traceparent=traceparent, deadline_ms=deadline_ms))

    def submit(self, logits: Logits, work: Iterable[Work], *, traceparent: str = "", deadline_ms: int = 0) -> None:
        """Sends a step without waiting; `result` gives the results, in order. It waits where the step has to be split and there is
        no room yet for all of it."""
        with self._turn.mine():
            self._be_connected()
            with self._kept(len(self._session.steps)):
                self._session.step(logits, work, keep=True, traceparent=traceparent, deadline_ms=deadline_ms)
                self._send()

    def result(self) -> pb.StepResult:
        """The `StepResult` of the oldest step that was submitted, as of `step`. Raises `RowError` too: where the server had no room for a part of
        it, and a step behind it was on its way already. The other parts were done, and are in the error's `result`."""
        with self._turn.mine():
            self._check_not_ended()
            if not self._session.steps:
                raise CroupierError("no step was submitted, or what was is given up")
            with self._kept():
                # What was interrupted goes on from where it was.
                self._be_connected()
                self._send()
                return checked(*self._receive())

    def give_up(self) -> None:
        """Gives up the steps whose results were not taken, such as one that Ctrl-C interrupted. Texts keep tokens that came before;
        the next step connects again."""
        with self._turn.mine():
            if self._session.steps and not self._is_ended:
                self._is_down = True
                self._hang_up()
                self._session.give_up()
                self._session.steps.clear()

    def _step(self, logits: Logits, work: Iterable[Work], **options: Any) -> tuple[Step, pb.StepResult]:
        with self._turn.mine():
            self._check_not_ended()
            if self._session.steps:
                raise CroupierError("steps that were submitted, or interrupted, wait for their results; take them first, with result(), "
                                    "or give_up()")
            self._be_connected()
            with self._kept():
                self._session.step(logits, work, **options)
                self._send()
                return self._receive()

    @contextlib.contextmanager
    def _kept(self, before: int = 0) -> Iterator[None]:
        """Where a signal's handler interrupts a step it goes on, with `result`: on another connection, since what this one still sends
        or reads nobody can tell, and with logits as they are now. Where there are no more steps than `before` it has not begun: those
        that are under way go on here."""
        try:
            yield
        except CroupierError:
            raise
        except BaseException:
            if len(self._session.steps) > before:
                self._is_down = True
                self._session.keep_rows()
            raise

    def _send(self) -> None:
        """Sends what is to be sent."""
        while part := self._session.not_begun():
            if self._session.may_send(part):
                self._outbox.put(self._session.send(part))
            else:
                self._take()

    def _receive(self) -> tuple[Step, pb.StepResult]:
        while self._session.steps[0].left:
            self._take()
        return self._session.take()

    def _take(self) -> None:
        """One answer."""
        try:
            reply = following(self._replies)
        except (grpc.RpcError, StopIteration) as error:
            self._check_not_ended()
            if not is_gone(error):
                raise self._given_up(error) from error
            self._reconnect(said(error))
            return
        self._is_torn = True
        refused = self._session.answer(reply)
        self._is_torn = False
        if refused:
            self._try_again(*refused)

    def _try_again(self, after: float, part: Part) -> None:
        time.sleep(after)
        self._outbox.put(self._session.encode(part))

    def _connect(self, until: float) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = self._access.channel()
        # Of a stream that is not ended too, when it is gone or the program ends: gRPC's threads could wait for it for ever.
        threads: list[threading.Thread] = []
        self._hang_up = weakref.finalize(self, hang_up, os.getpid(), self._outbox, self._channel, threads)
        self._outbox.put(pb.DecodeRequest(config=self._session.config).SerializeToString())
        method = self._channel.stream_stream(METHOD)
        self._replies = dial(method, self._outbox, self._access.metadata(self._traceparent), threads)
        try:
            with Limit(self._replies, try_within(until)) as limit:
                ready = pb.DecodeResponse.FromString(following(self._replies)).ready
            self._session.offered(ready)
            self._session.move(self._session.lease(ready, self._address))
        except (grpc.RpcError, StopIteration) as error:
            self._hang_up()
            # Where it took too long the call ended with what this side made of it.
            raise (CroupierError(limit.said()) if limit.said() else failed(said(error) + self._access.hint(error), error)) from error
        except CroupierError:
            self._hang_up()
            raise

    def _be_connected(self) -> None:
        self._check_whole()
        if self._is_down:
            self._reconnect()
        elif self._is_to_leave():
            self._move_on()

    def _move_on(self) -> None:
        """Goes over to the server that the address leads to now, since this one asked to leave. While there is none it stays."""
        outbox, channel, replies, hang_up, began = self._outbox, self._channel, self._replies, self._hang_up, time.monotonic()
        # As in a reconnect, for whoever interrupts it. Nobody hangs up before that is over: what a signal's handler raised may hold locks
        # of gRPC's for which its threads wait.
        self._is_down, self._left = True, hang_up
        try:
            self._connect(began)
        except CroupierError as error:
            if self._hang_up is not hang_up:
                self._hang_up()
            self._outbox, self._channel, self._replies, self._hang_up = outbox, channel, replies, hang_up
            self._stay(began, said(error))
            self._is_down = False
            return
        # Before texts are opened there: it may be the same server, which has no room for them twice.
        end_in_order(outbox, replies)
        hang_up()
        try:
            self._reopen(time.monotonic() + self._patience)
        except (CroupierError, grpc.RpcError, StopIteration) as error:
            self._reconnect(said(error))
        self._check_not_ended()
        self._say_connected()
        self._is_down = False

    def _reconnect(self, why: str = "") -> None:
        # Until it is done: who interrupts it finds no half of a connection.
        self._is_down = True
        self._say_lost(why)
        self._left()
        self._hang_up()
        try:
            self._keep_trying(self._reopen)
        except (CroupierError, grpc.RpcError, StopIteration) as error:
            self._check_not_ended()
            raise self._given_up(error) from error
        self._is_down = False
        self._session.raise_if_lost()

    def _keep_trying(self, then: Callable[[float], None]) -> None:
        """Connects, and does what is to be done then, for as long as `reconnect_within` says."""
        give_up, pauses = time.monotonic() + self._patience, backing_off()
        while True:
            try:
                self._connect(give_up)
                # Another thread may have ended it meanwhile.
                self._check_not_ended()
                then(give_up)
                self._check_not_ended()
                self._has_served = True
                self._say_connected()
                return
            except (CroupierError, grpc.RpcError, StopIteration) as error:
                self._hang_up()
                cause = error.__cause__ if isinstance(error, CroupierError) else error
                if not self._is_worth_waiting(cause) or time.monotonic() > give_up:
                    raise
                self._say_waiting(said(error))
            time.sleep(next(pauses))

    def _reopen(self, until: float) -> None:
        """Opens what is open, which a busy or full server may refuse for a while, and then sends what has no result."""
        first, rest = self._session.again()
        for part in first:
            self._outbox.put(self._session.encode(part))
            over = room_until(until)
            while refused := self._session.answer(following(self._replies)):
                if time.monotonic() > over:
                    self._session.wait_no_more(part)
                    break
                self._try_again(*refused)
        for part in rest:
            self._outbox.put(self._session.encode(part))


def try_within(until: float) -> float:
    """How many seconds one try to connect has."""
    return max(until - time.monotonic(), _TRY_WITHIN)


def room_until(until: float) -> float:
    """Until when room is waited for, for what is sent now."""
    return max(until, time.monotonic() + _ROOM_WITHIN)


def sampled(sequences: list[Sequence], step: Step, result: pb.StepResult) -> list[int]:
    """The tokens of a step that samples these. Raises as `Stream.sample`."""
    checked(step, result)
    closed = Failure("another thread closed it before its step", "CLOSED")
    gone = {sequence.id: closed for sequence, emitting in zip(sequences, step.emits) if emitting is None}
    if failures := gone | step.failures:
        raise RowError(failures, result)
    return [sequence.tokens[-1] for sequence in sequences]
