"""The client for threads."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Iterator
from typing import Any

import grpc

from ._front import Front
from ._session import METHOD, Sequence, options
from .errors import CroupierError, RowError
from .schema import pb

_AGAIN = 0.05


def connect(address: str, vocab_size: int, **options: Any) -> Stream:
    """A stream to the server at `address`, `unix:PATH` or `HOST:PORT`; see `Stream`. Use it in a `with`."""
    return Stream(address, vocab_size, **options)


class Stream(Front):
    """One Decode stream. Leaving it frees its sequences. For one thread at a time.

    data_path: "auto" takes shared memory where it is to be had, "shared_memory" insists on it, "inline" does not ask.
    "device_memory" is memory of the GPU that the server samples on: rows have `__cuda_array_interface__`, and so may logits.
    A step waits for all that this process has asked of that GPU, since the server does not.
    device: the UUID of that GPU, "GPU-" and 36 characters, with "device_memory": another one is refused. Default: the server's.
    max_rows, slots: rows of the largest step, and how many steps may be written or under way, for shared and device memory.
    reconnect_within: seconds to try when the server is gone. Sequences are opened again with their tokens so far, and
    steps without a result are sent again: the tokens are those that would have come.
    vocab_shards: columns of each tensor-parallel rank. This is rank 0 then: its rows have the first of them, the other ranks
    `attach` with `shard_token` and bring the rest. What was under way when the server went away is `LogitsLost`.
    """

    def __init__(self, address: str, vocab_size: int, **options: Any) -> None:
        super().__init__(address, vocab_size, **options)
        self._connect()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends the stream and frees what it holds."""
        self._outbox.put(None)
        if self._session.region:
            self._session.region.close()
        self._channel.close()

    def sample(self, logits: Any, sequences: Iterable[Sequence]) -> list[int]:
        """The next token of each sequence, from its row. Raises `RowError` where a row has none."""
        return sampled(*self._step(logits, list(sequences)))

    def step(self, logits: Any, work: Iterable[Any] = ()) -> Any:
        """Any work: sequences to sample or `Work` messages. Gives the `StepResult`."""
        return self._step(logits, list(work))[1]

    def submit(self, logits: Any, work: Iterable[Any]) -> None:
        """Sends a step without waiting; `result` gives the results, in order."""
        self._outbox.put(self._session.step(logits, work))

    def result(self) -> Any:
        """The `StepResult` of the oldest step that was submitted."""
        return self._receive()[1]

    def _step(self, logits: Any, work: list[Any]) -> tuple[Any, Any]:
        if self._session.waiting:
            raise CroupierError("steps that were submitted wait for their results; take them first")
        self.submit(logits, work)
        return self._receive()

    def _receive(self) -> tuple[Any, Any]:
        while True:
            try:
                step, result = self._session.result(next(self._replies))
            except (grpc.RpcError, StopIteration) as error:
                if not is_gone(error):
                    raise CroupierError(said(error)) from error
                self._reconnect(error)
                continue
            if not result.HasField("refusal"):
                return step, result
            if len(self._session.waiting) > 1:
                # The steps behind it have run: it would come too late.
                self._session.refused()
                raise CroupierError(f"refused: {result.refusal.message}")
            time.sleep(result.refusal.retry_after_ms / 1000)
            self._outbox.put(self._session.encode(step))

    def _connect(self) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(self._address, options=options(self._address))
        self._outbox.put(pb.DecodeRequest(config=self._session.config).SerializeToString())
        call = self._channel.stream_stream(METHOD)
        self._replies: Iterator[bytes] = call(iter(self._outbox.get, None))
        try:
            ready = pb.DecodeResponse.FromString(next(self._replies)).ready
            self._session.lease(ready, self._address)
        except (grpc.RpcError, StopIteration) as error:
            self._hang_up()
            raise CroupierError(said(error)) from error
        except CroupierError:
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        self._outbox.put(None)
        self._channel.close()

    def _reconnect(self, error: BaseException) -> None:
        give_up = time.monotonic() + self._patience
        self._hang_up()
        while True:
            try:
                self._connect()
                self._reopen()
                break
            except (CroupierError, grpc.RpcError, StopIteration) as failed:
                cause = failed.__cause__ if isinstance(failed, CroupierError) else failed
                if not may_pass(cause) or time.monotonic() > give_up:
                    if isinstance(failed, CroupierError):
                        raise
                    raise CroupierError(said(failed)) from failed
                self._hang_up()
            time.sleep(_AGAIN)
        self._session.raise_if_lost()

    def _reopen(self) -> None:
        """Opens what is open, which a busy server may refuse for a while, and then sends what has no result."""
        first, *rest = self._session.again()
        self._outbox.put(first)
        while (result := self._session.result(next(self._replies))[1]).HasField("refusal"):
            time.sleep(result.refusal.retry_after_ms / 1000)
            self._outbox.put(first)
        for message in rest:
            self._outbox.put(message)


def sampled(step: Any, _: Any) -> list[int]:
    """The tokens of a step that samples."""
    if step.failures:
        raise RowError(step.failures)
    return [sequence.tokens[-1] for sequence in step.emits]


def is_gone(error: BaseException | None) -> bool:
    """Whether the server went away, so that another try may find it back."""
    if isinstance(error, (StopIteration, EOFError)):
        return True
    if not isinstance(error, grpc.RpcError):
        return False
    # What asyncio's gRPC says of a write to a call whose connection is gone; no server says it.
    from_core = error.code() == grpc.StatusCode.INTERNAL and error.details() == "Internal error from Core"
    return from_core or error.code() == grpc.StatusCode.UNAVAILABLE


def may_pass(error: BaseException | None) -> bool:
    """Whether connecting anew may work later: the server is not there yet, or still full of what was there before."""
    full = isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    return full or is_gone(error)


def said(error: BaseException) -> str:
    """What the server says."""
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    return "the server ended the stream"
