"""Compares the server's grammars with a grammar engine at the worker: with the masks that llguidance fills for the same tokenizer, a text
has the same tokens as with the server's own masks."""

import json

import numpy as np
import pytest

import croupier
from grammar_vocabulary import END, VOCAB, documented, model, started, tokenizer_json
from test_server_grammars import PARAMS, SCHEMA, behind, going

llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")
engine = pytest.importorskip("llguidance.numpy")

#: Allows all tokens with which the text can still match. Without this, if the next bytes are certain, llguidance allows only the first of
#: the tokens into which its tokenizer would split them.
ALL = '%llguidance {"no_forcing": true}\n'
LARK = r"""
start: item ("," " "? item)*
item: WORD | NUMBER | "[" start "]" | pair
pair: WORD ": " NUMBER
WORD: /[a-z]{1,6}/
NUMBER: /-?(0|[1-9][0-9]{0,3})/
"""
CALLS = documented("lark")
ADDRESS = {
    "$defs": {"node": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[a-z]{1,5}$"}, "next": {"$ref": "#/$defs/node"}},
                       "required": ["name"], "additionalProperties": False}},
    "anyOf": [{"$ref": "#/$defs/node"}, {"type": "number"}, {"const": "日本"}],
}
GRAMMARS = [
    ("json_schema", SCHEMA), ("json_schema", ADDRESS), ("json_schema", {"type": ["boolean", "null", "integer"]}),
    ("regex", r"(ab|[0-9]{2,4}|é+)(, (true|false))*"), ("regex", "[a-z]{3,8}@[a-z]{2,6}\\.(com|org)"), ("lark", LARK),
    ("lark", 'start: head "die"\nhead: /[^\\n]{0,20}/ "\\n"\n'), ("lark", CALLS),
    ("lark", CALLS.replace("start: TEXT (call TEXT)*", "start: call call?")),
]
LONGEST = 120


@pytest.fixture(scope="module")
def tokenizer():
    made = llguidance.LLTokenizer(tokenizer_json(), eos_token=END)
    assert made.vocab_size == VOCAB
    return made


@pytest.fixture
def server(serve, tmp_path):
    return started(serve, tmp_path)


def matcher(tokenizer, kind, grammar):
    if kind == "json_schema":
        text = "start: %json " + json.dumps(grammar)
    elif kind == "regex":
        text = json.loads(llguidance.LLMatcher.grammar_from_regex(grammar))["grammars"][0]["lark_grammar"]
    else:
        text = grammar
    made = llguidance.LLMatcher(tokenizer, ALL + text)
    assert not made.get_error()
    return made


def masks_of(matchers):
    masks = engine.allocate_token_bitmask(len(matchers), VOCAB)
    for row, each in enumerate(matchers):
        engine.fill_next_token_bitmask(each, masks, row)
        assert not each.get_error()
    return masks


def behind_masks(stream, tokenizer, kind, grammar, params):
    """Texts with masks from the worker."""
    texts = [stream.open(seed=seed, max_tokens=LONGEST, **each) for seed, each in enumerate(params)]
    matchers = {text.id: matcher(tokenizer, kind, grammar) for text in texts}
    while now := going(texts):
        masks = masks_of([matchers[text.id] for text in now])
        for text, token in zip(now, stream.sample(np.stack([model(text.tokens) for text in now]), now, token_masks=masks)):
            assert matchers[text.id].consume_token(token)
    return [text.tokens for text in texts]


@pytest.mark.parametrize(("kind", "grammar"), GRAMMARS, ids=[f"{kind}{at}" for at, (kind, _) in enumerate(GRAMMARS)])
def test_tokens_are_those_behind_the_masks_of_the_same_grammar(server, tokenizer, kind, grammar):
    params = PARAMS * 5
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END]) as stream:
        expected = behind_masks(stream, tokenizer, kind, grammar, params)
        texts = [stream.open(seed=seed, max_tokens=LONGEST, grammar={kind: grammar}, **each) for seed, each in enumerate(params)]
        while now := going(texts):
            stream.sample(np.stack([model(text.tokens) for text in now]), now)
        assert [text.tokens for text in texts] == expected
        assert len({tuple(text.tokens) for text in texts}) > 2 and any(text.finish_reason == "eos" for text in texts)


def test_both_hold_where_a_worker_has_a_mask_too(server, tokenizer):
    """Only tokens that neither mask removes are allowed."""
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END]) as stream:
        even = np.arange(VOCAB) % 2 == END % 2
        text, plain = (stream.open(seed=1, grammar={"regex": "[ -~]{12}"}) for _ in range(2))
        own = matcher(tokenizer, "regex", "[ -~]{12}")
        while text.finish_reason is None:
            stream.sample(model(text.tokens), [text], token_masks=even[np.newaxis])
            assert text.tokens[-1] % 2 == END % 2 and own.consume_token(text.tokens[-1])
        while plain.finish_reason is None:
            stream.sample(model(plain.tokens), [plain])
        assert any(token % 2 != END % 2 for token in plain.tokens)


def may_come(matcher, path):
    """Whether this sequence of tokens is allowed. After the end of a complete text, only the end token is."""
    seen = path[:path.index(END)] if END in path else path
    ahead = matcher.deep_copy()
    return (not seen or ahead.consume_tokens(seen)) and (seen == path or (ahead.is_accepting() and set(path[len(seen):]) == {END}))


def test_a_draft_model_draws_what_may_come_and_nothing_else(server, tokenizer):
    """Draft work is masked by the tokens that were drafted before it, along every branch."""
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END], max_rows=64) as stream:
        texts = [stream.open(seed=at, max_tokens=LONGEST, grammar={"json_schema": SCHEMA}) for at in range(4)]
        speculation, drafted = croupier.Speculation(stream), 0

        def draft_model(pairs):
            return np.stack([model([*path, *text.tokens]) for text, path in pairs])

        own = {text.id: matcher(tokenizer, "json_schema", SCHEMA) for text in texts}
        for is_tree in [False, True] * LONGEST:
            if not (now := going(texts)):
                break
            drafts = speculation.tree(now, draft_model, [-1, -1, 0, 0, 1]) if is_tree else speculation.chain(now, draft_model, 4)
            for draft in drafts:
                for index in range(len(draft.token_ids)):
                    path = [draft.token_ids[at] for at in draft.path(index)]
                    assert may_come(own[draft.sequence.id], path)
                    drafted += 1
            for verified in speculation.verify(drafts, behind(drafts)):
                for token in verified.token_ids:
                    assert own[verified.sequence.id].consume_token(token)
        assert all(text.finish_reason for text in texts) and drafted > 200
