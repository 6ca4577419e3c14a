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

from ._call import Limit, Turn, dial, end_in_order, following, forget, hang_up, no_answer
from ._checks import listed
from ._front import NO_STEP, Front, backing_off
from ._options import StreamOptions
from ._results import checked
from ._status import failed, said
from ._types import Part, Rows, Sequence, Step
from ._wire import METHOD
from .errors import CroupierError, Failure
from .schema import pb

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._forms import Logits, Masks, Work

#: Least time for an attempt to connect, in seconds. Without it there would be no attempt at all if the patience is
#: zero.
_TRY_WITHIN = 2.0
#: Least time for attempts to send each message that opens texts again, in seconds, however late the connection came. If
#: the server has no room at first, it may have some later: it keeps the places of a lost stream until it has noticed
#: the loss.
_ROOM_WITHIN = 3.0


def connect(address: str, vocab_size: int, **options: Unpack[StreamOptions]) -> Stream:
    """A stream to the server at `address`, which is `unix:PATH` or `HOST:PORT`; see `Stream`. Use it in a `with`."""
    return Stream(address, vocab_size, **options)


class Stream(Front):
    """One Decode stream, for one thread at a time. Leaving it frees its sequences.

    dtype: number format of the logits, "f32", "f16" or "bf16", or as numpy, PyTorch or ml_dtypes have it: `np.float16`,
    `torch.bfloat16`.
    data_path: "auto" uses shared memory if it is available, "shared_memory" insists on it, "inline" does not ask for
    it. "device_memory" is memory of the GPU that the server samples on: rows have `__cuda_array_interface__`, and
    logits may have it, too. A step waits for everything that this process has requested from that GPU, because the
    server does not.
    device: with "device_memory", the UUID of that GPU, as `nvidia-smi -L` shows it; another one is refused. Default:
    the server's GPU.
    max_rows, slots: for shared and device memory: rows of the largest step, and how many steps may be written or under
    way. If `rows` is called for more, they are sent in messages with "auto", and are a ValueError with "shared_memory"
    and "device_memory".
    reconnect_within: seconds to keep trying if the server is not there yet, or has gone away. After a reconnect,
    sequences are opened again with their tokens so far, and steps without a result are sent again. The tokens are the
    same as without the interruption. A server may ask the stream to leave, because it drains or because the stream has
    reached `max_connection_age`. The stream then moves in the same way between two steps, once HOST:PORT leads to
    another server. With shared memory, ranks, or drafts that the server keeps, it moves only when the server goes away.
    vocab_shards: columns of each tensor-parallel rank. This stream is then rank 0: its rows have the first of these
    columns. The other ranks `attach` with `shard_token` and send the rest. Steps under way when the server goes away
    raise `LogitsLost`.
    draft_vocabulary: the tokens of a draft model that knows only some of them, as the heads of EAGLE-3 do: entry i is the
    token of column i. Logits for draft work then have so many columns, and everything else speaks of the text's tokens.
    For a table of offsets, such as d2t, it is `numpy.arange(len(d2t)) + d2t`. Not with `vocab_shards`.
    tls_ca, tls_cert, tls_key, tls_name, auth_token, credentials: TLS and tokens, for HOST:PORT. The first three are
    names of PEM files: the authorities of the server's certificate, and, if the server asks for one, the client's own
    certificate and key. tls_name is the name in the server's certificate, if `address` has another one. auth_token is a
    token or a function that returns it. All of them are read again for each connection. `grpc.ChannelCredentials` may
    be given in place of the files.
    """

    def __init__(self, address: str, vocab_size: int, **options: Unpack[StreamOptions]) -> None:
        super().__init__(address, vocab_size, **options)
        self._turn = Turn("thread")
        # For the connection, and for one that the stream moved away from.
        self._hang_up: Callable[[], Any] = lambda: None
        self._left = self._hang_up
        self._keep_trying(lambda _: None)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends the stream and frees what it holds."""
        # As for a rank.
        is_first, self._is_ended = not self._is_ended, True
        # When the program ends, the stream has hung up before its last objects are let go, and no thread can be started any more.
        is_up = is_first and not self._is_down and getattr(self._hang_up, "alive", True)
        if self._is_forked():
            return
        try:
            if is_up and self._turn.is_free():
                end_in_order(self._outbox, self._replies)
        finally:
            self._session.leave_region()
            self._left()
            self._hang_up()

    def rows(self, count: int, *, draft: bool = False) -> Rows:
        with self._turn.mine():
            self._be_connected()
            # The result is bound to a name: a signal handler that runs after the last call in a `with` could find the
            # turn left but not ended.
            rows = super().rows(count, draft=draft)
        return rows

    rows.__doc__ = Front.rows.__doc__

    def sample(self, logits: Logits, sequences: Iterable[Sequence], *, token_masks: Masks | None = None, traceparent: str = "",
               deadline_ms: int = 0) -> list[int]:
        """Samples the next token of each sequence from its row. Raises `RowError` if a row gives no token, and
        `OpenError` if a sequence was not opened; if rows of others gave no token, the `RowError` about them is its
        `__cause__`. The other sequences have their tokens, and the error contains the `result` of the whole step.

        token_masks: which tokens may be sampled, as grammar engines fill it: int32 or uint32 words in the shape (rows,
        vocab_size / 32 rounded up), with bit i % 32 of word i / 32 for token i; or bool in the shape (rows,
        vocab_size); or a list with a row or None for each sequence.
        deadline_ms: rows that the server has not begun this long after it received the step are not sampled. 0: no
        deadline."""
        texts = listed("sequences", sequences, "texts", "text")
        work: Iterable[Work] = texts if token_masks is None else self.masked(texts, token_masks)
        return sampled(texts, *self._step(logits, work, one_each=True, traceparent=traceparent, deadline_ms=deadline_ms))

    def step(self, logits: Logits, work: Iterable[Work] = (), *, traceparent: str = "",
             deadline_ms: int = 0) -> pb.StepResult:
        """Does any work: sequences to sample, or `Work` messages. Returns the `StepResult`. Works that failed say so in
        their `status` and raise nothing. Raises `OpenError` if sequences were not opened; the works of the others were
        done and are in its `result`."""
        return checked(*self._step(logits, listed("work", work, "texts or works", "text"), traceparent=traceparent, deadline_ms=deadline_ms))

    def submit(self, logits: Logits, work: Iterable[Work], *, traceparent: str = "", deadline_ms: int = 0) -> None:
        """Sends a step without waiting for it. `result` returns the results, in order. It waits if the step must be
        split and there is not yet room for all of it."""
        with self._turn.mine():
            self._be_connected()
            with self._kept(len(self._session.steps)):
                self._session.step(logits, work, keep=True, traceparent=traceparent, deadline_ms=deadline_ms)
                self._send()

    def result(self) -> pb.StepResult:
        """The `StepResult` of the oldest submitted step, as `step` returns it. It also raises `RowError`, if the server
        had no room for a part of the step and a later step was already on its way. The other parts were done and are in
        the error's `result`."""
        with self._turn.mine():
            self._check_not_ended()
            if not self._session.steps:
                raise CroupierError(NO_STEP)
            with self._kept():
                # An interrupted step continues where it was.
                self._be_connected()
                self._send()
                return checked(*self._receive())

    def give_up(self) -> None:
        """Gives up the steps whose results were not taken, for example one that Ctrl-C interrupted. Texts keep tokens
        that came before. The next step connects again."""
        with self._turn.mine():
            if self._session.steps and not self._is_ended:
                self._is_down = True
                self._hang_up()
                self._session.give_up()
                self._session.steps.clear()

    def _step(self, logits: Logits, work: Iterable[Work], **options: Any) -> tuple[Step, pb.StepResult]:
        with self._turn.mine():
            self._check_whole()
            if self._session.steps:
                raise CroupierError("results of steps that were submitted or interrupted were not taken yet; take them first with result(), "
                                    "or call give_up()")
            self._be_connected()
            with self._kept():
                self._session.step(logits, work, **options)
                self._send()
                return self._receive()

    @contextlib.contextmanager
    def _kept(self, before: int = 0) -> Iterator[None]:
        """Lets a step that a signal handler interrupted continue with `result`. It continues on another connection,
        because nobody can tell what this one still sends or reads, and with the logits as they are now. If there are no
        more steps than `before`, the step has not begun, and the steps under way continue here."""
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
        """Sends the parts that are to be sent."""
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
        """Takes in one answer."""
        try:
            reply = following(self._replies)
        except (grpc.RpcError, StopIteration) as error:
            self._check_not_ended()
            if not self._is_worth_reconnecting(error):
                raise self._given_up(error) from error
            why = said(error)
            forget(error)
            self._reconnect(why)
            return
        self._is_torn = True
        refused = self._session.answer(reply)
        self._is_torn = self._is_late = False
        if refused:
            self._try_again(*refused)

    def _try_again(self, after: float, part: Part) -> None:
        time.sleep(after)
        self._outbox.put(self._session.encode(part))

    def _connect(self, until: float) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = self._access.channel()
        # This also covers a stream that was not ended, when it is freed or the program ends: gRPC's threads could wait
        # for it forever.
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
            # If it took too long, this side ended the call, and the call's error only says that.
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
        """Moves to the server that the address leads to now, because the present one asked the stream to leave. While
        there is no other, the stream stays."""
        outbox, channel, replies, hang_up, began = self._outbox, self._channel, self._replies, self._hang_up, time.monotonic()
        # As in a reconnect, in case of an interruption. Nobody may hang up before that is over: what a signal handler
        # raised may hold gRPC's locks, for which gRPC's threads wait.
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
        # The old call ends before texts are opened there: it may be the same server, which has no room for them twice.
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
        # Until the connection is complete, so that after an interruption nobody finds half of one.
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
        """Connects and then calls `then`. It keeps trying as long as `reconnect_within` allows."""
        give_up, pauses = time.monotonic() + self._patience, backing_off()
        while True:
            # Another thread may have ended the stream meanwhile.
            self._check_not_ended()
            try:
                self._connect(give_up)
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
                forget(error)
            time.sleep(next(pauses))

    def _reopen(self, until: float) -> None:
        """Opens the open texts again, which a busy or full server may refuse for a while. Then sends what has no
        result."""
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
    """Seconds for one attempt to connect."""
    return max(until - time.monotonic(), _TRY_WITHIN)


def room_until(until: float) -> float:
    """How long to wait for room for what is sent now."""
    return max(until, time.monotonic() + _ROOM_WITHIN)


def sampled(sequences: list[Sequence], step: Step, result: pb.StepResult) -> list[int]:
    """The tokens of a step that samples these sequences. Raises as `Stream.sample` does."""
    closed = Failure("another thread closed the text before its step", "CLOSED")
    gone = {sequence.id: closed for sequence, emitting in zip(sequences, step.emits) if emitting is None}
    checked(step, result, gone | step.failures)
    return [sequence.tokens[-1] for sequence in sequences]
