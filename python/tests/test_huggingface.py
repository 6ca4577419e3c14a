"""croupier.integrations.huggingface. If transformers is installed, `generate` itself is run: greedy texts must have the same tokens, drawn
texts the same distribution. Otherwise only the conversion of a generation config is tested."""

import os
import signal
import sys
import threading
from types import SimpleNamespace

import croupier
import engines
import numpy as np
import pytest
from croupier.integrations import _orders, huggingface
from test_waiting import stop

try:
    import torch
    import transformers
except ImportError:
    torch = transformers = None

real = pytest.mark.skipif(torch is None, reason="transformers and torch are not installed")
VOCAB = 64
PROMPT = [1, 2, 3, 9, 9]


def config(**fields):
    names = ("max_length min_length min_new_tokens do_sample temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff "
             "repetition_penalty encoder_repetition_penalty sequence_bias forced_bos_token_id forced_eos_token_id "
             "exponential_decay_length_penalty eos_token_id bad_words_ids suppress_tokens begin_suppress_tokens no_repeat_ngram_size")
    return SimpleNamespace(**(dict.fromkeys(names.split()) | {"num_beams": 1} | fields))


def test_a_generation_config_becomes_sampling_params():
    params = huggingface.sampling_params(config(
        do_sample=True, temperature=0.7, top_k=50, top_p=0.9, min_p=0.05, typical_p=0.8, max_length=30, min_length=12, repetition_penalty=1.2,
        bad_words_ids=[[4], [5, 6], [2]], eos_token_id=[2], suppress_tokens=[7], begin_suppress_tokens=[8], no_repeat_ngram_size=3,
        sequence_bias={(1, 2): -3.0}, forced_eos_token_id=2, exponential_decay_length_penalty=(5, 1.1)), 10)
    pb = croupier.pb
    assert params == pb.SamplingParams(
        engine_order=pb.ENGINE_ORDER_TRANSFORMERS, temperature=0.7, top_k=50, top_p=0.9, min_p=0.05, typical_p=0.8, max_tokens=20,
        min_tokens=2, repetition_penalty=1.2, bad_words=[pb.TokenSequence(token_ids=[4]), pb.TokenSequence(token_ids=[5, 6])],
        banned_token_ids=[7], token_ban_ranges=[pb.TokenBanRange(token_ids=[8], start=0, length=1)],
        no_repeat_ngram=pb.NoRepeatNgramParams(size=3),
        sequence_bias=[pb.SequenceBias(token_ids=[5, 6], bias=-1e6), pb.SequenceBias(token_ids=[1, 2], bias=-3.0)],
        forced_last_token=2, length_penalty=pb.LengthPenaltyParams(start=5, factor=1.1))
    # Filters count only if tokens are drawn.
    off = huggingface.sampling_params(config(do_sample=True, epsilon_cutoff=1.0, eta_cutoff=1.0, typical_p=1.5, top_p=2.0), 10)
    assert (off.epsilon_cutoff, off.eta_cutoff, off.typical_p, off.top_p) == (0, 0, 1, 1)
    assert huggingface.sampling_params(config(do_sample=True, top_k=-1), 10).top_k == 0
    greedy = huggingface.sampling_params(config(do_sample=False, top_k=50, temperature=0.7), 10)
    assert greedy == pb.SamplingParams(engine_order=pb.ENGINE_ORDER_TRANSFORMERS, temperature=0, min_tokens=0, max_tokens=0)
    # Forced only if the text has a single token.
    assert huggingface.sampling_params(config(forced_bos_token_id=5), 1).forced_first_token == 5
    assert not huggingface.sampling_params(config(forced_bos_token_id=5), 2).HasField("forced_first_token")


@pytest.mark.parametrize(("fields", "says"), [
    ({"num_beams": 4}, "num_beams is 4"), ({"guidance_scale": 1.5}, "guidance_scale"), ({"prompt_lookup_num_tokens": 3}, "Speculation"),
    ({"remove_invalid_values": True}, "RowError"),
    ({"output_scores": True}, "output_logits"), ({"watermarking_config": object()}, "watermark"), ({"use_mtp": True}, "use_mtp"),
    ({"forced_eos_token_id": [2, 3]}, "give one token"), ({"dola_layers": "high"}, "dola"),
])
def test_what_cannot_be_mapped_is_refused_by_name(fields, says):
    with pytest.raises(ValueError, match=says):
        huggingface.sampling_params(config(**fields), 5)


def test_what_the_caller_chooses_stands_over_the_config():
    pb = croupier.pb

    def merged(chosen, **fields):
        params = huggingface.sampling_params(config(do_sample=True, max_length=9, **fields), 5)
        huggingface._merge(params, pb.SamplingParams(**chosen))
        return params

    usual = dict(temperature=1.0, top_k=50, top_p=1.0, repetition_penalty=1.0)
    params = merged({"xtc_probability": 0.5}, **usual)
    # Transformers' rules, with a place in the order for all samplers.
    assert params.engine_order == pb.ENGINE_ORDER_TRANSFORMERS and pb.SAMPLER_KIND_XTC in params.sampler_order
    assert (params.temperature, params.top_k, params.xtc_probability) == (1.0, 50, 0.5)
    assert merged({}, **usual).sampler_order == params.sampler_order
    assert merged({"engine_order": pb.ENGINE_ORDER_LLAMA_CPP}, **usual).sampler_order == []
    own = merged({"sampler_order": [pb.SAMPLER_KIND_XTC]}, **usual)
    assert (list(own.sampler_order), own.engine_order) == ([pb.SAMPLER_KIND_XTC], pb.ENGINE_ORDER_TRANSFORMERS)
    # The preset decides what the config leaves at transformers' defaults, and the preset's order counts.
    assert merged({"preset": "chat"}, **usual) == pb.SamplingParams(preset="chat", max_tokens=4)
    said = merged({"preset": "chat", "top_k": 50}, **(usual | dict(temperature=0.5, min_p=0.1)))
    assert said == pb.SamplingParams(preset="chat", max_tokens=4, temperature=0.5, min_p=0.1, top_k=50)
    for name, value in (("logprobs", pb.LogprobsParams(top_n=2)), ("report", pb.ReportParams(entropy=True))):
        with pytest.raises(ValueError, match=f"croupier_params has {name}, which generate does not return"):
            merged({name: value})


def test_nothing_is_loaded_before_it_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="croupier_generate needs torch"):
        huggingface.croupier_generate(None, None, None, None, None)


@pytest.mark.parametrize("given", [
    dict(engine_order="vllm", logit_bias={5: 2.0}, sampler_order=["temperature", "top_k"], top_k=np.int64(7)),
    croupier.SamplingParams(engine_order="vllm", logit_bias={5: 2.0}, sampler_order=["temperature", "top_k"], top_k=7),
    croupier.pb.SamplingParams(engine_order=croupier.pb.ENGINE_ORDER_VLLM, logit_bias=[croupier.pb.LogitBias(token_id=5, bias=2.0)],
                               sampler_order=[croupier.pb.SAMPLER_KIND_TEMPERATURE, croupier.pb.SAMPLER_KIND_TOP_K], top_k=7),
], ids=["a dict", "a SamplingParams", "a message"])
def test_croupier_params_may_be_what_the_client_takes(given, monkeypatch):
    seen = []

    class Model:
        config = SimpleNamespace(is_encoder_decoder=False)

        def _sample(self, *_, logits_processor, **rest):
            seen.append(logits_processor[-1].params)

    monkeypatch.setitem(sys.modules, "torch", engines.fake_torch())
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(LogitsProcessorList=list, StoppingCriteriaList=list))

    def generate(given):
        own = config(do_sample=True, temperature=0.5, pad_token_id=0)
        huggingface.croupier_generate(Model(), np.array([PROMPT]), [], [], own, croupier="unix:/x", croupier_params=given, croupier_seed=1)
        return seen[-1]

    pb = croupier.pb
    assert generate(given) == pb.SamplingParams(
        engine_order=pb.ENGINE_ORDER_VLLM, logit_bias=[pb.LogitBias(token_id=5, bias=2.0)], temperature=0.5, top_k=7, min_tokens=0, max_tokens=0,
        sampler_order=[pb.SAMPLER_KIND_TEMPERATURE, pb.SAMPLER_KIND_TOP_K])
    assert generate(None) == generate({}) and list(generate({}).sampler_order) == list(_orders.TRANSFORMERS)
    # A field that does not exist is refused by name.
    with pytest.raises(TypeError, match="temprature"):
        generate({"temprature": 1.0})


def sampler_of(where, params):
    """The sampler of one text, on a stand-in for torch."""
    return huggingface._Sampler(engines.fake_torch(), where, params, 1, [PROMPT], SimpleNamespace(eos_token_id=None, pad_token_id=0))


def test_what_a_preset_s_sampler_learned_outlives_the_server(serve, tmp_path):
    presets = tmp_path / "presets.toml"
    presets.write_text("[learning]\ndescription = \"learns\"\nmirostat = 2\nmirostat_tau = 2\n")
    server, texts = serve(f"--presets={presets}"), []
    rows = np.random.default_rng(1).normal(size=(40, 1, VOCAB)).astype(np.float32) * 3
    for killed_at in (None, 20):
        sampler = sampler_of(server.uds, croupier.pb.SamplingParams(preset="learning"))
        sampler._open(VOCAB)
        for step, row in enumerate(rows):
            if step == killed_at:
                server.kill()
                server.start()
            sampler._sample(row, sampler.texts)
        texts.append(sampler.texts[0].tokens)
        sampler.close()
    assert texts[0] == texts[1]


def test_logits_that_were_lost_are_sent_again_on_every_way():
    sent = []

    class Stream:
        def sample(self, rows, texts):
            sent.append(rows)
            if len(sent) % 2:
                raise croupier.LogitsLost("the region is gone")

        def rows(self, count):
            return SimpleNamespace(array=np.zeros((count, VOCAB), np.float32))

    scores = np.ones((2, VOCAB), np.float32).view(engines.Tensor)
    for way in ("device_memory", "shared_memory", "inline"):
        sampler = sampler_of("", croupier.pb.SamplingParams())
        sampler.stream = Stream()
        sampler.stream.data_path = way
        sampler._sample(scores, [None, None])
    assert [np.asarray(getattr(rows, "array", rows)).sum() for rows in sent] == [2 * VOCAB] * 6


# With transformers.


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                 max_position_embeddings=256, initializer_range=0.2, pad_token_id=0, eos_token_id=2)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()


def generate(model, server, prompts=(PROMPT,), **options):
    return model.generate(torch.tensor(prompts), custom_generate=huggingface.croupier_generate, croupier=server, **options)


GREEDY = {
    "plain": {},
    "repetition": {"repetition_penalty": 1.5},
    "encoder": {"encoder_repetition_penalty": 1.5},
    "ngrams": {"no_repeat_ngram_size": 2},
    "no token twice": {"no_repeat_ngram_size": 1},
    "no token of the prompt": {"encoder_no_repeat_ngram_size": 1},
    "n-grams of the prompt": {"encoder_no_repeat_ngram_size": 2, "sequence_bias": {(9,): 4.0}},
    "words": {"bad_words_ids": [[10], [44, 11], [2]]},
    "words begun in the prompt": {"bad_words_ids": [[9, 9, token] for token in range(3, VOCAB)]},
    "bias": {"sequence_bias": {(9,): 4.0, (9, 30): 30.0, (5,): -8.0}},
    "suppressed": {"suppress_tokens": [10, 13, 47], "begin_suppress_tokens": [61]},
    "minimum": {"min_new_tokens": 12, "sequence_bias": {(2,): 100.0}},
    "minimal length": {"min_length": 9, "sequence_bias": {(2,): 100.0}},
    "last": {"forced_eos_token_id": 2},
    "decay": {"exponential_decay_length_penalty": (3, 3.0)},
    "one of top-k": {"do_sample": True, "top_k": 1},
    "one of min-p": {"do_sample": True, "min_p": 1.0, "temperature": 0.3},
    "all": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "bad_words_ids": [[4]], "min_new_tokens": 5, "forced_eos_token_id": 2},
}


@real
@pytest.mark.parametrize("name", GREEDY)
def test_greedy_text_is_that_of_transformers(model, server, name):
    prompts, mask = [PROMPT, [0, 0, 7, 8, 9], [0, 1, 30, 31, 32]], [[1] * 5, [0, 0, 1, 1, 1], [0, 1, 1, 1, 1]]
    options = dict(attention_mask=torch.tensor(mask), max_new_tokens=24) | GREEDY[name]
    expected = model.generate(torch.tensor(prompts), **options)
    assert torch.equal(generate(model, server.uds, prompts, **options), expected)
    # The parameters have an effect.
    if name != "plain" and not name.startswith("one"):
        without = model.generate(torch.tensor(prompts), **(options | dict.fromkeys(GREEDY[name])))
        assert not torch.equal(expected, without)


@real
@pytest.mark.parametrize("options", [
    {"temperature": 0.8, "top_k": 0}, {"temperature": 2.0, "top_k": 12, "top_p": 0.8}, {"min_p": 0.1, "top_k": 0}, {"typical_p": 0.6, "top_k": 0},
    {"top_h": 0.5, "top_k": 0}, {"epsilon_cutoff": 0.02, "top_k": 0}, {"eta_cutoff": 0.1, "top_k": 0},
], ids=str)
def test_drawn_tokens_have_transformers_distribution(model, server, options):
    """Pearson's chi-square of 4,000 draws with a fixed seed; the limit has a false alarm rate of 1e-6."""
    count, options = 4_000, dict(do_sample=True, max_new_tokens=1, num_return_sequences=4_000) | options
    drawn = generate(model, server.uds, croupier_seed=1, **options)[:, -1]
    scores = model.generate(torch.tensor([PROMPT]), output_scores=True, return_dict_in_generate=True, **(options | {"num_return_sequences": 1})).scores
    expected = scores[0][0].softmax(0).double() * count
    seen = torch.bincount(drawn, minlength=VOCAB).double()
    assert not seen[expected == 0].any(), "a token was drawn that is filtered out"
    common = expected >= 5
    expected = torch.cat([expected[common], expected[~common].sum()[None]])
    seen = torch.cat([seen[common], seen[~common].sum()[None]])
    kept = expected > 0
    statistic, freedom = float(((seen - expected)[kept] ** 2 / expected[kept]).sum()), int(kept.sum()) - 1
    # Wilson and Hilferty's quantile, 4.75 standard deviations.
    assert freedom >= 1 and statistic < freedom * (1 - 2 / (9 * freedom) + 4.75 * (2 / (9 * freedom)) ** 0.5) ** 3


@real
def test_one_seed_gives_one_text_and_a_killed_server_changes_nothing(model, server):
    options = dict(do_sample=True, max_new_tokens=40, num_return_sequences=3, top_k=0, croupier_params={"ignore_eos": True})
    torch.manual_seed(5)
    first = generate(model, server.uds, **options)
    torch.manual_seed(5)
    assert torch.equal(generate(model, server.uds, **options), first)
    assert not torch.equal(generate(model, server.uds, **options), first)
    assert len({tuple(row) for row in first.tolist()}) == 3

    class Kill(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            if input_ids.shape[1] == 20:
                server.kill()
                server.start()
            return scores

    torch.manual_seed(5)
    assert torch.equal(generate(model, server.uds, logits_processor=transformers.LogitsProcessorList([Kill()]), **options), first)


@real
def test_processors_and_criteria_of_the_caller_run(model, server):
    class Only(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            kept = torch.full_like(scores, -float("inf"))
            kept[:, 20:25] = scores[:, 20:25]
            return kept

    class Stop(transformers.StoppingCriteria):
        def __call__(self, input_ids, scores, **_):
            # Only the first text.
            return torch.tensor([input_ids.shape[1] >= 9] + [False] * (len(input_ids) - 1))

    out = generate(model, server.uds, [PROMPT, PROMPT], do_sample=True, max_new_tokens=10, croupier_seed=3,
                   logits_processor=transformers.LogitsProcessorList([Only(), transformers.TemperatureLogitsWarper(0.5)]),
                   stopping_criteria=transformers.StoppingCriteriaList([Stop()]), eos_token_id=2, pad_token_id=0)
    assert set(out[1, 5:].tolist()) <= set(range(20, 25)) and out.shape[1] == 15
    assert set(out[0, 5:9].tolist()) <= set(range(20, 25)) and out[0, 9:].tolist() == [0] * 6


@real
def test_a_processor_of_the_caller_that_a_field_does_not_explain(model, server):
    own = lambda *each: transformers.LogitsProcessorList(each)  # noqa: E731
    # The field is off, so the processor is the caller's own: only one token is left.
    options = dict(do_sample=True, max_new_tokens=12, croupier_seed=3, logits_processor=own(transformers.TopKLogitsWarper(1)))
    assert torch.equal(generate(model, server.uds, top_k=0, **options), model.generate(torch.tensor([PROMPT]), max_new_tokens=12))
    with pytest.raises(ValueError, match="TopKLogitsWarper with top_k 1, and generation_config.top_k is 50"):
        generate(model, server.uds, top_k=50, **options)
    # A processor with an option that the field does not have.
    for each, field in ((transformers.RepetitionPenaltyLogitsProcessor(1.2, prompt_ignore_length=3), {"repetition_penalty": 1.2}),
                        (transformers.MinPLogitsWarper(0.1, min_tokens_to_keep=5), {"min_p": 0.1, "top_k": 0})):
        with pytest.raises(ValueError, match=f"{type(each).__name__} with (prompt_ignore_length 3|min_tokens_to_keep 5)"):
            generate(model, server.uds, do_sample=True, max_new_tokens=2, logits_processor=own(each), **field)


@real
def test_what_generate_keeps_from_a_callable_is_heard(model, server):
    class Streamer(transformers.generation.streamers.BaseStreamer):
        def __init__(self):
            self.seen, self.is_ended = [], False

        def put(self, value):
            self.seen += value.flatten().tolist()

        def end(self):
            self.is_ended = True

    streamer = Streamer()
    out = generate(model, server.uds, max_new_tokens=8, streamer=streamer)
    assert (streamer.seen, streamer.is_ended) == (out[0].tolist(), True)
    with pytest.raises(ValueError, match="assistant_model is given"):
        generate(model, server.uds, max_new_tokens=8, assistant_model=model)
    synced, own = [], type(model)._sample
    try:
        type(model)._sample = lambda *args, synced_gpus, **rest: synced.append(synced_gpus) or own(*args, synced_gpus=False, **rest)
        for asked in (True, False, None):
            generate(model, server.uds, max_new_tokens=2, synced_gpus=asked)
    finally:
        del type(model)._sample
    assert synced == [True, False, False]


@real
def test_an_interrupted_call_leaves_its_stream_to_the_next(model, server):
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[2]) as stream:
        expected = generate(model, stream, max_new_tokens=6)
        stop(server)
        interrupt = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            generate(model, stream, max_new_tokens=6)
        server.process.send_signal(signal.SIGCONT)
        assert torch.equal(generate(model, stream, max_new_tokens=6), expected)
        assert not stream.sequences


@real
def test_what_transformers_lacks_is_applied(model, serve, tmp_path):
    presets, config = tmp_path / "presets.toml", tmp_path / "croupier.toml"
    presets.write_text("[loud]\ndescription = \"by chance\"\ntemperature = 3\ntop_k = 20\nxtc_probability = 1\nxtc_threshold = 0.01\n")
    config.write_text("[defaults]\nskew = 5\n")
    plain, options = serve(f"--presets={presets}"), dict(do_sample=True, max_new_tokens=20, croupier_seed=1)
    expected = generate(model, plain.uds, temperature=3.0, top_k=20, croupier_params={"xtc_probability": 1.0, "xtc_threshold": 0.01}, **options)
    assert torch.equal(generate(model, plain.uds, croupier_params={"preset": "loud"}, **options), expected)
    assert not torch.equal(generate(model, plain.uds, temperature=3.0, top_k=20, **options), expected)
    with croupier.connect(plain.uds, VOCAB, eos_token_ids=[2]) as stream:
        assert torch.equal(generate(model, stream, croupier_params={"preset": "loud"}, **options), expected)
    # A sampler in the server's defaults is applied too.
    skewed = generate(model, serve(f"--config={config}").uds, **options)
    assert torch.equal(skewed, generate(model, plain.uds, croupier_params={"skew": 5.0}, **options))
    assert not torch.equal(skewed, generate(model, plain.uds, **options))


@real
def test_what_croupier_ends_is_ended(model, server):
    looped = {"repetition_detection": croupier.pb.RepetitionDetectionParams(max_pattern_size=4, min_count=3)}
    out = generate(model, server.uds, max_new_tokens=40, sequence_bias={(9,): 100.0}, croupier_params=looped)
    assert out[0].tolist() == PROMPT + [9] * 3
    out = generate(model, server.uds, [PROMPT, PROMPT], max_new_tokens=4, croupier_params={"temperature": 1.0, "stop_token_ids": range(64)}, croupier_seed=1)
    assert out.shape == (2, 6)


@real
def test_a_stream_of_one_s_own_serves_many_calls(model, server):
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[2]) as stream:
        expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=6)
        for _ in range(3):
            assert torch.equal(generate(model, stream, max_new_tokens=6), expected)
        assert not stream.sequences
    with croupier.connect(server.uds, VOCAB) as stream:
        with pytest.raises(ValueError, match=r"eos_token_ids \[\]"):
            generate(model, stream, max_new_tokens=6)
    with pytest.raises(ValueError, match="croupier is missing"):
        generate(model, None)
    with pytest.raises(ValueError, match="num_beams is 2"):
        generate(model, server.uds, num_beams=2)


@real
def test_with_an_encoder(server):
    torch.manual_seed(1)
    sizes = dict(vocab_size=VOCAB, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()
    options = dict(max_new_tokens=12, repetition_penalty=1.4, forced_bos_token_id=7)
    expected = model.generate(torch.tensor([PROMPT]), **options)
    got = generate(model, server.uds, return_dict_in_generate=True, output_logits=True, **options)
    assert torch.equal(got.sequences, expected) and got.sequences[0, 1] == 7 and len(got.logits) == got.sequences.shape[1] - 1
