"""A real grammar engine: llguidance fills the masks, and the text follows the grammar, whatever the logits are."""

import json

import numpy as np
import pytest

import croupier
from croupier import pb
from grammar_vocabulary import SCHEMA
from test_client import PATHS

llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")
engine = pytest.importorskip("llguidance.numpy")

LONGEST = 400


@pytest.fixture(scope="module")
def tokenizer():
    return llguidance.LLTokenizer("byte")


def matcher(tokenizer):
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA))
    return llguidance.LLMatcher(tokenizer, grammar)


def model(text, vocab_size):
    """Logits that know nothing of JSON. They are the same after the same text."""
    seed = np.random.default_rng([5, len(text), *text[-2:]])
    return (3 * seed.standard_normal(vocab_size)).astype("f4")


def mask_of(grammar, tokenizer):
    mask = engine.allocate_token_bitmask(1, tokenizer.vocab_size)
    engine.fill_next_token_bitmask(grammar, mask, 0)
    assert not grammar.get_error()
    return mask


def check(tokens):
    value = json.loads(bytes(tokens))
    assert set(value) == set(SCHEMA["required"])
    assert value["kind"] in SCHEMA["properties"]["kind"]["enum"] and len(value["name"]) <= 6
    assert 1 <= len(value["stakes"]) <= 3 and all(0 <= stake <= 999 for stake in value["stakes"])


def one_by_one(server, tokenizer, seed, path="auto", **params):
    with croupier.connect(server.uds, tokenizer.vocab_size, eos_token_ids=[tokenizer.eos_token], data_path=path) as stream:
        grammar, text = matcher(tokenizer), stream.open(seed=seed, max_tokens=LONGEST, **params)
        while text.finish_reason is None:
            mask = mask_of(grammar, tokenizer)
            token, = stream.sample(model(text.tokens, tokenizer.vocab_size)[np.newaxis], [text], token_masks=mask)
            assert grammar.consume_token(token)
    return text


@pytest.mark.parametrize("path", PATHS)
def test_texts_follow_the_schema_whatever_the_model_says(server, tokenizer, path):
    texts = [one_by_one(server, tokenizer, seed, path, **params) for seed, params in
             enumerate([{}, {"top_k": 5}, {"temperature": 0.0}, {"min_p": 0.2, "frequency_penalty": 0.5}, {"typical_p": 0.8}])]
    for text in texts:
        assert text.finish_reason == "eos"
        check(text.tokens[:-1])
    assert len({tuple(text.tokens) for text in texts}) == len(texts)


def test_drafts_behind_masks_leave_the_text_as_it_is(server, tokenizer):
    """Drafts the text's actual next tokens, now and then with a wrong one: the text is the same as with sampling one by one."""
    expected = one_by_one(server, tokenizer, 9).tokens
    with croupier.connect(server.uds, tokenizer.vocab_size, eos_token_ids=[tokenizer.eos_token]) as stream:
        grammar, text = matcher(tokenizer), stream.open(seed=9, max_tokens=LONGEST)
        # After the end, and after a token that the grammar forbids, nothing is accepted, so any mask will do.
        accepted, everything = 0, np.full_like(mask_of(grammar, tokenizer), -1)
        while text.finish_reason is None:
            at = len(text.tokens)
            draft = expected[at:at + 3]
            if at % 4 == 3:
                draft[-1] = (draft[-1] + 1) % 256
            masks, rows, ahead = [], [], grammar.deep_copy()
            for i in range(len(draft) + 1):
                masks.append(everything if ahead is None else mask_of(ahead, tokenizer))
                rows.append(model([*text.tokens, *draft[:i]], tokenizer.vocab_size))
                if ahead is not None and i < len(draft):
                    goes_on = draft[i] != tokenizer.eos_token and ahead.try_consume_tokens([draft[i]]) == 1
                    ahead = ahead if goes_on else None
            verify = pb.VerifyWork(draft_token_ids=draft, deterministic=pb.DeterministicDraft())
            work = pb.Work(sequence_id=text.id, verify=verify, token_masks=b"".join(mask.tobytes() for mask in masks))
            result = stream.step(np.stack(rows), [work]).work[0]
            assert result.status == pb.ROW_STATUS_OK, result.message
            accepted += result.verify.accepted_count
            for token in result.tokens:
                assert grammar.consume_token(token.token_id)
    assert text.tokens == expected
    assert accepted > len(expected) // 2
