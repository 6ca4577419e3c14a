"""A signal's handler that raises, at each point where Python may run one, in what a call changes: afterwards the call is done, not begun, or
goes on, and never is a text, a slot, a step's number or a shard lost. Python runs handlers behind calls, jumps back and at the start of
functions, so that is where `Points` raises; a trace function stands in for the signal."""

import asyncio
import dis
import gc
import pathlib
import sys

import numpy as np
import pytest

import croupier
from test_client import PATHS, VOCAB, logits, params
from test_leaving import SHARDS
from test_pauses import in_time  # noqa: F401

HERE = str(pathlib.Path(croupier.__file__).parent)
TEXTS = 2


class Alarm(Exception):
    """What a handler raises."""


class Points:
    """Raises at the `count`-th point of these functions of the client, by name."""

    def __init__(self, count, names):
        self.left, self.names, self.before = count, names, {}

    def call(self, does):
        """Whether it was interrupted."""
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
        if event == "call" and frame.f_code.co_name in self.names and frame.f_code.co_filename.startswith(HERE):
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return self._passed
        return None

    def _passed(self, frame, event, _):
        if event == "opcode":
            before = self.before.get(frame, "RESUME")
            self.before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith("CALL") or before in ("RESUME", "JUMP_BACKWARD"):
                self.left -= 1
                if not self.left:
                    self.before.clear()
                    sys.settrace(None)
                    raise Alarm
        elif event == "return":
            self.before.pop(frame, None)
        return self._passed


def each_point(names, attempt):
    """Makes an attempt for each point: it is given what may interrupt a call."""
    count = 0
    while True:
        count += 1
        points = Points(count, names)
        attempt(points)
        if points.left > 0:
            assert count > len(names), "nothing was interrupted"
            return
        gc.collect()


def rows(position):
    return np.stack([logits(text, position) for text in range(TEXTS)])


#: What changes a session, and what is called around it.
CHANGES = {"rows", "take", "discard", "_release", "mine", "close", "take_changes", "put_back", "step", "_part", "_number", "_step", "sample"}


@pytest.mark.parametrize("path", PATHS)
def test_a_step_is_done_or_not_begun(server, in_time, path):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(**params(text)) for text in range(TEXTS)]
        expected = [stream.sample(rows(position), texts) for position in range(3)]

    def attempt(points):
        with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
            old = stream.open(**params(0))
            stream.sample(logits(0, 0), [old])
            # They go with the step.
            texts = [stream.open(**params(text)) for text in range(TEXTS)]
            points.call(lambda: stream.close(old))
            if points.left > 0:
                points.call(lambda: stream.sample(write(stream, 0), texts))
            gc.collect()
            stream.close(old)
            if stream._session.steps:
                stream.result()
            elif not texts[0].tokens:
                stream.sample(rows(0), texts)
            for position in 1, 2:
                stream.sample(write(stream, position), texts)
            assert [text.tokens for text in texts] == [list(tokens) for tokens in zip(*expected)]
            assert len(stream._session.free) == (0 if path == "inline" else stream._session.slots)
            work = croupier.pb.Work(sequence_id=old.id, sample=croupier.pb.SampleWork())
            assert stream.step(logits(0, 0), [work]).work[0].status != croupier.pb.ROW_STATUS_OK, "it is closed there too"

    each_point(CHANGES, attempt)


def write(stream, position):
    found = stream.rows(TEXTS)
    found.write(rows(position))
    return found


def test_a_step_that_was_not_sent_counts_for_no_rank(server, in_time):
    def attempt(points):
        with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream, croupier.attach(stream.shard_token, 1) as rank:
            text = stream.open(**params(1))
            rank.send(logits(1, 0)[SHARDS[0]:])
            points.call(lambda: stream.sample(logits(1, 0)[: SHARDS[0]], [text]))
            if not stream._session.steps and not text.tokens:
                assert stream.sample(logits(1, 0)[: SHARDS[0]], [text])

    each_point({"step", "_part", "_parts", "_number"}, attempt)


@pytest.mark.parametrize("path", PATHS)
def test_a_shard_is_sent_once(server, in_time, path):
    told = []

    def attempt(points):
        with (croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS, data_path=path) as stream,
              croupier.attach(stream.shard_token, 1, data_path=path) as rank):
            text, columns = stream.open(**params(1)), logits(1, 0)[SHARDS[0]:]
            stream.submit(logits(1, 0)[: SHARDS[0]], [text])

            def bring():
                rank.send(columns)
                rank.wait()

            points.call(bring)
            gc.collect()
            try:
                if rank._session.step == 1:
                    rank.send(columns)
                assert rank.wait() == []
                assert len(rank._session.free) == (0 if path == "inline" else rank._session.group.slots)
                assert stream.result().work[0].status == croupier.pb.ROW_STATUS_OK
            except croupier.CroupierError as error:
                told.append(str(error))

    each_point({"rows", "take", "send", "announce", "to_send", "_send_unsent", "_read", "_answer", "answered", "wait"}, attempt)
    # While it takes in an answer.
    assert told and all("interrupted in the middle of a wait" in said for said in told)


@pytest.mark.parametrize("of", ["stream", "rank"])
def test_rows_that_only_the_garbage_collector_finds_give_back_their_slot(server, of):
    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream, croupier.attach(stream.shard_token, 1) as rank:
        place = stream if of == "stream" else rank
        count = len(place._session.free)
        ring = [place.rows(1)]
        ring.append(ring)
        del ring
        gc.collect()
        assert count and len(place._session.free) == count


def test_a_mistake_leaves_the_step_that_is_under_way(server):
    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream, croupier.attach(stream.shard_token, 1) as rank:
        text = stream.open(**params(1))
        stream.submit(logits(1, 0)[: SHARDS[0]], [text])
        with pytest.raises(ValueError, match="shape"):
            stream.submit(logits(1, 0), [text])
        rank.send(logits(1, 0)[SHARDS[0]:])
        # On another connection it would be LogitsLost.
        assert stream.result().work[0].status == croupier.pb.ROW_STATUS_OK


def test_a_step_that_is_not_sent_whole_is_told(server, monkeypatch):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            text = stream.open(**params(1))
            first = await stream.sample(logits(1, 0), [text])

            def fails(part):
                raise MemoryError

            with monkeypatch.context() as patch:
                patch.setattr(stream._session, "encode", fails)
                with pytest.raises(MemoryError):
                    await stream.sample(logits(1, 1), [text])
            with pytest.raises(croupier.CroupierError, match=r"left in the middle of a step; give_up\(\)"):
                await asyncio.wait_for(stream.result(), 10)
            await stream.give_up()
            assert text.tokens == first
            return first + await stream.sample(logits(1, 1), [text])

    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(**params(1))
        for position in range(2):
            stream.sample(logits(1, position), [text])
    assert asyncio.run(run()) == text.tokens


def test_a_submit_that_is_cancelled_before_it_begins_leaves_those_before(server, monkeypatch):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            text = stream.open(**params(1))
            await stream.submit(logits(1, 0), [text])
            # Where logits are on a GPU it waits for that first.
            with monkeypatch.context() as patch:
                patch.setattr(stream._session, "wanted", "device_memory")
                patch.setattr(stream._session, "synchronize", lambda: __import__("time").sleep(0.3))
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(stream.submit(logits(1, 1), [text]), 0.1)
            assert len((await stream.result()).work) == 1

    asyncio.run(run())
