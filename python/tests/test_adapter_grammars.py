"""Grammars in the parameters that the adapters take. In transformers Croupier applies them. vLLM and SGLang apply their own, and a grammar
for Croupier is refused with a hint what to use instead. A grammar in the server's defaults or presets never interferes silently."""

import json
import types

import engines
import numpy as np
import pytest
from croupier.integrations import _extra, huggingface
from grammar_vocabulary import END, VOCAB as WHOLE, model, started, text_of
from test_huggingface import PROMPT, config
from test_server_grammars import SCHEMA
from test_sglang import ROWS, forward, info, logits, sglang  # noqa: F401
from test_vllm import adapter, alone, new, processor, request, row
from test_vllm_extra import ORDER, ended_by, run, sampled
from test_vllm_v2 import Runner, vllm as vllm_v2  # noqa: F401

FORMS = [{"json_schema": {"type": "object"}}, {"jsonSchema": True}, {"json_schema": "{}"}, {"regex": "[ab]"}, {"lark": 'start: "a"', "start_token_ids": [5]}]
DEFAULTS = "[defaults]\ngrammar = {regex = \"[ab]{3}\"}\n"
PRESETS = "[json]\ndescription = \"any value\"\ngrammar = {json_schema = \"{}\"}\n"


@pytest.fixture
def vllm(monkeypatch):
    yield from adapter(monkeypatch)


def configured(serve, tmp_path, text):
    (tmp_path / "croupier.toml").write_text(text)
    return started(serve, tmp_path, f"--config={tmp_path / 'croupier.toml'}")


def preset(serve, tmp_path):
    (tmp_path / "presets.toml").write_text(PRESETS)
    return started(serve, tmp_path, f"--presets={tmp_path / 'presets.toml'}")


# transformers.


def generated(server, chosen, **fields):
    """A text from the adapter's sampler, on a stand-in for torch."""
    own = config(do_sample=True, max_length=len(PROMPT) + 200, eos_token_id=END, pad_token_id=0, **fields)
    params = huggingface.sampling_params(own, len(PROMPT))
    huggingface._merge(params, huggingface.params_of(chosen, {}))
    sampler = huggingface._Sampler(engines.fake_torch(), server.uds, params, 1, [PROMPT], own)
    sampler._open(WHOLE)
    [text] = sampler.texts
    while text.finish_reason is None:
        sampler._sample(model(text.tokens)[np.newaxis], [text])
    sampler.close()
    return text


@pytest.mark.parametrize("chosen", [{"grammar": {"json_schema": SCHEMA}}, {"grammar": {"json_schema": json.dumps(SCHEMA)}, "xtc_probability": 0.5}])
def test_transformers_texts_follow_a_grammar(serve, tmp_path, chosen):
    text = generated(started(serve, tmp_path), chosen, temperature=1.5, top_k=50)
    assert text.finish_reason == "eos" and list(json.loads(text_of(text.tokens))) == SCHEMA["required"]


def test_transformers_texts_follow_that_of_a_preset_or_of_the_server_s_defaults(serve, tmp_path):
    server = configured(serve, tmp_path, DEFAULTS)
    assert len(text_of(generated(server, {}).tokens).strip(b"ab")) == 0 != len(text_of(generated(server, {"grammar": {}}).tokens).strip(b"ab"))
    json.loads(text_of(generated(preset(serve, tmp_path), {"preset": "json"}).tokens))


# vLLM.


@pytest.mark.parametrize("grammar", FORMS, ids=str)
def test_vllm_is_told_to_use_its_own(vllm, vllm_v2, grammar):  # noqa: F811
    for module in (vllm, vllm_v2):
        for extra in ({"grammar": grammar}, json.dumps({"grammar": grammar})):
            with pytest.raises(ValueError, match=r'extra_args."croupier". has grammar, which vLLM handles itself: give the request structured_outputs'):
                module.CroupierLogitsProcessor.validate_params(request(extra_args={"croupier": extra}))
        module.CroupierLogitsProcessor.validate_params(request(extra_args={"croupier": {"grammar": {}}}))


def test_a_grammar_of_the_server_s_defaults_refuses_no_request_of_vllm(vllm, serve, tmp_path, caplog):
    each = new([1], seed=1)
    sampled(vllm, configured(serve, tmp_path, DEFAULTS), each)
    assert each["true"] == alone(serve(), each, seed=1, sampler_order=ORDER) and not caplog.records


def test_nor_one_of_vllm_s_newer_runner(vllm_v2, serve, tmp_path, caplog):  # noqa: F811
    runner = Runner(vllm_v2, configured(serve, tmp_path, DEFAULTS))
    runner.add(0, [1], seed=1)
    for _ in range(8):
        runner.step([0])
    assert len(runner.text(0)) == 8 and not caplog.records


def test_a_preset_s_grammar_is_refused_in_vllm_unless_the_request_turns_it_off(vllm, serve, tmp_path, monkeypatch, caplog):
    server = preset(serve, tmp_path)
    monkeypatch.setenv("CROUPIER_VLLM_ADDRESS", server.uds)
    arrives = vllm.CroupierLogitsProcessor.validate_params
    with pytest.raises(ValueError, match=r"grammar: needs a token that ends the text"):
        arrives(request(extra_args={"croupier": {"preset": "json"}}))
    off = {"preset": "json", "grammar": {}}
    arrives(request(extra_args={"croupier": off}))
    # A request that was not checked on arrival is ended. It is never sampled without what it asks for.
    params = [ended_by(eos=5, extra_args={"croupier": {"preset": "json"}}), ended_by(eos=5, temperature=0.0, extra_args={"croupier": off})]
    _, outputs = run(vllm, processor(vllm, server), params, lambda step: [row([step])] * 2, 3)
    assert outputs == [[5] * 3, [int(row([step]).argmax()) for step in range(3)]]
    assert caplog.text.count("params.grammar: needs a token that ends the text") == 1


# SGLang.


@pytest.mark.parametrize("grammar", FORMS, ids=str)
def test_sglang_s_request_is_aborted_with_what_to_use(sglang, server, grammar):  # noqa: F811
    sampler, rows = sglang.CroupierSampler(server.uds), logits(2)
    asked = types.SimpleNamespace(to_finish=None)
    given = info(ROWS[:1] * 2, custom=[{"croupier": {"grammar": grammar}, "__req__": asked}, None])
    assert forward(sampler, rows, given)[0] == rows.argmax(1).tolist()
    assert asked.to_finish.status_code == 400
    assert "has grammar, which needs earlier tokens or is handled by SGLang itself; give the request json_schema, regex or ebnf" in asked.to_finish.message


def test_a_grammar_of_the_server_s_defaults_refuses_no_row_of_sglang(sglang, serve, tmp_path):  # noqa: F811
    rows = logits(2)
    assert forward(sglang.CroupierSampler(configured(serve, tmp_path, DEFAULTS).uds), rows, info(ROWS[:1] * 2))[0] == rows.argmax(1).tolist()


# vLLM and SGLang.


def test_a_schema_may_be_an_object_or_text():
    schema = {"properties": {"b": {}, "a": {}}}
    expected = '{"properties":{"b":{},"a":{}}}'
    for extra in ({"grammar": {"json_schema": schema}}, json.dumps({"grammar": {"jsonSchema": schema}}), {"grammar": {"json_schema": expected}}):
        assert _extra.parsed(extra, "there").grammar.json_schema == expected
    both = _extra.parsed({"top_k": -1, "grammar": {"json_schema": True, "start_token_ids": [3]}}, "there")
    assert both.HasField("top_k") and both.top_k == 0 and both.grammar.json_schema == "true" and list(both.grammar.start_token_ids) == [3]
    for wrong in ({"grammar": {"regex": "a", "lark": "b"}}, {"grammar": {"regex": 5}}, {"grammar": 5}, {"grammar": {"json": {}}}):
        with pytest.raises(ValueError, match="there must be fields of croupier.v1.SamplingParams"):
            _extra.parsed(wrong, "there")
