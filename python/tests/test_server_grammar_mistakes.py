"""An error in a grammar is reported with its field, and harms no other text."""

import json
import re
import types

import numpy as np
import pytest

import croupier
from croupier import pb
from croupier._params import params_of
from grammar_vocabulary import END, VOCAB, model, started, text_of


@pytest.fixture
def server(serve, tmp_path):
    return started(serve, tmp_path)


def why_not(address, eos=(END,), **fields):
    """The server's error for a text that is opened together with a valid one."""
    with croupier.connect(address, VOCAB, eos_token_ids=list(eos)) as stream:
        texts = [stream.open(seed=1), stream.open(seed=1, **fields)]
        with pytest.raises(croupier.OpenError) as error:
            stream.sample(np.stack([model([])] * 2), texts)
        assert len(texts[0].tokens) == 1 and list(error.value.failures) == [texts[1].id]
        assert stream.sample(model([]), texts[:1])
        return error.value.failures[texts[1].id]


@pytest.mark.parametrize(("grammar", "said"), [
    ({"json_schema": "{"}, "params.grammar.json_schema: is not valid JSON: EOF"),
    ({"json_schema": {"type": "card"}}, "params.grammar.json_schema: Invalid type: card"),
    ({"json_schema": {"propertyNames": {"maxLength": 3}}}, "params.grammar.json_schema: has keywords that no grammar can follow here"),
    ({"json_schema": False}, "params.grammar.json_schema: Unsatisfiable"),
    ({"json_schema": [{}]}, "params.grammar.json_schema: schema must be an object or boolean"),
    ({"regex": "(ab"}, "params.grammar.regex: .*unclosed group"),
    ({"regex": ""}, "params.grammar.regex: is empty"),
    ({"regex": "a" * 65537}, "params.grammar.regex: has 65537 bytes, at most 65536 are allowed"),
    ({"lark": "start: nothing"}, "params.grammar.lark: .*unknown name"),
    ({"lark": 'start: a\na[temperature=0.1]: "a"'}, "params.grammar.lark: has a temperature= of its own"),
    ({"lark": "start: %json"}, "params.grammar.lark: has %json without a JSON schema behind it"),
    ({"lark": 'start: "a" %json {"not": {}}'}, "params.grammar.lark: .*Unimplemented keys"),
    ({"regex": "a", "start_token_ids": [VOCAB]}, r"params.grammar.start_token_ids\[0\]: "),
])
def test_a_grammar_that_is_wrong_is_told_at_its_field(server, grammar, said):
    assert re.match(said, why_not(server.uds, grammar=grammar))


def test_what_a_grammar_needs_is_told(server, serve):
    any_json = {"json_schema": True}
    assert why_not(serve().uds, grammar=any_json).startswith("params.grammar: needs a server that compiles grammars, and this one does not")
    for fields in ({"eos": []}, {"ignore_eos": True}):
        assert why_not(server.uds, grammar=any_json, **fields).startswith("params.grammar: needs a token that ends the text; give eos_token_ids")
    for given in ({"default_params": {"grammar": any_json}, "eos_token_ids": []}, {"default_params": {"grammar": {"regex": "("}}, "eos_token_ids": [END]}):
        with pytest.raises(croupier.CroupierError, match="INVALID_ARGUMENT: config.default_params.grammar"):
            croupier.connect(server.uds, VOCAB, **given)


def test_a_text_may_end_at_a_stop_token_alone(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=1, grammar={"regex": "[ab]{4}"}, stop_token_ids=[END])
        while text.finish_reason is None:
            stream.sample(model(text.tokens), [text])
        assert text.finish_reason == "stop_token" and len(text_of(text.tokens)) == 4


def test_a_grammar_that_takes_too_long_fails_its_own_text(server):
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[END]) as stream:
        texts = [stream.open(seed=1), stream.open(seed=1, grammar={"regex": "a?" * 2000})]
        failures = {}
        for _ in range(30):
            try:
                stream.sample(np.stack([model(text.tokens) for text in texts]), texts)
            except croupier.RowError as error:
                failures = error.failures
                break
        assert [failure.status for failure in failures.values()] == ["GRAMMAR_TOO_COMPLEX"] and list(failures) == [texts[1].id]
        assert failures[texts[1].id].startswith("params.grammar: ") and len(texts[0].tokens) == len(texts[1].tokens) + 1
        # The text stays in this state until it is opened again with a simpler grammar.
        with pytest.raises(croupier.RowError) as error:
            stream.sample(model([]), texts[1:])
        assert error.value.failures[texts[1].id].status == "GRAMMAR_TOO_COMPLEX"
        assert stream.sample(model([]), texts[:1])


FORMS = [
    ({"json_schema": {"b": {"é": [1, 2.5, None]}, "a": True}}, pb.GrammarParams(json_schema='{"b":{"é":[1,2.5,null]},"a":true}')),
    ({"json_schema": True}, pb.GrammarParams(json_schema="true")),
    ({"json_schema": {}}, pb.GrammarParams(json_schema="{}")),
    ({"json_schema": ' {"type": "null"}'}, pb.GrammarParams(json_schema=' {"type": "null"}')),
    ({"json_schema": {"maximum": np.int64(5), "enum": np.arange(2)}}, pb.GrammarParams(json_schema='{"maximum":5,"enum":[0,1]}')),
    ({"json_schema": types.MappingProxyType({"a": {}})}, pb.GrammarParams(json_schema='{"a":{}}')),
    ({"regex": "a", "start_token_ids": np.array([5])}, pb.GrammarParams(regex="a", start_token_ids=[5])),
    ({"lark": 'start: "a"', "regex": None}, pb.GrammarParams(lark='start: "a"')),
    ({}, pb.GrammarParams()),
    ({"json_schema": None}, pb.GrammarParams()),
]


@pytest.mark.parametrize(("given", "wire"), FORMS, ids=map(str, range(len(FORMS))))
def test_grammars_may_be_given_in_every_form(given, wire):
    expected = pb.SamplingParams(grammar=wire)
    for form in (given, croupier.GrammarParams(**given), wire):
        assert params_of(None, {"grammar": form}) == expected == croupier.SamplingParams(grammar=form).to_pb()
        assert params_of({"grammar": {"regex": "b"}}, {"grammar": form}) == expected, "fields stand above the whole"
    # An explicitly empty grammar is present, and not the same as an absent one.
    assert expected.HasField("grammar")


def nested(depth):
    schema = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


CIRCULAR = {}
CIRCULAR["not"] = CIRCULAR


@pytest.mark.parametrize(("given", "kind", "said"), [
    ({"json_schema": {}, "regex": "a"}, ValueError, "GrammarParams has json_schema and regex, must have only one of them"),
    ({"lark": "a", "regex": ""}, ValueError, "GrammarParams has regex and lark, must have only one of them"),
    ({"json_schema": b"{}"}, TypeError, "json_schema is not a JSON schema: a dict, True, False or a string of JSON: it has b'{}'"),
    ({"json_schema": {"enum": {1, 2}}}, TypeError, "json_schema is not a JSON schema: .*: it has {1, 2}"),
    ({"json_schema": dict}, TypeError, "json_schema is not a JSON schema: .*: it has <class 'dict'>"),
    ({"json_schema": {"const": float("nan")}}, ValueError, "json_schema is not a JSON schema: .*not JSON compliant"),
    ({"json_schema": CIRCULAR}, ValueError, "json_schema is not a JSON schema: .*Circular"),
    ({"json_schema": nested(100_000)}, ValueError, "json_schema is not a JSON schema: .*recursion"),
    ({"json_schema": {"const": "\ud800"}}, ValueError, "SamplingParams.grammar.json_schema is .*, must be a JSON schema: a dict, True, False or a string of JSON"),
    ({"regex": 5}, TypeError, "SamplingParams.grammar.regex is 5, must be a string. A regular expression"),
    ({"json": {}}, TypeError, "GrammarParams has no field 'json'; did you mean 'json_schema'?"),
    ("[ab]", TypeError, "SamplingParams.grammar is .*, must be a GrammarParams or a dict of its fields: json_schema, regex, lark, gbnf, choices, start_token_ids"),
])
def test_mistakes_are_told_where_it_is_given(given, kind, said):
    with pytest.raises(kind, match=said):
        params_of(None, {"grammar": given})
    if isinstance(given, dict):
        with pytest.raises(kind, match=said):
            croupier.SamplingParams(grammar=croupier.GrammarParams(**given)).to_pb()


@pytest.mark.parametrize("name", ["json_schema", "regex", "lark", "structured_outputs", "response_format"])
def test_what_has_another_name_elsewhere_is_told_that_of_here(name):
    with pytest.raises(TypeError, match=f"SamplingParams has no field '{name}'; did you mean 'grammar'"):
        croupier.SamplingParams(**{name: json.dumps({})})
