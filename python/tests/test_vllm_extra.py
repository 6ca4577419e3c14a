"""A request's `extra_args["croupier"]` for croupier.integrations.vllm: parameters that vLLM lacks are applied or refused, never ignored."""

import croupier
import engines
import numpy as np
import pytest
from croupier.integrations import _orders
from test_vllm import IS_REAL, VOCAB, Engine, adapter, alone, new, processor, request, row

#: vLLM's four samplers in its order, and the others at their places in ENGINE_ORDER_CROUPIER.
ORDER = ("min_eos_p temperature smoothing top_n_sigma min_k top_h min_p top_k top_p typical_p tfs top_a epsilon_cutoff eta_cutoff p_less xtc "
         "mirostat infill adaptive_p skew").split()
#: Samplers that vLLM lacks, each with values that change the text.
LACKED = [
    {"xtc_probability": 1.0, "xtc_threshold": 0.05}, {"xtc_probability": 1.0, "xtc_expected": True, "xtc_threshold": 0.05},
    {"top_n_sigma": 0.5}, {"min_k": True}, {"typical_p": 0.3}, {"tfs": 0.3}, {"top_a": 2.0}, {"epsilon_cutoff": 0.2}, {"eta_cutoff": 0.4},
    {"top_h": 0.2}, {"p_less": True}, {"p_less": True, "p_less_norm": True}, {"mirostat": 1, "mirostat_tau": 1.0}, {"mirostat": 2, "mirostat_tau": 1.0}, {"adaptive_target": 0.1}, {"skew": 3.0},
    {"smoothing_factor": 2.0}, {"smoothing_factor": 2.0, "smoothing_curve": 3.0}, {"dynatemp_low": 0.1, "dynatemp_high": 3.0},
    {"temperature_end": 4.0, "temperature_tokens": 5}, {"top_p_decay": 0.5, "top_p": 0.9}, {"min_keep": 30, "min_p": 0.5},
]


@pytest.fixture
def vllm(monkeypatch):
    yield from adapter(monkeypatch)


def sampled(vllm, server, each, count=25):
    """The text of one request."""
    engine = Engine(vllm, processor(vllm, server))
    engine.add(each)
    for _ in range(count):
        engine.step()
    return each["true"]


def run(vllm, made, params, rows, steps):
    """The number of tokens that each step leaves of each row, and the texts."""
    outputs = [[] for _ in params]
    added = [(at, each, [1], output) for at, (each, output) in enumerate(zip(params, outputs))]
    made.update_state(vllm._interface.BatchUpdate(batch_size=len(params), removed=[], moved=[], added=added))
    finite = []
    for step in range(steps):
        left = np.asarray(made.apply(engines.tensor(rows(step))))
        finite.append((left > -np.inf).sum(1).tolist())
        for output, token in zip(outputs, np.nan_to_num(left, nan=-np.inf).argmax(1).tolist()):
            output.append(token)
    return finite, outputs


@pytest.mark.parametrize("extra", LACKED, ids=str)
def test_a_sampler_that_vllm_lacks_is_applied(vllm, server, caplog, extra):
    own = dict(seed=1, temperature=1.5, top_k=30, min_p=0.01)
    each = new([1], extra_args={"croupier": extra}, **own)
    vllm.CroupierLogitsProcessor.validate_params(each["params"])
    sampled(vllm, server, each)
    assert each["true"] == alone(server, each, sampler_order=ORDER, **(own | extra)) != alone(server, each, **own)
    assert not caplog.records


def test_every_sampler_has_a_place_in_the_orders_that_are_sent():
    kinds = {getattr(croupier.pb, name) for name in vars(croupier.pb) if name.startswith("SAMPLER_KIND_")}
    # Dynamic temperature uses the place of temperature.
    kinds -= {croupier.pb.SAMPLER_KIND_UNSPECIFIED, croupier.pb.SAMPLER_KIND_DYNAMIC_TEMPERATURE}
    for order in (_orders.CROUPIER, _orders.TRANSFORMERS, _orders.VLLM, _orders.SGLANG):
        assert len(order) == len(kinds) and set(order) == kinds
    assert list(croupier.SamplingParams(sampler_order=ORDER).to_pb().sampler_order) == list(_orders.VLLM)


def test_the_orders_that_are_sent_are_the_server_s(server):
    every = dict(seed=1, temperature=1.5, top_k=40, top_p=0.97, min_p=0.001, smoothing_factor=0.02, top_n_sigma=3.0, min_k=True, min_k_tau=200.0,
                 top_h=0.9, typical_p=0.97, tfs=0.97, top_a=0.01, epsilon_cutoff=1e-3, eta_cutoff=1e-3, xtc_probability=0.5, xtc_threshold=0.02, mirostat=2, skew=0.3)
    each = new([1], seed=1)
    each["true"] = [0] * 40
    for engine, order in ((croupier.pb.ENGINE_ORDER_CROUPIER, _orders.CROUPIER), (croupier.pb.ENGINE_ORDER_TRANSFORMERS, _orders.TRANSFORMERS)):
        # All samplers that the engine has, and no others.
        if engine == croupier.pb.ENGINE_ORDER_TRANSFORMERS:
            names = ("seed", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
            every = {name: every[name] for name in names}
        assert alone(server, each, engine_order=engine, **every) == alone(server, each, engine_order=engine, sampler_order=order, **every)


def test_vllm_s_rules_stay_unless_the_request_names_others(vllm, server):
    """With vLLM's rules, a temperature is at least 0.01."""
    flat = np.linspace(0, 0.02, VOCAB).astype(np.float32)
    drawn = {}
    for name, extra in {"vllm's": {"top_n_sigma": 100.0}, "an order": {"sampler_order": ["SAMPLER_KIND_TEMPERATURE"]},
                        "croupier's": {"engine_order": "ENGINE_ORDER_CROUPIER"}}.items():
        params = [request(seed=3, extra_args={"croupier": {"temperature": 1e-3} | extra})]
        drawn[name] = len(set(run(vllm, processor(vllm, server), params, lambda _: [flat], 30)[1][0]))
    assert drawn["vllm's"] > 8 and drawn["an order"] > 8 and drawn["croupier's"] < 8, drawn


def test_a_preset_says_what_the_request_leaves_at_vllm_s_defaults(vllm, serve, tmp_path, caplog):
    presets = tmp_path / "presets.toml"
    presets.write_text("[loud]\ndescription = \"all of it\"\ntemperature = 1.4\ntop_p = 0.8\ntop_k = 20\nmin_p = 0.02\nxtc_probability = 0.5\n"
                       "presence_penalty = 1.5\nrepetition_penalty = 1.2\nmirostat = 2\nmirostat_tau = 3\n"
                       "[llama]\ndescription = \"an order of its own\"\nengine_order = \"llama_cpp\"\ntemperature = 2\nmin_p = 0.2\n")
    server = serve(f"--presets={presets}")
    loud, llama = {"croupier": {"preset": "loud"}}, {"croupier": {"preset": "llama"}}
    said = dict(temperature=1.4, top_p=0.8, top_k=20, min_p=0.02, presence_penalty=1.5, repetition_penalty=1.2, xtc_probability=0.5, mirostat=2,
                mirostat_tau=3.0, sampler_order=ORDER, seed=1)
    each = new([1], seed=1, extra_args=loud)
    assert sampled(vllm, server, each) == alone(server, each, **said)
    assert sampled(vllm, server, each := new([1], seed=1, top_k=-1, extra_args=loud)) == alone(server, each, **said)
    # The request's parameters override the preset, and its parameters for Croupier override both.
    each = new([1], seed=1, top_p=0.5, presence_penalty=0.5, extra_args={"croupier": {"preset": "loud", "min_p": 0.0}})
    assert sampled(vllm, server, each) == alone(server, each, **(said | dict(top_p=0.5, presence_penalty=0.5, min_p=0.0)))
    each = new([1], seed=1, temperature=0.0, extra_args=loud)
    assert sampled(vllm, server, each) == alone(server, each, temperature=0.0, presence_penalty=1.5, repetition_penalty=1.2)
    # The preset has its own order.
    each = new([1], seed=1, extra_args=llama)
    assert sampled(vllm, server, each) == alone(server, each, seed=1, temperature=2.0, min_p=0.2, engine_order=croupier.pb.ENGINE_ORDER_LLAMA_CPP)
    assert not caplog.records


def test_samplers_in_the_server_s_defaults_refuse_no_request(vllm, serve, tmp_path, caplog):
    config = tmp_path / "croupier.toml"
    config.write_text("[defaults]\nxtc_probability = 1\nxtc_threshold = 0.05\ntop_a = 0.1\nmin_eos_p = 0.5\ntemperature = 0.1\n"
                      "length_penalty = {start = 1, factor = 2}\nengine_order = \"vllm\"\nsampler_order = "
                      "[\"temperature\", \"top_a\", \"xtc\", \"min_eos_p\"]\n")
    server = serve(f"--config={config}")
    each = new([1], seed=1)
    sampled(vllm, server, each)
    plain = serve()
    assert each["true"] == alone(plain, each, seed=1, xtc_probability=1.0, xtc_threshold=0.05, top_a=0.1, sampler_order=ORDER)
    assert each["true"] != alone(plain, each, seed=1) and not caplog.records


def test_what_a_sampler_learned_is_kept_when_a_text_is_opened_again(vllm, server):
    each = new([1], seed=1, temperature=1.5, extra_args={"croupier": {"mirostat": 2, "mirostat_tau": 2.0}})
    engine = Engine(vllm, processor(vllm, server))
    engine.add(each)
    for step in range(40):
        engine.step()
        if step == 20:
            # As if vLLM forced a token after the processor.
            each["true"][-1] = each["output"][-1] = (each["true"][-1] + 1) % VOCAB
    with croupier.connect(server.uds, VOCAB) as stream:
        own = dict(seed=1, temperature=1.5, mirostat=2, mirostat_tau=2.0, prompt=[1])
        text = stream.open(output=[], **own)
        while len(text.tokens) < 21:
            stream.sample(row([1, *text.tokens]), [text])
        assert text.tokens[:20] == each["true"][:20]
        text = stream.open(output=each["true"][:21], sampler_state=text.state, **own)
        while len(text.tokens) < 40:
            stream.sample(row([1, *text.tokens]), [text])
    assert each["true"] == text.tokens


def test_what_a_sampler_learned_from_tokens_that_were_thrown_away_is_forgotten(vllm, server):
    """After a preemption, the prompt and the tokens so far are recomputed, maybe in several steps. Only the last step's token is kept."""
    learns = {"mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 1.0}
    each = new([1], seed=1, temperature=1.5, extra_args={"croupier": learns})
    other, engine = new([2], seed=2), Engine(vllm, processor(vllm, server))
    engine.add(each)
    engine.add(other)
    for step in range(40):
        if step == 20:
            engine.remove(each)
        if step == 22:
            engine.add(each)
        engine.step(thrown_away=[each] if step in (22, 23, 24) else ())
    assert len(each["true"]) == 35
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(prompt=[1], output=each["true"][:20], seed=1, temperature=1.5, engine_order="vllm", sampler_order=ORDER, **learns)
        while len(text.tokens) < 35:
            stream.sample(row([1, *text.tokens]), [text])
    assert each["true"] == text.tokens


def test_what_a_sampler_of_the_server_s_defaults_learned_outlives_the_server(vllm, serve, tmp_path):
    config = tmp_path / "croupier.toml"
    config.write_text("[defaults]\nmirostat = 2\nmirostat_tau = 2\n")
    server, texts = serve(f"--config={config}"), []
    for killed_at in (None, 20):
        each = new([1], seed=1, temperature=1.5)
        engine = Engine(vllm, processor(vllm, server))
        engine.add(each)
        for step in range(40):
            if step == killed_at:
                server.kill()
                server.start()
            engine.step()
        texts.append(each["true"])
    assert texts[0] == texts[1]
    assert texts[0] == alone(serve(), each, seed=1, temperature=1.5, mirostat=2, mirostat_tau=2.0, sampler_order=ORDER)


@pytest.mark.parametrize(("extra", "says"), [
    ({"dryness": 1}, "dryness"), ("{", "fields of"), ("[" * 100_000, "fields of"), ({"max_tokens": 5}, "max_tokens, which vLLM handles itself"),
    ({"min_tokens": 5}, "min_tokens, which vLLM handles itself"), ({"ignore_eos": True}, "ignore_eos, which vLLM handles itself"),
    ({"min_eos_p": 0.5}, "min_eos_p, which needs the tokens that end a text"), ({"infill": True}, "infill, which needs the tokens that end a text"),
    ({"length_penalty": {"start": 1, "factor": 2}}, "length_penalty, which needs the tokens that end a text"),
    ({"forced_last_token": 5}, "forced_last_token, which needs max_tokens"), ({"logprobs": {"top_n": 2}}, "logprobs, which vLLM does not return"),
])
def test_wrong_extra_arguments_are_refused_at_arrival(vllm, extra, says):
    with pytest.raises(ValueError, match=says):
        vllm.CroupierLogitsProcessor.validate_params(request(extra_args={"croupier": extra}))
    for fine in ('{"topA": 0.2}', {"min_eos_p": 0, "infill": False}, {}):
        vllm.CroupierLogitsProcessor.validate_params(request(extra_args={"croupier": fine}))


def test_the_server_is_asked_at_arrival_where_it_is_known(vllm, serve, tmp_path, monkeypatch):
    presets = tmp_path / "presets.toml"
    presets.write_text("[loud]\ndescription = \"with chance\"\nxtc_probability = 1\n[endless]\ndescription = \"ends\"\nmin_eos_p = 0.5\n")
    server = serve(f"--presets={presets}")
    wrong = [({"top_h": 7.0}, "top_h: is 7"), ({"preset": "no"}, 'preset: "no" is not a preset of this server; known: '), ({"preset": "endless"}, "min_eos_p: needs a token"),
             ({"engine_order": "ENGINE_ORDER_VLLM", "tfs": 0.5}, "engine_order: has no place for tfs"),
             ({"watermark": {"gumbel": {"key": "1"}}, "temperature": 0}, "watermark.gumbel: needs a temperature")]
    fine = [{"xtc_probability": 1.0}, {"preset": "loud"}, {"mirostat": 2}, {"banned_token_ids": [0]}, {"min_keep": 5, "tfs": 0.5}]
    for extra, _ in wrong:
        # No address of a server is configured.
        vllm.CroupierLogitsProcessor.validate_params(request(extra_args={"croupier": extra}))
    monkeypatch.setenv("CROUPIER_VLLM_ADDRESS", server.uds)
    for extra, says in wrong:
        with pytest.raises(ValueError, match=says):
            vllm.CroupierLogitsProcessor.validate_params(request(extra_args={"croupier": extra}))
    for extra in fine:
        vllm.CroupierLogitsProcessor.validate_params(request(extra_args={"croupier": extra}))
    # A server that does not answer blocks nobody.
    monkeypatch.setattr(vllm.CroupierLogitsProcessor, "address", "unix:/nobody/is/here.sock")
    vllm.CroupierLogitsProcessor.validate_params(request(extra_args={"croupier": wrong[0][0]}))


def ended_by(eos=None, stops=(), all_stops=(), **fields):
    """A request as the engine receives it, with the tokens that end it."""
    made = request(**fields)
    if IS_REAL:
        made._eos_token_id, made.stop_token_ids, made._all_stop_token_ids = eos, list(stops), set(all_stops)
    else:
        made.eos_token_id, made.stop_token_ids, made.all_stop_token_ids = eos, list(stops), set(all_stops)
    return made


def test_a_request_that_is_refused_is_ended_and_never_sampled_without_what_it_asked_for(vllm, server, caplog):
    wrong = {"extra_args": {"croupier": {"top_h": 7.0}}}
    params = [request(temperature=0.0), ended_by(eos=5, stops=[6], **wrong), ended_by(stops=[8, 7], **wrong), ended_by(all_stops=[9], **wrong),
              request(**wrong)]
    finite, outputs = run(vllm, processor(vllm, server), params, lambda step: [row([step])] * 5, 3)
    assert finite == [[1] * 5] * 3 and outputs[1:] == [[5] * 3, [7] * 3, [9] * 3, [0] * 3]
    assert outputs[0] == [int(row([step]).argmax()) for step in range(3)]
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 4 and caplog.text.count("params.top_h: is 7") == 4


def test_a_row_without_a_token_ends_only_a_request_that_vllm_cannot_sample(vllm, server, caplog):
    params = [request(temperature=0.0), ended_by(eos=5, extra_args={"croupier": {"top_a": 0.1}}), request(temperature=0.0),
              ended_by(eos=5, extra_args={"croupier": {"allowed_token_ids": [3], "banned_token_ids": [3]}})]

    def rows(step):
        logits = np.array([row([step])] * 4)
        if step == 1:
            logits[1:3, 3] = float("nan")
        return logits

    finite, outputs = run(vllm, processor(vllm, server), params, rows, 3)
    assert finite == [[1, 1, 1, 1], [1, 1, VOCAB - 1, 1], [1, 1, 1, 1]]
    assert outputs[1][1:] == [5, 5] and outputs[3] == [5] * 3
    assert "NaN" in caplog.text and caplog.text.count("a request is ended") == 2


def test_what_vllm_can_sample_is_left_to_it_where_croupier_has_no_room(vllm, serve, caplog):
    params = [request(temperature=0.0), request(temperature=0.0), ended_by(eos=5, extra_args={"croupier": {"top_a": 0.1}})]
    finite, outputs = run(vllm, processor(vllm, serve("--max-sequences-per-stream=1")), params, lambda step: [row([step])] * 3, 3)
    assert finite == [[1, VOCAB, 1]] * 3 and outputs[2] == [5] * 3 and outputs[0] == outputs[1]
    assert caplog.text.count("left to vLLM's sampler") == 1 and caplog.text.count("a request is ended") == 1
    assert {record.levelname for record in caplog.records} == {"ERROR"}


def test_a_request_that_no_message_has_room_for_is_refused(vllm, serve, caplog):
    large = ended_by(eos=5, extra_args={"croupier": {"banned_token_ids": [1] * 65536}})
    finite, outputs = run(vllm, processor(vllm, serve("--max-message-bytes=65536")), [large, request(temperature=0.0)], lambda step: [row([step])] * 2, 3)
    assert finite == [[1, 1]] * 3 and outputs[0] == [5] * 3 and outputs[1] == [int(row([step]).argmax()) for step in range(3)]
    assert [record.levelname for record in caplog.records] == ["ERROR"] and "max_message_bytes is 65536" in caplog.text


def test_vllm_s_own_watermark_is_refused(vllm, server):
    with pytest.raises(ValueError, match="watermark_config is set"):
        processor(vllm, server, watermark_config=object())
