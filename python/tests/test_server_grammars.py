"""Grammars that the server compiles over its vocabulary: whatever the logits are, the text follows the grammar, on every path, alone and
among others, with drafts, and if its server goes away."""

import asyncio
import json
import re
import signal
import time

import numpy as np
import pytest

import croupier
from croupier import Draft
from grammar_vocabulary import END, SCHEMA, THOUGHT, VOCAB, model, started, text_of
from test_client import PATHS
from test_going_on import do
from test_moving import front
from test_waiting import NAMES

__all__ = ["front"]

LONGEST = 400
#: Parameters of texts in one batch.
PARAMS = [{}, {"temperature": 0.0}, {"temperature": 2.0, "top_k": 5}, {"temperature": 0.5, "frequency_penalty": 0.5}, {"min_p": 0.2},
          {"typical_p": 0.8, "mirostat": 2}, {"xtc_probability": 0.5, "xtc_threshold": 0.05}, {"temperature": 5.0}]


@pytest.fixture
def server(serve, tmp_path):
    return started(serve, tmp_path)


def check(text):
    """Checks that the text has ended and is a value of the schema."""
    assert text.finish_reason == "eos" and text.tokens[-1] == END
    value = json.loads(text_of(text.tokens))
    assert list(value) == list(SCHEMA["properties"])
    assert value["kind"] in SCHEMA["properties"]["kind"]["enum"] and len(value["name"]) <= 6
    assert 1 <= len(value["stakes"]) <= 3 and all(type(stake) is int and 0 <= stake <= 999 for stake in value["stakes"])


def going(texts):
    return [text for text in texts if text.finish_reason is None]


def opened(stream, grammar={"json_schema": SCHEMA}, count=len(PARAMS)):
    return [stream.open(seed=at, max_tokens=LONGEST, grammar=grammar, **PARAMS[at % len(PARAMS)]) for at in range(count)]


def rows(texts):
    return np.stack([model(text.tokens) for text in texts])


async def finished(kind, stream, texts, each_time=lambda: None):
    """Draws texts to their ends, all in one batch."""
    while now := going(texts):
        await do(kind, stream.sample(rows(now), now))
        each_time()
    return [text.tokens for text in texts]


async def together(kind, address, path="auto", each_time=lambda stream: None, **options):
    module = croupier if kind == "sync" else croupier.aio
    stream = module.connect(address, VOCAB, eos_token_ids=[END], data_path=path, **options)
    if kind == "asyncio":
        await stream.__aenter__()
    texts = opened(stream)
    tokens = await finished(kind, stream, texts, lambda: each_time(stream))
    for text in texts:
        check(text)
    await do(kind, stream.end())
    return tokens


@pytest.fixture
def expected(server):
    """The expected tokens, drawn one text after another."""
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END], data_path="inline") as stream:
        texts = opened(stream)
        for text in texts:
            while text.finish_reason is None:
                stream.sample(model(text.tokens), [text])
            check(text)
        assert len({tuple(text.tokens) for text in texts}) == len(texts)
        return [text.tokens for text in texts]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", NAMES)
def test_texts_are_values_of_the_schema_and_those_that_come_alone(server, expected, kind, path):
    assert asyncio.run(together(kind, server.uds, path)) == expected


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", NAMES)
def test_they_go_on_when_their_server_is_killed(server, expected, kind, path):
    steps = []

    def kill(stream):
        steps.append(1)
        if len(steps) in (1, 7, 20):
            server.kill()
            server.start()

    assert asyncio.run(together(kind, server.uds, path, kill)) == expected


@pytest.mark.parametrize("kind", NAMES)
def test_they_go_on_at_another_server(serve, tmp_path, front, server, expected, kind):
    first = front.behind = started(serve, tmp_path, "--drain-timeout=10m")
    steps, connections = [], []

    def leave(stream):
        steps.append(1)
        connections.append(front.connections)
        if len(steps) == 9:
            front.behind = server
            first.process.send_signal(signal.SIGTERM)
        if len(steps) > 9 and not stream._session.is_asked_to_leave:
            time.sleep(0.01)

    assert asyncio.run(together(kind, front.address, "inline", leave)) == expected
    assert first.process.wait(timeout=30) == 0
    assert connections[8] < connections[-1], "it went on at the other one"


def test_a_text_is_opened_with_what_there_is_of_it(server, expected):
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END]) as stream:
        for at in (1, 5, len(expected[0]) - 1):
            [text] = [stream.open(seed=0, max_tokens=LONGEST, grammar={"json_schema": SCHEMA}, output=expected[0][:at])]
            while text.finish_reason is None:
                stream.sample(model(text.tokens), [text])
            assert text.tokens == expected[0]
        wrong = stream.open(grammar={"json_schema": SCHEMA}, output=[*expected[0][:3], THOUGHT])
        with pytest.raises(croupier.OpenError, match=rf"sequence {wrong.id}: output_token_ids\[3\]: is not allowed by the grammar at this position"):
            stream.sample(model([]), [wrong])


CHOICES = ["card", "chips (two?)", "d|e", "日本"]


@pytest.mark.parametrize(("grammar", "words"), [
    ({"choices": CHOICES}, CHOICES), ({"choices": "\n".join(CHOICES) + "\n"}, CHOICES), (croupier.GrammarParams(choices=tuple(CHOICES)), CHOICES),
    ({"gbnf": 'root ::= die ("-" die)?\ndie ::= [1-6]'}, [f"{a}{b}" for a in "123456" for b in ["", *(f"-{c}" for c in "123456")]])])
def test_choices_and_rules_are_written_too(server, grammar, words):
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END]) as stream:
        texts = opened(stream, grammar, 24)
        while now := going(texts):
            stream.sample(rows(now), now)
        written = [text_of(text.tokens).decode() for text in texts]
        assert set(written) <= set(words) and len(set(written)) > 2, written


def test_choices_are_texts_of_one_line():
    for wrong in ("a\nb", "yes\r", "a\rb"):
        with pytest.raises(ValueError, match=re.escape(f"choices has {wrong!r}, and a choice is one line without line ends; use a regex")):
            croupier.GrammarParams(choices=["c", wrong]).to_pb()
    # On the wire, the last of these would be gone.
    for wrong in (["", "yes"], ["yes", ""], [""]):
        with pytest.raises(ValueError, match="choices has '', and a choice cannot be empty; leave it out, or use a regex"):
            croupier.GrammarParams(choices=wrong).to_pb()
    with pytest.raises(TypeError, match=r"choices has 5, must be a list of strings"):
        croupier.GrammarParams(choices=["c", 5]).to_pb()


def test_columns_of_ranks_and_listed_logits_give_the_same_texts(server, expected):
    half = VOCAB // 2
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END], vocab_shards=[half, VOCAB - half]) as stream:
        texts = opened(stream)
        with croupier.attach(stream.shard_token, 1) as rank:
            while now := going(texts):
                columns, others = stream.rows(len(now)), rank.rows(len(now))
                columns.array[:], others.array[:] = rows(now)[:, :half], rows(now)[:, half:]
                rank.send(others)
                stream.sample(columns, now)
        assert [text.tokens for text in texts] == expected
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END]) as stream:
        texts = opened(stream, count=3)
        while now := going(texts):
            stream.sample(stream.top_n(rows(now), VOCAB), now)
        assert [text.tokens for text in texts] == expected[:3]


def behind(drafts):
    """The rows for verifying these drafts."""
    return np.stack([model([*draft.sequence.tokens, *(draft.token_ids[at] for at in (draft.path(index) if index >= 0 else []))])
                     for draft in drafts for index in range(-1, len(draft.token_ids))])


def drafted(text, whole, is_tree):
    """Drafts the text's actual next tokens, now and then with a wrong token or one that the grammar forbids. In a tree, next to a branch
    that is wrong from its first token."""
    at = len(text.tokens)
    right = whole[at:at + 3]
    if at % 4 == 3:
        right[-1] = (right[-1] + 1 + at % 7) % VOCAB
    if not is_tree:
        return Draft(text, right)
    wrong = next(token for token in (END, at % VOCAB, 7) if token != right[0])
    return Draft(text, [wrong, *right, right[0]], [-1, -1, *range(1, len(right)), 0])


@pytest.mark.parametrize("is_tree", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize("kind", NAMES)
def test_drafts_without_chance_change_not_one_token(server, expected, kind, is_tree):
    async def run():
        module, accepted, passes = (croupier if kind == "sync" else croupier.aio), 0, 0
        stream = module.connect(server.uds, VOCAB, eos_token_ids=[END], max_rows=64)
        if kind == "asyncio":
            await stream.__aenter__()
        texts = opened(stream)
        speculation = (croupier.Speculation if kind == "sync" else croupier.AsyncSpeculation)(stream)
        while now := going(texts):
            drafts = [drafted(text, expected[texts.index(text)], is_tree) for text in now]
            verified = await do(kind, speculation.verify(drafts, behind(drafts)))
            accepted, passes = accepted + sum(len(each.accepted_path) for each in verified), passes + len(verified)
        await do(kind, stream.end())
        return [text.tokens for text in texts], accepted, passes

    tokens, accepted, passes = asyncio.run(run())
    assert tokens == expected
    assert accepted > sum(map(len, expected)) // 2 and passes < sum(map(len, expected))


@pytest.mark.parametrize("source", ["ngram", "suffix", "grammar", "a draft model", "a draft model, as a tree"])
def test_drafts_of_the_sidecar_stay_within_the_schema(server, expected, source):
    fields = {"proposer": {"kind": source}} if "model" not in source else {}
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END], max_rows=64) as stream:
        texts = [stream.open(seed=at, max_tokens=LONGEST, grammar={"json_schema": SCHEMA}, **PARAMS[at], **fields) for at in range(5)]
        speculation = croupier.Speculation(stream)

        def draft_model(pairs):
            return np.stack([0.8 * model([*text.tokens, *path]) for text, path in pairs])

        accepted = 0
        while now := going(texts):
            drafts = (speculation.proposed(now) if fields else speculation.tree(now, draft_model, [-1, -1, 0, 0]) if "tree" in source
                      else speculation.chain(now, draft_model, 3))
            verified = speculation.verify(drafts, behind(drafts))
            accepted += sum(len(each.accepted_path) for each in verified)
        for text in texts:
            check(text)
        assert accepted > (20 if "model" in source else 0)
        if fields:
            assert [text.tokens for text in texts] == expected[:5]


@pytest.mark.parametrize("begins, end", [({"start_token_ids": [THOUGHT]}, [THOUGHT]), ({"start_sequences": [[THOUGHT, THOUGHT], [THOUGHT, 2, THOUGHT]]}, [THOUGHT, 2, THOUGHT])])
def test_a_grammar_begins_behind_thinking(server, begins, end):
    grammar = {"json_schema": {"type": "boolean"}, **begins}
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END]) as stream:
        text = stream.open(seed=1, grammar=grammar, max_tokens=50)
        thinks = np.where(np.arange(VOCAB) == 2 + ord("x"), 20, 0).astype("f4")[np.newaxis]
        for _ in range(5):
            stream.sample(thinks, [text])
        for token in end:
            stream.sample(np.where(np.arange(VOCAB) == token, 60, 0).astype("f4"), [text])
        while text.finish_reason is None:
            stream.sample(thinks, [text])
        said, written = text.tokens[:5], text.tokens[5:]
        assert text_of(said) == b"xxxxx" and written[:len(end)] == end and json.loads(text_of(written[len(end):])) in (True, False)


def test_a_grammar_begins_in_a_text_that_goes_on(server):
    thinks = np.where(np.arange(VOCAB) == 2 + ord("x"), 20, 0).astype("f4")[np.newaxis]
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END]) as stream:
        # Thinking that has not ended by then. The budget remains, but forces nothing inside the grammar.
        budget = {"start_token_ids": [2 + ord("x")], "end_token_ids": [THOUGHT], "budget": 6}
        text = stream.open(seed=1, max_tokens=50, thinking_budget=budget)
        for _ in range(5):
            stream.sample(thinks, [text])
        on = stream.fork(text, grammar={"json_schema": {"type": "boolean"}, "start_position": len(text.tokens)}, seed=text.params.seed)
        stream.close(text)
        while on.finish_reason is None:
            stream.sample(thinks, [on])
        assert text_of(on.tokens[:5]) == b"xxxxx" and json.loads(text_of(on.tokens[5:])) in (True, False)
        with pytest.raises(croupier.OpenError, match=r"params.grammar.start_position: is 2, but start_token_ids also says where"):
            stream.sample(thinks, [stream.open(grammar={"regex": "a", "start_position": 2, "start_token_ids": [THOUGHT]})])


def test_a_stream_s_grammar_is_that_of_texts_that_say_nothing_else(server):
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END], default_params={"grammar": {"regex": "[ab]{3}"}}) as stream:
        texts = [stream.open(seed=1), stream.open(seed=1, grammar={}), stream.open(seed=1, grammar=croupier.GrammarParams(lark='start: "die"'))]
        for _ in range(3):
            stream.sample(rows(going(texts)), going(texts))
        assert text_of(texts[0].tokens).strip(b"ab") == b"" != text_of(texts[1].tokens).strip(b"ab")
        assert b"die".startswith(text_of(texts[2].tokens))


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_step_may_open_more_grammars_than_a_message(server, is_killed):
    """The server ends a stream that opens more than 64 grammars in one message."""
    count = 150
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END]) as stream:
        texts = [stream.open(seed=at, grammar={"regex": f"{at % 140}[ab]"}) for at in range(count)]
        while now := going(texts):
            stream.sample(rows(now), now)
            if is_killed and len(now) == count and len(texts[0].tokens) == 1:
                server.kill()
                server.start()
        assert [text_of(text.tokens)[:-1] for text in texts] == [b"%d" % (at % 140) for at in range(count)]
