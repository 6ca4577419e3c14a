"""What the client itself costs in each step, beside its goal.

    python python/bench.py unix:/run/croupier/croupier.sock [--rows 64] [--vocab-size 128256] [--steps 500]

Three figures, each as CPU time for one step of `rows`, `submit` and `result`, so that neither waiting nor the server counts. Each is the least
and the median of many; other load on the machine makes them larger, never smaller.

- the client's own: of the calling thread, less what it spends in gRPC, which is handing over a message and fetching the answer;
- the whole process: all of its threads, those of gRPC too;
- bare gRPC: the whole process again, for the same message handed over as it is and its answer fetched and not read.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import croupier

#: Microseconds for a step of 64 rows in shared memory.
GOAL = 150.0
WARM_UP = 20


class Timed:
    """Calls that are left out: the thread's CPU time in them."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.spent = call, 0

    def __call__(self, *given: Any) -> Any:
        started = time.thread_time_ns()
        try:
            return self.call(*given)
        finally:
            self.spent += time.thread_time_ns() - started


class Outbox:
    """A stream's queue of messages to gRPC, or its answers."""

    def __init__(self, real: Any) -> None:
        self.put = Timed(real.put) if hasattr(real, "put") else None
        self.next = Timed(real.__next__) if hasattr(real, "__next__") else None

    def __next__(self) -> Any:
        return self.next()


def microseconds(spent: list[int]) -> tuple[float, float]:
    return min(spent) / 1e3, statistics.median(spent) / 1e3


def as_they_are(stream: Any, count: int) -> Any:
    """Rows with what is in their slot."""
    rows = stream.rows(count)
    # The client would refuse them, since nobody wrote them now.
    rows.is_written = True
    return rows


def clients_own(stream: Any, texts: list[Any], steps: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """The client's own time, and the whole process'."""
    outbox, replies = stream._outbox, stream._replies
    put, take = Outbox(outbox), Outbox(replies)
    stream._outbox, stream._replies = put, take
    own, whole = [], []
    for _ in range(steps):
        put.put.spent = take.next.spent = 0
        process, thread = time.process_time_ns(), time.thread_time_ns()
        stream.submit(as_they_are(stream, len(texts)), texts)
        stream.result()
        own.append(time.thread_time_ns() - thread - put.put.spent - take.next.spent)
        whole.append(time.process_time_ns() - process)
    stream._outbox, stream._replies = outbox, replies
    return microseconds(own[WARM_UP:]), microseconds(whole[WARM_UP:])


def bare(stream: Any, texts: list[Any], steps: int) -> tuple[float, float]:
    """gRPC's part, with a message that the client has made."""
    session = stream._session
    step = session.step(as_they_are(stream, len(texts)), texts)
    message = session.send(step.parts[0])
    spent = []
    for _ in range(steps):
        process = time.process_time_ns()
        stream._outbox.put(message)
        reply = next(stream._replies)
        spent.append(time.process_time_ns() - process)
    # The last one is the client's, so that it may go on.
    session.answer(reply)
    session.take()
    return microseconds(spent[WARM_UP:])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("address")
    options.add_argument("--rows", type=int, default=64)
    options.add_argument("--vocab-size", type=int, default=128_256)
    options.add_argument("--steps", type=int, default=500)
    given = options.parse_args()
    with croupier.connect(given.address, given.vocab_size, max_rows=given.rows) as stream:
        texts = [stream.open(seed=seed, temperature=0.8, top_k=50, top_p=0.9) for seed in range(given.rows)]
        logits = np.random.default_rng(0).normal(size=(given.rows, given.vocab_size)).astype(np.float32)
        for _ in range(2):
            # What is written stays in the slots.
            stream.sample(logits, texts)
        own, whole = clients_own(stream, texts, given.steps + WARM_UP)
        grpc = bare(stream, texts, given.steps + WARM_UP)
        path = stream.data_path
    load = os.getloadavg()[0]
    print(f"{given.rows} rows x {given.vocab_size} f32, {path}, {given.steps} steps, {os.cpu_count()} cores, load {load:.1f}; "
          "CPU time per step in µs\n")
    print("| | least | median | goal |\n|---|---|---|---|")
    goal = f"<= {GOAL:.0f}" if (given.rows, path) == (64, "shared_memory") else ""
    for name, (least, median), aim in (("the client's own", own, goal), ("the whole process, with gRPC", whole, ""),
                                       ("bare gRPC, the same message", grpc, "")):
        print(f"| {name} | {least:.0f} | {median:.0f} | {aim} |")


if __name__ == "__main__":
    main()
