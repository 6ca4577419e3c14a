"""A signal handler interrupts a step. The step continues with `result` or is given up, and the texts are those of an undisturbed stream."""

import asyncio
import gc
import os
import signal
import sys
import threading

import croupier
import numpy as np
import pytest
from croupier import _call, _regions, client
from croupier._call import following
from test_waiting import stop

VOCAB = 4000
TEXTS = 240


class Alarm(Exception):
    """An exception that a program's own handler may raise."""


def rows(position):
    return np.random.default_rng(position).normal(size=(TEXTS, VOCAB)).astype(np.float32) * 3


def opened(server, data_path):
    # Slots of 8 rows: a step is sent as 30 messages, of which two are in flight.
    stream = croupier.connect(server.uds, VOCAB, data_path=data_path, max_rows=8, slots=2)
    return stream, [stream.open(seed=seed, temperature=0.9, presence_penalty=0.4) for seed in range(TEXTS)]


@pytest.fixture
def interrupted():
    """Calls a function and interrupts it after some seconds."""
    kinds = {}

    def handler(*_):
        # The signal may be late. Then it must interrupt nothing, not even the test.
        if "now" in kinds:
            raise kinds.pop("now")

    before = signal.signal(signal.SIGALRM, handler)

    def call(does, seconds, kind):
        try:
            kinds["now"] = kind
            signal.setitimer(signal.ITIMER_REAL, seconds)
            does()
            kinds.clear()
        except kind:
            return True
        return False

    yield call
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def expected(server):
    stream, texts = opened(server, "inline")
    with stream:
        for position in range(3):
            stream.sample(rows(position), texts)
        return [text.tokens for text in texts]


@pytest.mark.parametrize("data_path", ["inline", "shared_memory"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, Alarm])
def test_a_split_step_goes_on(server, expected, interrupted, data_path, kind):
    hits = 0
    # A step takes some 30 ms, or longer if other programs run too.
    for seconds in (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5):
        if hits > 2:
            break
        stream, texts = opened(server, data_path)
        with stream:
            stream.sample(rows(0), texts)
            mine = rows(1)
            if interrupted(lambda: stream.sample(mine, texts), seconds, kind):
                # The program may change the logits by then.
                mine[:] = 0
                if not any(len(text.tokens) > 1 for text in texts) and not stream._session.steps:
                    # It was interrupted before anything was to be sent.
                    stream.sample(rows(1), texts)
                elif stream._session.steps:
                    hits += 1
                    try:
                        stream.result()
                    except croupier.CroupierError as error:
                        assert "processed an answer" in str(error)
                        continue
            stream.sample(rows(2), texts)
            assert [text.tokens for text in texts] == expected
    assert hits > 0, "no step was interrupted"


def test_a_step_that_is_given_up_leaves_texts_as_they_were(server, expected, interrupted):
    stream, texts = opened(server, "inline")
    with stream:
        stream.sample(rows(0), texts)
        stop(server)
        assert interrupted(lambda: stream.sample(rows(1), texts), 0.2, KeyboardInterrupt)
        server.process.send_signal(signal.SIGCONT)
        with pytest.raises(croupier.CroupierError, match=r"or call give_up\(\)"):
            stream.sample(rows(1), texts)
        stream.give_up()
        # Now there is nothing to give up.
        stream.give_up()
        for position in (1, 2):
            stream.sample(rows(position), texts)
        assert [text.tokens for text in texts] == expected


def test_one_that_falls_into_a_reconnect_finds_no_half_of_one(server, expected, interrupted):
    stream, texts = opened(server, "inline")
    with stream:
        stream.sample(rows(0), texts)
        server.kill()
        server.start()
        interrupted(lambda: stream.sample(rows(1), texts), 0.01, KeyboardInterrupt)
        if stream._session.steps:
            stream.result()
        elif len(texts[0].tokens) == 1:
            stream.sample(rows(1), texts)
        stream.sample(rows(2), texts)
        assert [text.tokens for text in texts] == expected


def test_a_connect_that_is_cancelled_closes_its_connection(server):
    async def run():
        async def connect():
            async with croupier.aio.connect(server.uds, VOCAB):
                pass

        await connect()
        stop(server)
        # The garbage collector must not happen to find what was not closed.
        gc.disable()
        try:
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(12):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(connect(), 0.05)
            server.process.send_signal(signal.SIGCONT)
            for _ in range(50):
                await asyncio.sleep(0.1)
                if (left := len(os.listdir("/proc/self/fd")) - before) < 6:
                    break
            assert left < 6
        finally:
            gc.enable()

    asyncio.run(run())


def test_rows_of_another_stream_are_refused(server):
    for path in "inline", "shared_memory":
        with (croupier.connect(server.uds, VOCAB, data_path=path) as mine,
              croupier.connect(server.uds, VOCAB, data_path=path, dtype="bf16") as other):
            text, theirs = mine.open(seed=1), other.rows(1)
            theirs.write(rows(0)[:1])
            with pytest.raises(ValueError, match="belong to another stream"):
                mine.sample(theirs, [text])
            with pytest.raises(ValueError, match="belong to another stream"):
                mine.discard(theirs)
            # The rows are still valid, and so is their slot.
            assert len(other.sample(theirs, [other.open(seed=1)])) == len(mine.sample(rows(0)[:1], [text])) == 1
            assert len(other._session.free) == (0 if path == "inline" else other._session.slots)


def test_rows_of_another_rank_are_refused(server):
    with croupier.connect(server.uds, VOCAB, vocab_shards=[1000, 3000]) as stream:
        with croupier.attach(stream.shard_token, 1) as rank:
            theirs = stream.rows(1)
            for taken in rank.send, rank.discard:
                with pytest.raises(ValueError, match="belong to another stream or rank"):
                    taken(theirs)
            stream.discard(theirs)


def test_a_rank_that_was_interrupted_says_so(server, interrupted):
    with croupier.connect(server.uds, VOCAB, vocab_shards=[1000, 3000]) as stream:
        with croupier.attach(stream.shard_token, 1) as rank:
            rank.send(rows(0)[:1, 1000:])
            assert interrupted(rank.wait, 0.1, KeyboardInterrupt)
            for again in rank.wait, lambda: rank.send(rows(1)[:1, 1000:]):
                with pytest.raises(croupier.CroupierError, match="interrupted during a wait"):
                    again()


def test_descriptors_are_not_handed_on(server, monkeypatch):
    import fcntl

    found, mapped = [], _regions.Region._map

    def looked_at(self, descriptor, leased):
        found.append(fcntl.fcntl(descriptor, fcntl.F_GETFD))
        mapped(self, descriptor, leased)

    monkeypatch.setattr(_regions.Region, "_map", looked_at)
    with croupier.connect(server.uds, VOCAB, data_path="shared_memory"):
        assert found == [fcntl.FD_CLOEXEC]


def test_a_side_connection_that_is_cut_off_is_tried_again(server, monkeypatch):
    ask, cut_off = _regions.Region._ask, [BrokenPipeError("for a moment"), ConnectionResetError("for a moment")]

    def sometimes(*given):
        if cut_off:
            raise cut_off.pop()
        return ask(*given)

    monkeypatch.setattr(_regions.Region, "_ask", sometimes)
    with croupier.connect(server.uds, VOCAB) as stream:
        assert (stream.data_path, cut_off) == ("shared_memory", [])


def test_ids_end(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        last = stream.open(sequence_id=2**64 - 1, seed=1)
        with pytest.raises(ValueError, match="no id is left after sequence_id 18446744073709551615"):
            stream.open()
        assert len(stream.sample(rows(0)[:1], [last])) == 1
        assert stream.open(sequence_id=7).id == 7


@pytest.mark.parametrize(("address", "says"), [("/run/c.sock", "unix:/run/c.sock"), ("./c.sock", "unix:./c.sock"), ("c.sock", "unix:c.sock"),
                                              ("~/c.sock", f"unix:{os.path.expanduser('~')}/c.sock"), ("http://h:1", "without a scheme"),
                                              ("TCP://h:1", "without a scheme")])
def test_an_address_of_another_kind_is_told_at_once(address, says):
    with pytest.raises(ValueError, match=says):
        croupier.connect(address, VOCAB)


def test_what_a_handler_raised_is_told_where_python_says_that_a_lock_is_not_held():
    class Replies:
        """Fails as `threading.Condition` does if it is interrupted between releasing its lock and waiting."""

        def __iter__(self):
            return self

        def __next__(self):
            lock = threading.RLock()
            with lock:
                lock.release()
                raise Alarm

    with pytest.raises(Alarm):
        following(Replies())


def test_a_handler_that_comes_when_grpc_has_taken_a_lock_leaves_it_free(server):
    # As if a signal came after the lock of a condition was taken, which gRPC's own threads also need, and before the `with` was entered.
    entered = []

    def traced(frame, event, _):
        if event == "call" and frame.f_code is threading.Condition.__enter__.__code__:
            return traced
        if event == "return" and frame.f_back.f_code.co_name in ("_next", "is_active") and not entered:
            entered.append(frame)
            raise Alarm
        return traced

    def interrupted(does):
        entered.clear()
        sys.settrace(traced)
        try:
            with pytest.raises(Alarm):
                does()
        finally:
            sys.settrace(None)
        assert entered

    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=1)
        interrupted(lambda: stream.sample(rows(0)[:1], [text]))
        # `result` hangs up first, and would wait for ever for a thread that waits for the lock.
        signal.alarm(20)
        stream.result()
        signal.alarm(0)
        assert len(text.tokens) == 1
    with croupier.connect(server.uds, VOCAB, vocab_shards=[1000, 3000], data_path="shared_memory") as stream:
        with croupier.attach(stream.shard_token, 1) as rank:
            step = rank.send(rows(0)[:1, 1000:])
            interrupted(lambda: rank.tokens(step, timeout=20))
            signal.alarm(20)
            with pytest.raises(croupier.CroupierError):
                rank.tokens(step, timeout=0.01)
        signal.alarm(0)


def test_a_close_that_is_interrupted_too_is_finished(server, monkeypatch):
    """gRPC's channel would stay half closed, and the next close would wait for the rest for ever."""
    close, is_raised, is_closed = _call._close, threading.Event(), threading.Event()

    def interrupted(*_):
        raise Alarm

    def closes(*given):
        # Whoever waits for this is interrupted, in the main thread.
        os.kill(os.getpid(), signal.SIGALRM)
        is_raised.wait(10)
        close(*given)
        is_closed.set()

    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        stream, texts = opened(server, "inline")
        with stream:
            with monkeypatch.context() as patch, pytest.raises(Alarm):
                patch.setattr(client, "following", interrupted)
                stream.sample(rows(0), texts)
            with monkeypatch.context() as patch, pytest.raises(Alarm):
                patch.setattr(_call, "_close", closes)
                # It hangs up first.
                stream.result()
            is_raised.set()
            stream.result()
            assert is_closed.wait(10) and all(len(text.tokens) == 1 for text in texts)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_stream_that_was_interrupted_amid_an_answer_says_so_to_the_end(server):
    stream, texts = opened(server, "inline")
    with stream:

        def interrupt(frame, event, _):
            if event == "call" and frame.f_code.co_name == "answer":
                sys.settrace(None)
                raise Alarm

        sys.settrace(interrupt)
        try:
            with pytest.raises(Alarm):
                stream.sample(rows(0), texts)
        finally:
            sys.settrace(None)
        # What is given up does not make the texts whole.
        for call in (stream.result, lambda: stream.sample(rows(0), texts), lambda: stream.give_up() or stream.step(None)):
            with pytest.raises(croupier.CroupierError, match="may have only part of it; connect again"):
                call()
