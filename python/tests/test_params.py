"""Parameters as dataclasses."""

import copy
import dataclasses
import json
import pathlib
import pickle
import re
import sys

import numpy as np
import pytest

import croupier
from croupier import params, pb
from croupier._params import params_of
from croupier.integrations import _extra
from test_client import VOCAB, logits

PYTHON = pathlib.Path(__file__).resolve().parents[1]


def test_what_is_generated_is_that_of_the_schema(tmp_path, monkeypatch):
    from google.protobuf import descriptor_pb2

    monkeypatch.syspath_prepend(str(PYTHON))
    import generate

    generate.main(tmp_path)
    sys.modules.pop("generate")
    shipped = PYTHON / "croupier"
    both = [descriptor_pb2.FileDescriptorSet.FromString((at / "sampler.binpb").read_bytes()) for at in (tmp_path, shipped)]
    assert both[0] == both[1], "run python/generate.py"
    for name in ("params.py", "_messages.pyi"):
        assert (tmp_path / name).read_text() == (shipped / name).read_text(), "run python/generate.py"


def test_every_field_of_the_schema_is_there_and_documented():
    source = (PYTHON / "croupier" / "params.py").read_text()
    for name in params.__all__:
        kind = getattr(params, name)
        assert kind.__doc__ and getattr(croupier, name) is kind
        if dataclasses.is_dataclass(kind):
            wire = getattr(pb, name).DESCRIPTOR.fields_by_name
            assert [field.name for field in dataclasses.fields(kind)] == list(wire)
            assert kind() == kind() and kind().to_pb() == getattr(pb, name)()
    # Each field is followed by a docstring.
    lines = source.splitlines()
    fields = [at for at, line in enumerate(lines) if re.match(r"    [a-z]\w*: .+ = ", line)]
    assert len(fields) > 100
    assert all(lines[at + 1].startswith('    """') for at in fields)


WHOLE = croupier.SamplingParams(
    temperature=0.5, top_k=0, logit_bias=[croupier.LogitBias(token_id=3, bias=-1.5)], stop_token_ids=(4, 5),
    engine_order=croupier.EngineOrder.VLLM, sampler_order=[], logprobs=croupier.LogprobsParams(top_n=2),
    watermark=croupier.WatermarkParams(gumbel=croupier.GumbelParams(key=7)), preset="chat", seed=1)
WIRE = pb.SamplingParams(
    temperature=0.5, top_k=0, logit_bias=[pb.LogitBias(token_id=3, bias=-1.5)], stop_token_ids=[4, 5],
    engine_order=pb.ENGINE_ORDER_VLLM, logprobs=pb.LogprobsParams(top_n=2),
    watermark=pb.WatermarkParams(gumbel=pb.GumbelParams(key=7)), preset="chat", seed=1)


def test_enums_of_the_wire_have_names_and_numbers():
    pb = croupier.pb
    file = pb.Work.DESCRIPTOR.file
    assert {"RowStatus", "FinishReason", "RemovedBy", "SamplerKind"} <= {*file.enum_types_by_name}
    for name, enum in file.enum_types_by_name.items():
        assert getattr(pb, name).items() == [(value.name, value.number) for value in enum.values]
        for value in enum.values:
            assert getattr(pb, name).Name(value.number) == value.name and getattr(pb, name).Value(value.name) == value.number == getattr(pb, value.name)
    assert pb.RowStatus.Name(pb.ROW_STATUS_NAN_LOGITS) == "ROW_STATUS_NAN_LOGITS"
    with pytest.raises(ValueError, match="999"):
        pb.RowStatus.Name(999)


def test_they_become_messages():
    assert WHOLE.to_pb() == WIRE
    assert not croupier.SamplingParams().to_pb().HasField("temperature")
    assert croupier.SamplingParams(temperature=np.float32(0.5), stop_token_ids=np.array([4, 5])).to_pb() == pb.SamplingParams(
        temperature=0.5, stop_token_ids=[4, 5])


class Scalar:
    """A PyTorch number as far as needed here: a zero-dimensional tensor, with the attributes of tensors."""

    ndim = 0

    def __init__(self, value):
        self.value = value

    def __iter__(self):
        raise TypeError("iteration over a 0-d tensor")

    def item(self):
        return self.value


@pytest.mark.parametrize("scalar", [np.array, Scalar])
def test_numbers_may_be_arrays_without_a_dimension(scalar):
    given = {"temperature": 0.5, "seed": 5, "max_tokens": 3, "ignore_eos": True, "top_k": -1, "engine_order": 3}
    assert croupier.SamplingParams(**{name: scalar(value) for name, value in given.items()}).to_pb() == croupier.SamplingParams(**given).to_pb()
    assert params_of(None, {"logprobs": {"top_n": scalar(2)}}) == pb.SamplingParams(logprobs=pb.LogprobsParams(top_n=2))


def test_they_do_not_change_and_can_be_copied():
    with pytest.raises(dataclasses.FrozenInstanceError):
        WHOLE.temperature = 1.0
    assert dataclasses.replace(WHOLE, seed=2).to_pb().seed == 2
    assert copy.deepcopy(WHOLE) == WHOLE == pickle.loads(pickle.dumps(WHOLE))
    with pytest.raises(TypeError, match="positional"):
        croupier.LogitBias(3, -1.5)


def test_mistakes_name_what_is_meant():
    for wrong, said in [
        (lambda: croupier.SamplingParams(temprature=1), "SamplingParams has no field 'temprature'; did you mean 'temperature'?"),
        (lambda: croupier.KgwParams(zzz=1), "KgwParams has no field 'zzz'; known: hashing_key, greenlist_ratio, bias, seeding_scheme, context_width$"),
        (lambda: croupier.KgwParams(key=1), "KgwParams has no field 'key'; did you mean 'hashing_key'.; known: hashing_key, greenlist_ratio, "),
        (lambda: croupier.KgwParams(width=1), "KgwParams has no field 'width'; did you mean 'context_width'.; known: context_width, hashing_key, "),
        (lambda: croupier.GrammarParams(words=1), "GrammarParams has no field 'words'; known: json_schema, regex, lark"),
        (lambda: croupier.SamplingParams(sampler_order="temperature").to_pb(),
         r"SamplingParams.sampler_order is 'temperature', must be a list of names, such as \['temperature'\]; known: unspecified, temperature, "),
        (lambda: croupier.SamplingParams(dry_sequence_breaker_texts="<|im_end|>").to_pb(),
         r"SamplingParams.dry_sequence_breaker_texts is '<.im_end.>', must be a list of texts, such as \['<.im_end.>'\]$"),
        (lambda: croupier.SamplingParams(engine_order="vlm").to_pb(), "^SamplingParams.engine_order is 'vlm', must be one of .*vllm"),
        (lambda: croupier.WatermarkParams(kgw=croupier.KgwParams(), gumbel=croupier.GumbelParams(key=1)).to_pb(), "kgw and gumbel"),
    ]:
        with pytest.raises((TypeError, ValueError), match=said):
            wrong()


WHOLE_NUMBER = "must be a whole number in 0 ..= 4294967295. "


@pytest.mark.parametrize("given, kind, said", [
    ({"top_k": -2}, ValueError, f"SamplingParams.top_k is -2, {WHOLE_NUMBER}Keep exactly the first k tokens of the order. 0: off;"),
    ({"top_k": -1.0}, TypeError, f"SamplingParams.top_k is -1.0, {WHOLE_NUMBER}"),
    ({"top_k": 5.0}, TypeError, f"SamplingParams.top_k is 5.0, {WHOLE_NUMBER}"),
    ({"top_k": np.float64(5)}, TypeError, f"SamplingParams.top_k is 5.0, {WHOLE_NUMBER}"),
    ({"top_k": "many"}, TypeError, f"SamplingParams.top_k is 'many', {WHOLE_NUMBER}"),
    ({"seed": -1}, ValueError, "SamplingParams.seed is -1, must be a whole number in 0 ..= 18446744073709551615. Seed of every"),
    ({"seed": 1, "top_p": 0.5, "temperature": "hot"}, TypeError,
     "SamplingParams.temperature is 'hot', must be a number. Logits are divided by it."),
    ({"ignore_eos": "yes"}, TypeError, "SamplingParams.ignore_eos is 'yes', must be True or False."),
    ({"preset": 5}, TypeError, "SamplingParams.preset is 5, must be a string."),
    ({"stop_token_ids": 5}, TypeError, f"SamplingParams.stop_token_ids is 5, must be a list, each {WHOLE_NUMBER[8:]}"),
    ({"stop_token_ids": [1, -1]}, ValueError, "SamplingParams.stop_token_ids is [1, -1], must be a list, each a whole number"),
    ({"logprobs": 5}, TypeError,
     "SamplingParams.logprobs is 5, must be a LogprobsParams or a dict of its fields: top_n, mode, token_ids. What to report"),
    ({"logprobs": {"top_n": -1}}, ValueError, "SamplingParams.logprobs.top_n is -1, "),
    ({"bad_words": [5]}, TypeError, "SamplingParams.bad_words is [5], must be a list, each a list of token ids, a TokenSequence or a dict of its fields: token_ids."),
    ({"bad_words": [[5, -1]]}, ValueError, "SamplingParams.bad_words[0].token_ids is [5, -1], must be a list, each a whole number"),
    ({"grammar": {"regex": "a", "start_sequences": [[1], [2, -1]]}}, ValueError, "SamplingParams.grammar.start_sequences[1].token_ids is [2, -1], must be"),
    ({"grammar": croupier.GrammarParams(regex="a", start_sequences=[[-1]])}, ValueError, "SamplingParams.grammar.start_sequences[0].token_ids is [-1], must be"),
    ({"logit_bias": [5]}, TypeError, "SamplingParams.logit_bias is [5], must be a list, each a LogitBias or a dict of its fields: token_id, bias."),
    ({"engine_order": ["vllm"]}, TypeError, "SamplingParams.engine_order is [3], must be one of unspecified, croupier, llama_cpp, vllm"),
    ({"engine_order": "vlm"}, ValueError, "SamplingParams.engine_order is 'vlm', must be one of unspecified, croupier, llama_cpp, vllm"),
    ({"engine_order": 3.5}, TypeError, "SamplingParams.engine_order is 3.5, must be one of unspecified, croupier, llama_cpp, vllm"),
    ({"logprobs": {"mode": "rraw"}}, ValueError, "SamplingParams.logprobs.mode is 'rraw', must be one of unspecified, raw, processed, tempered"),
    ({"logprobs": croupier.LogprobsParams(mode="rraw")}, ValueError, "SamplingParams.logprobs.mode is 'rraw', must be one of unspecified, raw, "),
    ({"watermark": {"kgw": {"seeding_scheme": "x"}}}, ValueError, "SamplingParams.watermark.kgw.seeding_scheme is 'x', must be one of unspecified, lefthash"),
    ({"sampler_order": ["top_k", "top_kk"]}, ValueError, "SamplingParams.sampler_order[1] is 'top_kk', must be one of unspecified, temperature"),
    ({"temperature": np.array("warm")}, TypeError, "SamplingParams.temperature is 'warm', must be a number."),
    ({"stop_token_ids": np.array(5)}, TypeError, f"SamplingParams.stop_token_ids is 5, must be a list, each {WHOLE_NUMBER[8:]}"),
    ({"stop": [5]}, TypeError, "SamplingParams has no field 'stop'; did you mean 'stop_token_sequences'? It takes token ids;"),
    ({"max_new_tokens": 5}, TypeError, "SamplingParams has no field 'max_new_tokens'; did you mean 'max_tokens'?"),
])
def test_mistakes_name_their_field(given, kind, said):
    with pytest.raises(kind) as error:
        croupier.SamplingParams(**given).to_pb()
    assert str(error.value).startswith(said)
    with pytest.raises(kind) as error:
        params_of(None, given)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("given", [
    {"allowed_token_ids": np.ones(100_000, bool)}, {"logit_bias": np.zeros(100_000)}, {"logit_bias": dict.fromkeys(range(100_000), "x")},
    {"grammar": {"json_schema": "\ud800" * 100_000}},
])
def test_a_mistake_in_a_long_value_has_a_short_message(given):
    with pytest.raises((TypeError, ValueError), match=rf"{next(iter(given))}.* is .*\.\.\., must be") as error:
        croupier.SamplingParams(**given).to_pb()
    assert len(str(error.value)) < 1500


def test_streams_take_them_in_every_form(server):
    chosen = {"seed": 7, "temperature": 0.9, "top_k": 40}
    whole = croupier.SamplingParams(**chosen, engine_order=croupier.EngineOrder.VLLM, logit_bias=[croupier.LogitBias(token_id=3, bias=9.0)],
                                    return_sampler_state=True)
    forms = [
        {"params": whole},
        {"params": whole.to_pb()},
        {"params": dataclasses.replace(whole, seed=8, temperature=1.5), "seed": 7, "temperature": 0.9},
        # These leave out return_sampler_state, which is on by default.
        {**chosen, "engine_order": "vllm", "logit_bias": [{"token_id": 3, "bias": 9.0}]},
        {**chosen, "engine_order": "ENGINE_ORDER_VLLM", "logit_bias": [pb.LogitBias(token_id=3, bias=9.0)]},
    ]
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(**form) for form in forms]
        assert all(text.params == whole.to_pb() for text in texts)
        for position in range(8):
            tokens = stream.sample(np.stack([logits(1, position)] * len(texts)), texts)
            assert len(set(tokens)) == 1
        before = len(stream.sequences)
        with pytest.raises(TypeError, match="no field 'top_pp'; did you mean 'top_p'"):
            stream.open(top_pp=1.0)
        assert len(stream.sequences) == before
        # Single fields override the whole message, including lists.
        assert list(stream.open(croupier.SamplingParams(stop_token_ids=[1, 2]), stop_token_ids=[3]).params.stop_token_ids) == [3]
    with croupier.connect(server.uds, VOCAB, default_params=croupier.SamplingParams(temperature=0.0)) as stream:
        assert stream.sample(logits(1, 0), [stream.open(whole, temperature=0.0)]) == [int(np.argmax(logits(1, 0)))]


def test_what_a_text_has_chosen_does_not_show_in_what_was_given(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        given = pb.SamplingParams(temperature=0.5)
        stream.open(params=given)
        assert given == pb.SamplingParams(temperature=0.5), "no seed of a text"


@pytest.mark.parametrize("off", [-1, np.int64(-1)])
def test_a_top_k_that_is_off_for_vllm_and_sglang_is_off(server, off):
    assert croupier.SamplingParams(top_k=off).to_pb() == pb.SamplingParams(top_k=0)
    with croupier.connect(server.uds, VOCAB, default_params={"top_k": off}) as stream:
        texts = [stream.open(seed=3, temperature=5.0, top_k=off), stream.open({"seed": 3, "temperature": 5.0, "top_k": off}),
                 stream.open(seed=3, temperature=5.0, top_k=0)]
        tokens = stream.sample(np.stack([logits(1, 0)] * 3), texts)
        assert tokens[0] == tokens[1] == tokens[2]


@pytest.mark.parametrize("extra", [{"top_k": -1}, {"topK": -1}, '{"top_k": -1}'])
def test_it_is_so_in_what_a_request_of_an_engine_has_for_croupier(extra):
    assert _extra.parsed(extra, "where") == pb.SamplingParams(top_k=0)
    thinking = {"start_token_ids": [1], "end_token_ids": [2], "budget": 9, **(json.loads(extra) if isinstance(extra, str) else extra)}
    assert _extra.parsed({"thinking_budget": thinking}, "where").thinking_budget.top_k == 0
    assert _extra.parsed(json.dumps({"thinkingBudget": thinking, "top_k": 5}), "where").top_k == 5
    with pytest.raises(ValueError, match="where must be fields of croupier.v1.SamplingParams"):
        _extra.parsed({"top_k": -2}, "where")
    for extra in ({"allowed_token_ids": []}, '{"allowedTokenIds": []}'):
        with pytest.raises(ValueError, match="where must be .* SamplingParams.allowed_token_ids is empty, so no token would be allowed"):
            _extra.parsed(extra, "where")
    whole = dataclasses.asdict(croupier.SamplingParams(stop_token_ids=[5]))
    assert _extra.parsed(whole, "where") == pb.SamplingParams(stop_token_ids=[5])
    with pytest.raises(ValueError, match="where must be .* SamplingParams.allowed_token_ids is empty"):
        _extra.parsed({**whole, "allowed_token_ids": []}, "where")
    assert _extra.parsed({"allowed_token_ids": None, "stop_token_ids": []}, "where") == pb.SamplingParams()


def test_an_empty_list_does_not_say_the_opposite_of_what_was_meant(server):
    none = "^SamplingParams.allowed_token_ids is empty, so no token would be allowed; leave it out, or give None, to allow all$"
    off = "^SamplingParams.stop_token_ids is empty, and an empty list does not override the one in default_params; leave it out there"
    with croupier.connect(server.uds, VOCAB) as stream:
        for empty in [], (), np.array([], int), iter([]):
            with pytest.raises(ValueError, match=none):
                stream.open(allowed_token_ids=empty)
            # If the defaults have no list, an empty one changes nothing.
            stream.open(stop_token_ids=empty, logit_bias={})
        with pytest.raises(ValueError, match=none):
            stream.open({"allowed_token_ids": []})
        few = stream.open({"allowed_token_ids": []}, allowed_token_ids=[7], temperature=50.0)
        with pytest.raises(ValueError, match=none):
            stream.fork(few, allowed_token_ids=[])
        all_of_them = stream.fork(few, allowed_token_ids=None)
        assert not all_of_them.params.allowed_token_ids and few.params.allowed_token_ids == [7]
        # In these, nobody gave the list.
        for whole in croupier.SamplingParams(), pb.SamplingParams(), dataclasses.asdict(croupier.SamplingParams()):
            stream.open(whole)
        whole = croupier.SamplingParams(stop_token_ids=[5], logprobs=croupier.LogprobsParams(top_n=1))
        apart = dataclasses.asdict(whole)
        for taken in apart, json.loads(json.dumps(apart)):
            assert croupier.SamplingParams(**taken).to_pb() == whole.to_pb()
            stream.open(taken)
            stream.open(**taken)
            stream.open(taken, temperature=0.5)
        # In these, somebody did, whether among all fields or alone.
        for empty in [], (), np.array([], int), iter([]):
            given = {**apart, "allowed_token_ids": empty}
            for wrong in (lambda: stream.open(**given), lambda: stream.open(given), lambda: stream.open(croupier.SamplingParams(**given))):
                with pytest.raises(ValueError, match=none):
                    wrong()
        with pytest.raises(ValueError, match=none):
            stream.open(croupier.SamplingParams(allowed_token_ids=[]))
        stream.open(croupier.SamplingParams(allowed_token_ids=[]), allowed_token_ids=[7])
        stream.open(croupier.SamplingParams(**json.loads(json.dumps(apart))))
        # A fork may drop the list of its text.
        assert not stream.fork(stream.open(stop_token_ids=[5]), stop_token_ids=[]).params.stop_token_ids
    with pytest.raises(ValueError, match=none):
        croupier.connect(server.uds, VOCAB, default_params={"allowed_token_ids": []})
    with croupier.connect(server.uds, VOCAB, default_params={"stop_token_ids": [5]}) as stream:
        apart = dataclasses.asdict(croupier.SamplingParams(stop_token_ids=[]))
        for wrong in (lambda: stream.open(stop_token_ids=[]), lambda: stream.open({"stop_token_ids": []}), lambda: stream.open(**apart),
                      lambda: stream.open(croupier.SamplingParams(stop_token_ids=[])), lambda: stream.fork(stream.open(), stop_token_ids=[])):
            with pytest.raises(ValueError, match=off):
                wrong()
        for given in {}, {"stop_token_ids": None}, {"stop_token_ids": [6]}, {"params": croupier.SamplingParams()}, {"bad_words": []}:
            stream.open(**given)
