"""What survives a reconnect: texts that were closed meanwhile, texts that a full server has no room for yet, and texts of a step that
was answered only in part."""

import asyncio
import itertools
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

import croupier
from croupier import client, pb
from test_client import VOCAB, logits
from test_waiting import NAMES, stop


def rows(count, position):
    return np.stack([logits(text, position) for text in range(count)])


def closed_under_way(server, data_path, is_reused, die=None):
    """The tokens of a text that is closed while a step on it is in flight, and of the next text, which may have the same id."""
    with croupier.connect(server.uds, VOCAB, data_path=data_path, slots=4) as stream:
        first, other = stream.open(seed=1), stream.open(seed=2)
        stream.sample(rows(2, 0), [first, other])
        if die:
            stop(server)
        stream.submit(rows(2, 1), [first, other])
        stream.close(first)
        later = stream.open(seed=3, sequence_id=first.id) if is_reused else other
        stream.submit(rows(1, 2), [later])
        if die:
            die()
        results = [stream.result(), stream.result()]
        assert all(work.tokens for result in results for work in result.work)
        assert first.id not in stream.sequences or is_reused
        return first.tokens, other.tokens, later.tokens


@pytest.mark.parametrize("is_reused", [False, True], ids=["closed", "and its id reused"])
@pytest.mark.parametrize("data_path", ["inline", "auto"])
def test_a_text_that_was_closed_behind_a_step_has_its_token(server, data_path, is_reused):
    expected = closed_under_way(server, data_path, is_reused)
    assert [len(tokens) for tokens in expected[:2]] == [2, 2 if is_reused else 3]

    def die():
        server.kill()
        server.start()

    assert closed_under_way(server, data_path, is_reused, die) == expected


class Between:
    """A proxy to the server. It can keep the server's side open after the client's side is cut."""

    def __init__(self, server):
        self.path, self.held, self.server = f"{server.folder}/between", [], server
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            behind = socket.socket(socket.AF_UNIX)
            behind.connect(self.server.path)
            self.held.append((client, behind))
            for ends in (client, behind), (behind, client):
                threading.Thread(target=self.pass_on, args=ends, daemon=True).start()

    @staticmethod
    def pass_on(source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:
            pass

    def cut(self, side):
        """Cuts one side of every connection so far."""
        for pair in self.held:
            try:
                pair[side].shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()
        self.cut(1)


@pytest.fixture
def full(serve):
    server = serve("--max-sequences=4")
    between = Between(server)
    yield server, between
    between.close()


async def do(kind, thing):
    return thing if kind == "sync" else await thing


async def over_a_full_server(kind, address, between, patience, freed_after, **given):
    """The tokens of three texts, and the first error, over a connection that is cut only on the client's side."""
    raised = []
    module = croupier if kind == "sync" else croupier.aio
    stream = module.connect(f"unix:{address}", VOCAB, data_path="inline", reconnect_within=patience)
    if kind == "asyncio":
        await stream.__aenter__()
    texts = [stream.open(seed=seed, **given) for seed in range(3)]
    await do(kind, stream.sample(rows(3, 0), texts))
    between.cut(0)
    held, between.held = between.held, []
    if freed_after:
        threading.Timer(freed_after, held[-1][1].shutdown, [socket.SHUT_RDWR]).start()
    give_up, at = time.monotonic() + 60, [0, 1, 2]
    while at:
        try:
            await do(kind, stream.sample(rows(3, 1)[at], [texts[number] for number in at]))
        except croupier.OpenError as error:
            assert time.monotonic() < give_up, "the server keeps the places of a connection that is cut"
            if not raised:
                held[-1][1].shutdown(socket.SHUT_RDWR)
            raised.append(error)
        # The texts have lost nothing. The server needs a moment to notice that the other connection is gone.
        at = [number for number in at if texts[number].refused]
        for number in at:
            texts[number] = stream.open(texts[number].params, prompt=texts[number].prompt, output=texts[number].tokens)
    await do(kind, stream.end())
    return [text.tokens for text in texts], raised[:1]


@pytest.mark.parametrize("kind", NAMES)
def test_a_server_that_is_full_of_what_was_there_before_is_waited_for(full, kind):
    server, between = full
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(seed=seed) for seed in range(3)]
        expected = [stream.sample(rows(3, at), texts) and [list(text.tokens) for text in texts] for at in range(2)][-1]
    run = lambda *about: asyncio.run(over_a_full_server(kind, between.path, between, *about))
    assert run(20.0, 0.7) == (expected, [])
    # The client reconnects at once, but after that the server still has time to notice that the other connection is gone.
    assert run(0.0, 0.7) == (expected, [])
    tokens, [error] = run(0.5, None)
    assert tokens == expected
    assert {number: (why.status, why.field) for number, why in error.failures.items()} == {number: NO_ROOM for number in (2, 3)}


@pytest.mark.parametrize("kind", NAMES)
def test_each_message_of_texts_that_are_opened_again_has_its_time(full, kind, monkeypatch):
    server, between = full
    server.kill()
    server.flags = ("--max-sequences=4", "--max-message-bytes=8192")
    server.start()
    monkeypatch.setattr(client, "_ROOM_WITHIN", 1.0)
    # There are three messages. The first gets the only free place, and the second gets none in time.
    tokens, [error] = asyncio.run(over_a_full_server(kind, between.path, between, 0.0, 1.5, prompt=[500] * 3000))
    assert [*error.failures] == [2] and [len(text) for text in tokens] == [2, 2, 2]


NO_ROOM = ("RESOURCE_EXHAUSTED", "sequence_id")


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("is_begun", [True, False], ids=["in a step", "between steps"])
def test_a_text_that_a_new_server_has_no_room_for_keeps_no_other_from_going_on(serve, kind, is_begun):
    server = serve("--max-sequences=5")

    async def run():
        stream = (croupier if kind == "sync" else croupier.aio).connect(server.uds, VOCAB, data_path="inline", reconnect_within=1)
        if kind == "asyncio":
            await stream.__aenter__()
        texts = [stream.open(seed=seed) for seed in range(4)]
        await do(kind, stream.sample(rows(4, 0), texts))
        server.kill()
        server.start()
        with croupier.connect(server.uds, VOCAB) as other:
            other.sample(rows(2, 0), [other.open(), other.open()])
            if not is_begun:
                await do(kind, stream.submit(rows(4, 1), texts))
                await do(kind, stream.give_up())
            with pytest.raises(croupier.OpenError, match="^sequence 4: sequence_id: too many sequences are open .max_sequences.; close some, or raise it$") as error:
                await do(kind, stream.sample(rows(4, 1), texts))
            assert (error.value.failures[4].status, error.value.failures[4].field) == NO_ROOM and texts[3].refused == error.value.failures[4]
            assert [len(work.tokens) for work in error.value.result.work] == [1, 1, 1, 0]
            # The error is raised once.
            await do(kind, stream.sample(rows(3, 2), texts[:3]))
            with pytest.raises(ValueError, match="^sequence 4 was not opened: sequence_id: too many"):
                await do(kind, stream.sample(rows(4, 2), texts))
        await do(kind, stream.end())
        return [text.tokens for text in texts]

    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(seed=seed) for seed in range(4)]
        for at in range(3):
            stream.sample(rows(4, at), texts)
        expected = [text.tokens for text in texts]
    assert asyncio.run(run()) == [*expected[:3], expected[3][:1]]


def test_a_text_that_takes_too_much_memory_keeps_no_other_from_going_on(serve):
    server, remembered = serve("--max-state-bytes=1MiB"), {"prompt": [*range(1000)] * 25, "dry_multiplier": 1.0}
    with croupier.connect(server.uds, VOCAB, reconnect_within=1) as stream:
        large, small = stream.open(**remembered), stream.open()
        stream.sample(rows(2, 0), [large, small])
        server.kill()
        server.start()
        with croupier.connect(server.uds, VOCAB) as other:
            other.sample(rows(1, 0), [other.open(**remembered)])
            with pytest.raises(croupier.OpenError, match="max_state_bytes") as error:
                stream.sample(rows(2, 1), [large, small])
            assert [*error.value.failures] == [large.id] and len(small.tokens) == 2
            stream.sample(rows(2, 1)[1:], [small])


def opened_as(status, field="", message=""):
    return pb.StepResult(open=[pb.OpenResult(sequence_id=1, status=status, error=pb.FieldError(field=field, message=message))])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("is_reused", [False, True], ids=["closed", "and its id reused"])
def test_a_text_that_another_thread_closes_meanwhile_is_not_told_of(serve, monkeypatch, is_reused, when):
    """The text is closed before or after the server had no room for it."""
    server, more = serve("--max-sequences=2"), []
    monkeypatch.setattr(client, "_ROOM_WITHIN", 0.3)
    with croupier.connect(server.uds, VOCAB, reconnect_within=0) as stream:
        texts = [stream.open(seed=seed) for seed in range(2)]
        stream.sample(rows(2, 0), texts)
        server.kill()
        server.start()
        other, wait_no_more = croupier.connect(server.uds, VOCAB), stream._session.wait_no_more
        other.sample(rows(1, 0), [other.open()])

        def close():
            stream.close(texts[1])
            more.extend([stream.open(sequence_id=texts[1].id)] if is_reused else [])

        def waits_no_more(part):
            if when == "before":
                close()
            wait_no_more(part)
            if when == "after":
                close()
            other.end()

        stream._session.wait_no_more = waits_no_more
        stream.submit(rows(1, 1), texts[:1])
        assert stream.result().work[0].tokens and texts[1].refused
        stream.sample(rows(2, 2)[: 1 + is_reused], [texts[0], *more])
        assert len(texts[0].tokens) == 3 and [*stream.sequences.values()] == [texts[0], *more]


BUSY = pb.StepResult(refusal=pb.Refusal(reason="QUEUE_FULL", message="no room", retry_after_ms=5))
FULL = opened_as(pb.OPEN_STATUS_RESOURCE_EXHAUSTED, "sequence_id", "too many sequences are open")
GRAMMARS = opened_as(pb.OPEN_STATUS_RESOURCE_EXHAUSTED, "params.grammar", "other grammars take long")


def answering(stream, *answers):
    """Makes the server give these answers, in turn and then always the last one, when a text is opened again."""
    session, answer, left = stream._session, stream._session.answer, list(answers)

    def answered(reply):
        if session.waiting[0].step_id:
            return answer(reply)
        said = left.pop(0) if len(left) > 1 else left[0]
        return answer(pb.DecodeResponse(step=said).SerializeToString())

    session.answer = answered
    return answer


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("answers, said", [([BUSY], "no room"), ([FULL, BUSY], "no room"), ([GRAMMARS], "other grammars take long"),
                                           ([FULL, GRAMMARS], "other grammars take long")], ids="busy|full, then busy|grammars|full, then grammars".split("|"))
def test_a_server_that_is_busy_for_too_long_takes_no_text_away(server, kind, answers, said):
    async def run():
        stream = (croupier if kind == "sync" else croupier.aio).connect(server.uds, VOCAB, data_path="inline", reconnect_within=0.5)
        if kind == "asyncio":
            await stream.__aenter__()
        text = stream.open(seed=1)
        await do(kind, stream.sample(rows(1, 0), [text]))
        server.kill()
        server.start()
        answer = answering(stream, *answers)
        with pytest.raises(croupier.CroupierError, match=f"^texts cannot be opened again: {said}; steps without a result are given up, texts are unchanged"):
            await do(kind, stream.sample(rows(1, 1), [text]))
        stream._session.answer = answer
        await do(kind, stream.sample(rows(1, 1), [text]))
        assert len(text.tokens) == 2
        await do(kind, stream.end())

    asyncio.run(run())


def test_a_text_whose_grammar_has_to_wait_is_opened_when_its_turn_comes(server):
    with croupier.connect(server.uds, VOCAB, data_path="inline") as stream:
        text = stream.open(seed=1)
        stream.sample(rows(1, 0), [text])
        server.kill()
        server.start()
        answering(stream, GRAMMARS, GRAMMARS, opened_as(pb.OPEN_STATUS_OK))
        stream.sample(rows(1, 1), [text])
        assert len(text.tokens) == 2


def test_a_step_that_is_given_up_after_a_part_of_it_was_answered_leaves_texts_as_they_were(serve):
    server = serve("--max-rows-per-step=4")
    with croupier.connect(server.uds, VOCAB, data_path="inline", reconnect_within=0.5) as stream:
        texts = [stream.open(seed=seed, max_tokens=2 if seed < 2 else 9) for seed in range(8)]
        stream.sample(rows(8, 0), texts)
        before = [list(text.tokens) for text in texts]
        session, outbox = stream._session, stream._outbox
        answer, again, put, state = session.answer, session.again, outbox.put, []

        def answered(reply):
            told = answer(reply)
            if not state:
                state.append("one part is answered")
                server.kill()
                server.start()
            return told

        def opened_again():
            parts = again()
            server.kill()
            session.again = again
            state.append([len(text.tokens) for text in texts])
            return parts

        class FirstOnly:
            """An outbox of which only the first part reaches the server."""
            get = outbox.get

            def put(self, message):
                if not state and not self.has_one:
                    self.has_one = True
                    put(message)
            has_one = False

        session.answer, session.again, stream._outbox = answered, opened_again, FirstOnly()
        with pytest.raises(croupier.CroupierError, match="texts are unchanged"):
            stream.sample(rows(8, 1), texts)
        session.answer = answer
        assert state[1] == [2, 2, 2, 2, 1, 1, 1, 1], "of one part the tokens were there when it went again"
        assert [text.tokens for text in texts] == before and {text.finish_reason for text in texts} == {None}
        server.start()
        assert len(stream.sample(rows(8, 1), texts)) == 8
        assert [len(text.tokens) for text in texts] == [2] * 8 and texts[0].finish_reason == "max_tokens"


def test_texts_that_other_threads_open_during_steps_are_opened(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        own, opened, is_over, row = stream.open(seed=1), [], threading.Event(), rows(1, 0)

        def open_some():
            for number in itertools.takewhile(lambda _: not is_over.is_set(), itertools.count()):
                opened.append(stream.open(seed=2))
                # However long the steps take, there are no more texts than the stream may have.
                if number % 3 == 2 or len(opened) > 1000:
                    stream.close(opened.pop())
                time.sleep(0.0002)

        thread = threading.Thread(target=open_some)
        thread.start()
        for _ in range(1500):
            stream.sample(row, [own])
        is_over.set()
        thread.join()
        assert len({text.id for text in opened}) == len(opened) > 100
        some = opened[-400:]
        assert len(stream.sample(np.repeat(row, len(some), 0), some)) == len(some)


def test_rows_of_an_interrupted_step_stay_what_they_were(server):
    expected = closed_under_way(server, "inline", False)[1][:2]
    with croupier.connect(server.uds, VOCAB, data_path="inline") as stream:
        stream.sample(rows(1, 0), [stream.open(seed=1)])
        text, mine = stream.open(seed=2), rows(2, 0)[1:]
        stream.sample(mine, [text])
        mine = rows(2, 1)[1:]
        stop(server)
        interrupt = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            stream.sample(mine, [text])
        mine[:] = 0
        mine[0, 5] = 99
        server.kill()
        server.start()
        stream.result()
        assert text.tokens == expected


@pytest.mark.parametrize("kind", NAMES)
def test_what_is_ended_while_it_connects_again_stays_ended(serve, kind):
    server = serve()

    async def run():
        module = croupier if kind == "sync" else croupier.aio
        stream = module.connect(server.uds, VOCAB)
        if kind == "asyncio":
            await stream.__aenter__()
        text = stream.open(seed=1)
        await do(kind, stream.sample(rows(1, 0), [text]))
        server.kill()

        async def sample():
            if kind == "sync":
                return await asyncio.to_thread(stream.sample, rows(1, 1), [text])
            return await stream.sample(rows(1, 1), [text])

        sampling = asyncio.ensure_future(sample())
        await asyncio.sleep(0.5)
        await do(kind, stream.end())
        server.start()
        with pytest.raises(croupier.CroupierError, match="was ended; connect a new one$"):
            await sampling
        # Its region is released after the error.
        give_up = time.monotonic() + 10
        while server.regions() and time.monotonic() < give_up:
            await asyncio.sleep(0.02)
        assert server.regions() == 0

    asyncio.run(run())


@pytest.mark.parametrize("where", ["text", "stream", "server"])
def test_what_samplers_learned_goes_on_whoever_turned_them_on(serve, where, tmp_path):
    settings = tmp_path / "croupier.toml"
    settings.write_text("[defaults]\nmirostat = 2\n" if where == "server" else "")
    server = serve(f"--config={settings}")
    given = {"mirostat": 2}

    def tokens(die):
        with croupier.connect(server.uds, VOCAB, default_params=given if where == "stream" else None) as stream:
            text = stream.open(seed=1, **(given if where == "text" else {}))
            for position in range(40):
                if position == 20:
                    die()
                stream.sample(rows(1, position), [text])
            return text.tokens

    def die():
        server.kill()
        server.start()

    assert tokens(lambda: None) == tokens(die)


@pytest.mark.parametrize("data_path", ["auto", "shared_memory"])
def test_asyncio_s_rows_come_back_after_a_long_outage(server, data_path):
    """They are asked for before the step that connects again."""
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB, data_path=data_path, reconnect_within=0) as stream:
            text, sent = stream.open(seed=1), []
            for at in range(4):
                if at == 1:
                    server.kill()
                    for _ in range(2):
                        with pytest.raises(croupier.CroupierError):
                            await step(stream, text, at)
                    server.start()
                sent.append(await step(stream, text, at))
                assert stream.data_path == "shared_memory"
            return text.tokens

    async def step(stream, text, at):
        taken = stream.rows(1)
        taken.write(rows(1, at))
        return await stream.sample(taken, [text])

    tokens = asyncio.run(run())
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=1)
        for at in range(4):
            stream.sample(rows(1, at), [text])
        assert tokens == text.tokens
