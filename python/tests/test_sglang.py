"""croupier.integrations.sglang, on the recorded interface of sglang 0.5.23 (python/sglang/srt/layers/sampler.py, sampling_batch_info.py):
`Sampler.forward(logits_output, sampling_info, return_logprob, top_logprobs_nums, token_ids_logprobs, positions, *, logprob_logits)` returns
token ids and writes logprobs into logits_output. `SamplingBatchInfo` has columns of parameters; top_k 1 means greedy, 1 << 30 means all. A
request's object is in its custom_params as `__req__`, and its `to_finish` ends it (managers/schedule_batch.py). SGLang itself is not
imported here."""

import importlib
import sys
import types

import croupier
import engines
import numpy as np
import pytest
from croupier import integrations
from interrupting import each_point, in_time  # noqa: F401

VOCAB = 50
TOP_K_ALL = 1 << 30


@pytest.fixture
def sglang(monkeypatch):
    if not engines.installed("torch"):
        monkeypatch.setitem(sys.modules, "torch", engines.fake_torch())
    for name in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.managers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = types.ModuleType("sglang.srt.layers.sampler")
    module.factories, module.synced, module.logprobs = {}, [], []

    class Result:
        def write_output_to(self, logits_output):
            logits_output.next_token_logprobs = "written"

    class Processor:
        def compute_logprobs(self, logprobs, top_nums, token_ids, tokens):
            module.logprobs.append((np.asarray(logprobs), top_nums, token_ids, tokens.tolist()))
            return Result()

    class Sampler:
        def __init__(self):
            self.output_logprob_processor = Processor()

        def _preprocess_logits(self, logits, sampling_info):
            return logits

        def _sync_token_ids_across_tp(self, tokens, sampling_info):
            module.synced.append(tokens.tolist())

    def register_sampler_backend(backend, factory):
        module.factories[backend] = factory

    module.Sampler, module.register_sampler_backend = Sampler, register_sampler_backend
    module.get_server_args = lambda: types.SimpleNamespace(random_seed=11)
    monkeypatch.setitem(sys.modules, "sglang.srt.layers.sampler", module)
    schedule = types.ModuleType("sglang.srt.managers.schedule_batch")
    schedule.FINISH_ABORT = lambda message, status_code, err_type: types.SimpleNamespace(message=message, status_code=status_code, type=err_type)
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.schedule_batch", schedule)
    monkeypatch.delitem(sys.modules, "croupier.integrations.sglang", raising=False)
    yield importlib.import_module("croupier.integrations.sglang")
    sys.modules.pop("croupier.integrations.sglang", None)


def info(rows, seeds=None, custom=None):
    """A `SamplingBatchInfo` of (temperature, top_k, top_p, min_p)."""
    columns = [engines.tensor(column) for column in zip(*rows)]
    integers = [[int(row[1]) for row in rows]]
    return types.SimpleNamespace(
        temperatures=columns[0].reshape(-1, 1), top_ks=np.array(integers[0]), top_ps=columns[2], min_ps=columns[3],
        is_all_greedy=all(row[1] == 1 for row in rows), sampling_seed=None if seeds is None else np.array(seeds), custom_params=custom)


def forward(sampler, logits, given, positions=None, return_logprob=False):
    output = types.SimpleNamespace(next_token_logits=engines.tensor(logits))
    places = np.array(range(len(logits)) if positions is None else positions)
    tokens = sampler.forward(output, given, return_logprob, [0] * len(logits), [None] * len(logits), places)
    return tokens.tolist(), output


def logits(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, VOCAB)).astype(np.float32) * 3


ROWS = [(1.0, 1, 1.0, 0.0), (0.7, TOP_K_ALL, 0.9, 0.0), (1.3, 5, 1.0, 0.0), (1.0, TOP_K_ALL, 1.0, 0.2)]


def test_rows_are_sampled_with_the_requests_parameters(sglang, server):
    sampler, rows = sglang.CroupierSampler(server.uds), logits(4)
    seen = [forward(sampler, rows, info(ROWS))[0] for _ in range(200)]
    first, second, third, fourth = (set(each) for each in zip(*seen))
    order = np.argsort(-rows, axis=1)
    assert first == {order[0, 0]}
    probs = np.exp(rows[1] / 0.7 - (rows[1] / 0.7).max())
    probs /= probs.sum()
    nucleus = order[1][: int((np.cumsum(probs[order[1]]) < 0.9).sum()) + 1]
    assert 1 < len(second) and second <= set(nucleus.tolist())
    assert 1 < len(third) and third <= set(order[2, :5].tolist())
    assert 1 < len(fourth) and fourth <= set(np.flatnonzero(rows[3] >= rows[3].max() + np.log(0.2)).tolist())
    assert sglang._sampler.synced == seen


def test_temperatures_beyond_the_server_s_are_the_nearest_that_it_has(sglang, server):
    sampler = sglang.CroupierSampler(server.uds)
    logits = np.zeros((2, VOCAB), np.float32)
    logits[0, 7] = 1
    tokens = [forward(sampler, logits, info([(5e-6, TOP_K_ALL, 1, 0), (2e5, TOP_K_ALL, 1, 0)]))[0] for _ in range(20)]
    assert {int(of[0]) for of in tokens} == {7} and len({int(of[1]) for of in tokens}) > 5
    # JSON can contain NaN, and no comparison finds it too small.
    for count in (1, 2):
        assert forward(sampler, logits[:count], info([(float("nan"), TOP_K_ALL, 1, 0), (0.7, TOP_K_ALL, 1, 0)][:count]))[0][0] == 7


def test_top_k_and_top_p_cut_one_distribution_but_with_min_p(sglang, server):
    """As in `Sampler._sample_from_probs` of 0.5.23: FlashInfer has filter_apply_order "joint", and min_p renormalizes probabilities."""
    row = np.full(VOCAB, -np.inf, np.float32)
    row[:4] = np.log([0.4, 0.3, 0.2, 0.1])
    sampler, kept = sglang.CroupierSampler(server.uds), {}
    for given in ((1.0, 2, 0.5, 0.0), (1.0, 2, 0.5, 0.01), (1.0, 3, 0.65, 0.6), (1.0, TOP_K_ALL, 0.75, 0.0), (1.0, 3, 1.0, 0.0), (1.0, 2, 1.0, 0.8)):
        kept[given[1:]] = set(forward(sampler, np.array([row] * 100), info([given] * 100))[0])
    # 0.4 of all tokens' mass is less than 0.5, but 4/7 of the first two tokens' mass is not.
    assert kept == {(2, 0.5, 0.0): {0, 1}, (2, 0.5, 0.01): {0}, (3, 0.65, 0.6): {0, 1}, (TOP_K_ALL, 0.75, 0.0): {0, 1, 2},
                    (3, 1.0, 0.0): {0, 1, 2}, (2, 1.0, 0.8): {0}}
    # A request may name another order, which has its own rules.
    for extra, left in (({"sampler_order": ["SAMPLER_KIND_TOP_K", "SAMPLER_KIND_TOP_P"]}, {0}), ({"min_p": 0.01}, {0}),
                        ({"engine_order": "ENGINE_ORDER_CROUPIER"}, {0}), ({"top_a": 0.01}, {0, 1})):
        custom = [{"croupier": extra}] * 100
        assert set(forward(sampler, np.array([row] * 100), info([(1.0, 2, 0.5, 0.0)] * 100, custom=custom))[0]) == left


def test_an_order_in_the_server_s_defaults_is_not_sglang_s(sglang, serve, tmp_path, caplog):
    config = tmp_path / "croupier.toml"
    config.write_text("[defaults]\nengine_order = \"vllm\"\n")
    sampler, plain, rows = (sglang.CroupierSampler(serve(f"--config={config}").uds), sglang.CroupierSampler(serve().uds), logits(4))
    custom = [{"croupier": {"top_a": 0.01}}] * 4
    for step in range(20):
        both = [forward(each, rows, info(ROWS, [5] * 4, custom), [step] * 4)[0] for each in (sampler, plain)]
        assert both[0] == both[1]
    assert not caplog.records


def test_a_seed_and_a_position_give_one_token_in_any_batch(sglang, server):
    sampler, rows = sglang.CroupierSampler(server.uds), logits(4)
    plain = [(1.0, TOP_K_ALL, 1.0, 0.0)] * 4
    together, _ = forward(sampler, rows, info(plain, [5, 5, -3, 9]), [10, 11, 12, 13])
    turned, _ = forward(sampler, rows[::-1], info(plain, [9, -3, 5, 5]), [13, 12, 11, 10])
    assert turned == together[::-1]
    alone = [forward(sampler, rows[at : at + 1], info(plain[:1], [seed]), [10 + at])[0][0] for at, seed in enumerate([5, 5, -3, 9])]
    assert alone == together
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=sglang.mixed(5, 10))
        assert stream.sample(rows[:1], [text]) == together[:1]
    other = [forward(sampler, rows, info(plain, [5] * 4), [at] * 4)[0] for at in range(20)]
    assert len({tuple(each) for each in other}) > 10


def test_ranks_agree_without_seeds_and_after_the_server_was_killed(sglang, server):
    sglang.register(server.uds)
    ranks = [sglang._sampler.factories["croupier"]() for _ in range(2)]
    drawn = []
    for step in range(12):
        tokens = [forward(rank, logits(4, step), info(ROWS))[0] for rank in ranks]
        assert tokens[0] == tokens[1]
        drawn.append(tokens[0][1])
        if step == 5:
            server.kill()
            server.start()
    assert len(set(drawn)) > 3
    assert not ranks[0].__dict__["_stream"].sequences


def test_replicas_of_data_parallelism_differ_without_seeds(sglang, server, monkeypatch):
    def drawn(**ranks):
        monkeypatch.setattr(sglang._sampler, "get_parallel", lambda: types.SimpleNamespace(**ranks), raising=False)
        sglang.register(server.uds)
        sampler = sglang._sampler.factories["croupier"]()
        return [tuple(forward(sampler, logits(4, step), info(ROWS))[0]) for step in range(10)]

    replicas = [drawn(dp_rank=rank, attn_dp_rank=within) for rank in (0, 1) for within in (0, 1)]
    assert len({tuple(each) for each in replicas}) == 4
    # Without a controller, and in versions that do not give these values.
    assert drawn(dp_rank=None, attn_dp_rank=0) == drawn() == replicas[0]


def test_logprobs_are_written_as_sglang_does(sglang, server):
    sampler, rows = sglang.CroupierSampler(server.uds), logits(2)
    if "torch" in sys.modules and not hasattr(sys.modules["torch"], "nn"):
        softmax = lambda x, dim: x - np.log(np.exp(x).sum(dim, keepdims=True))  # noqa: E731
        sys.modules["torch"].nn = types.SimpleNamespace(functional=types.SimpleNamespace(log_softmax=softmax))
    tokens, output = forward(sampler, rows, info(ROWS[1:3]), return_logprob=True)
    written, _, _, told = sglang._sampler.logprobs[0]
    scaled = rows / np.array([[0.7], [1.3]], np.float32)
    assert output.next_token_logprobs == "written" and told == tokens
    assert np.allclose(written, scaled - np.log(np.exp(scaled).sum(1, keepdims=True)), atol=1e-4)
    forward(sampler, rows, info(ROWS[:1] * 2), return_logprob=True)
    assert np.allclose(sglang._sampler.logprobs[1][0], rows - np.log(np.exp(rows).sum(1, keepdims=True)), atol=1e-4)


def test_custom_params(sglang, server, caplog):
    sampler, rows = sglang.CroupierSampler(server.uds), logits(2)
    custom = [{"croupier": {"banned_token_ids": [int(rows[0].argmax())], "top_n_sigma": 2.0}}, None]
    greedy = info(ROWS[:1] * 2, custom=custom)
    order = np.argsort(-rows, axis=1)
    assert forward(sampler, rows, greedy)[0] == [order[0, 1], order[1, 0]]
    # An invalid request is aborted and harms no other. The server refuses the last two.
    for wrong, says in (({"dry_multiplier": 1.0}, "dry_multiplier, which needs earlier tokens"), ({"nothing": 1}, "nothing"),
                        ({"preset": "chat"}, "preset, which needs"), ("[" * 100_000, "recursion"), ({"top_h": 7.0}, "params.top_h"),
                        ({"allowed_token_ids": [1], "banned_token_ids": [1]}, "no token of the row is left")):
        caplog.clear()
        asked = [types.SimpleNamespace(to_finish=None) for _ in range(2)]
        custom = [{"croupier": wrong, "__req__": asked[0]}, {"croupier": {"top_a": 0.1}, "__req__": asked[1]}]
        assert forward(sampler, rows, info(ROWS[:1] * 2, custom=custom))[0] == order[:, 0].tolist()
        assert says in asked[0].to_finish.message and asked[0].to_finish.status_code == 400 and asked[1].to_finish is None
        assert says in caplog.text and {record.levelname for record in caplog.records} == {"ERROR"}
    # If SGLang already ends the request, its reason stays. If custom_params do not name their request, nothing can be ended.
    ended = types.SimpleNamespace(to_finish="already")
    for custom in ({"croupier": {"nothing": 1}, "__req__": ended}, {"croupier": {"nothing": 1}}, {"croupier": {"top_h": 7.0}}):
        caplog.clear()
        assert forward(sampler, rows[:1], info(ROWS[:1], custom=[custom]))[0] == order[:1, 0].tolist()
        assert ended.to_finish == "already" and {record.levelname for record in caplog.records} == {"ERROR"}
    # No state is left.
    assert forward(sampler, rows, info(ROWS[:1] * 2))[0] == order[:, 0].tolist()
    assert forward(sampler, rows[:0], info(ROWS[:1]))[0] == []


def test_a_seed_in_custom_params_gives_each_position_a_number_of_its_own(sglang, server):
    flat, plain = np.zeros((2, VOCAB), np.float32), [(1.0, TOP_K_ALL, 1.0, 0.0)] * 2

    def drawn(turned=False):
        sampler, seen = sglang.CroupierSampler(server.uds), []
        for at in range(30):
            custom, places = [{"croupier": {"seed": 7}}, None], [at, 0]
            given = info(plain, custom=custom[::-1] if turned else custom)
            seen.append(forward(sampler, flat, given, places[::-1] if turned else places)[0][1 if turned else 0])
        return seen

    first = drawn()
    assert len(set(first)) > 10 and drawn() == drawn(turned=True) == first
    # It overrides SGLang's seed of the request.
    sampler = sglang.CroupierSampler(server.uds)
    assert forward(sampler, flat, info(plain, [5, 5], [{"croupier": {"seed": "7"}}] * 2), [0, 1])[0] == first[:2]
    with croupier.connect(server.uds, VOCAB) as stream:
        assert stream.sample(flat[:1], [stream.open(seed=sglang.mixed(7, 0))]) == first[:1]


def test_a_text_that_cannot_be_opened_is_aborted_and_leaves_none_open(sglang, serve, caplog):
    sampler, rows = sglang.CroupierSampler(serve("--max-message-bytes=65536").uds), logits(2)
    for asked in (types.SimpleNamespace(to_finish=None), None):
        caplog.clear()
        custom = [None, {"croupier": {"allowed_token_ids": [1] * 65536}} | ({"__req__": asked} if asked else {})]
        assert forward(sampler, rows, info(ROWS[:1] * 2, custom=custom))[0] == rows.argmax(1).tolist()
        assert not sampler._stream.sequences and "max_message_bytes is 65536" in caplog.text
        assert asked is None or "max_message_bytes is 65536" in asked.to_finish.message and asked.to_finish.status_code == 400
    # Alone in its batch.
    assert forward(sampler, rows[:1], info(ROWS[:1], custom=custom[1:]))[0] == rows[:1].argmax(1).tolist()
    caplog.clear()
    assert forward(sampler, rows, info(ROWS[:1] * 2))[0] == rows.argmax(1).tolist()
    assert not sampler._stream.sequences and not caplog.records


def test_a_row_without_a_token_ends_its_request_or_goes_on_with_another(sglang, server, caplog):
    sampler, rows = sglang.CroupierSampler(server.uds), logits(6)
    expected = rows.argmax(1).tolist()
    rows[1, 3], rows[1, 4] = np.nan, 99
    rows[2] = np.nan
    rows[3] = -np.inf
    # A row of a grammar, whose only token has a NaN.
    rows[4] = -np.inf
    rows[4, 7] = np.nan
    expected[1:5] = [4, 0, 0, 7]
    asked = [types.SimpleNamespace(to_finish=None) for _ in range(6)]
    for custom in (None, [{"__req__": each} for each in asked], [{"__req__": each, "croupier": {"top_a": 0.1}} for each in asked]):
        caplog.clear()
        for each in asked:
            each.to_finish = None
        assert forward(sampler, rows, info(ROWS[:1] * 6, custom=custom))[0] == expected
        ended = [each.to_finish for each in asked]
        if custom:
            assert [each is None for each in ended] == [True, False, False, False, False, True]
            assert all("a row has no token" in each.message and each.status_code == 500 for each in ended[1:5])
        else:
            assert caplog.text.count("continues with the token of the largest logit") == 4
        assert [record.levelname for record in caplog.records] == ["ERROR"] * 4 and "NaN" in caplog.text
    assert not sampler._stream.sequences


def test_a_server_that_opens_no_text_is_an_error(sglang, serve):
    """Silently giving greedy tokens instead of what was asked for would be a mistake that nobody notices."""
    with pytest.raises(croupier.OpenError):
        forward(sglang.CroupierSampler(serve("--max-sequences-per-stream=1").uds), logits(4), info(ROWS))


def test_a_step_that_is_interrupted_leaves_nothing_to_the_next(sglang, server, in_time):  # noqa: F811
    rows = logits(2)
    samplers = [sglang.CroupierSampler(server.uds)]
    forward(samplers[-1], rows, info(ROWS[:1] * 2))

    def attempt(points):
        points.call(lambda: forward(samplers[-1], rows, info(ROWS[:1] * 2)))
        try:
            assert forward(samplers[-1], rows, info(ROWS[:1] * 2))[0] == rows.argmax(1).tolist()
            assert not samplers[-1]._stream.sequences
        except croupier.CroupierError as error:
            assert "interrupted while it processed an answer" in str(error) and "_take" in points.within
            samplers.append(sglang.CroupierSampler(server.uds))
            forward(samplers[-1], rows, info(ROWS[:1] * 2))

    each_point(attempt, 100)
    for sampler in samplers:
        sampler._stream.end()


@pytest.mark.parametrize("extra", [
    {"xtc_probability": 1.0, "xtc_threshold": 0.01}, {"top_n_sigma": 0.3}, {"min_k": True, "min_k_tau": 20.0}, {"typical_p": 0.2}, {"tfs": 0.2}, {"top_a": 5.0},
    {"epsilon_cutoff": 0.2}, {"eta_cutoff": 0.6}, {"top_h": 0.1}, {"p_less": True}, {"p_less": True, "p_less_norm": True}, {"skew": -5.0},
    {"smoothing_factor": 5.0}, {"dynatemp_low": 0.01, "dynatemp_high": 0.1},
], ids=str)
def test_a_sampler_that_sglang_lacks_is_applied(sglang, server, extra, caplog):
    sampler, rows, given = sglang.CroupierSampler(server.uds), logits(1), [(1.3, 40, 1.0, 0.0)]

    def drawn(custom):
        return [forward(sampler, rows, info(given, [5], custom), [at])[0][0] for at in range(60)]

    seen = drawn([{"croupier": extra}])
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(seed=sglang.mixed(5, at), temperature=1.3, top_k=40, **extra) for at in range(60)]
        assert seen == stream.sample(np.repeat(rows, 60, 0), texts) != drawn(None)
    assert not caplog.records


def test_what_needs_tokens_that_end_a_text_in_the_server_s_defaults_refuses_no_row(sglang, serve, tmp_path):
    config = tmp_path / "croupier.toml"
    config.write_text("[defaults]\nmin_eos_p = 0.5\nlength_penalty = {start = 0, factor = 2}\n")
    rows = logits(2)
    assert forward(sglang.CroupierSampler(serve(f"--config={config}").uds), rows, info(ROWS[:1] * 2))[0] == rows.argmax(1).tolist()


def test_the_plugin_registers_where_a_server_is_named(sglang, monkeypatch):
    monkeypatch.delenv("CROUPIER_SGLANG_ADDRESS", raising=False)
    integrations.sglang_plugin()
    assert not sglang._sampler.factories
    monkeypatch.setenv("CROUPIER_SGLANG_ADDRESS", "unix:/tmp/croupier.sock")
    integrations.sglang_plugin()
    assert isinstance(sglang._sampler.factories["croupier"](), sglang._sampler.Sampler)


@pytest.mark.parametrize("raw, resolved, refused", [
    ("EAGLE", "EAGLE", "EAGLE"), (None, "NGRAM", "NGRAM"), ("DSPARK", AttributeError, "DSPARK"), ("STANDALONE", ValueError, "STANDALONE"),
    # As with --enable-return-aux-hidden-states, for which the argument names a capture mode.
    ("EAGLE3", None, None), ("none", "NONE", None), (None, None, None), (None, ValueError, None),
])
def test_speculative_decoding_is_refused_at_the_start(sglang, monkeypatch, raw, resolved, refused):
    """`eagle_sample` of 0.5.23 (speculative/eagle_utils.py) draws the verified tokens and the one after them without asking a sampler."""
    monkeypatch.setattr(sglang._sampler, "get_server_args", lambda: types.SimpleNamespace(random_seed=11, speculative_algorithm=raw))
    context = types.ModuleType("sglang.srt.runtime_context")

    def get_spec():
        if isinstance(resolved, type):
            raise resolved("config namespace 'spec' not published")
        return types.SimpleNamespace(speculative_algorithm=resolved)

    context.get_spec = get_spec
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    sglang.register("unix:/tmp/croupier.sock")
    if refused is None:
        assert isinstance(sglang._sampler.factories["croupier"](), sglang._sampler.Sampler)
        return
    with pytest.raises(ValueError, match=f"--speculative-algorithm is {refused}.*leave it out"):
        sglang._sampler.factories["croupier"]()


def test_an_unseeded_server_has_the_seed_that_sglang_drew(sglang, monkeypatch):
    """0.5.23 draws a seed into its configuration and leaves the argument as it was given (`arg_groups/serving_hook.py`)."""
    monkeypatch.setattr(sglang._sampler, "get_server_args", lambda: types.SimpleNamespace(random_seed=None, speculative_algorithm=None))
    unseeded, context = sglang._random_seed(), types.ModuleType("sglang.srt.runtime_context")
    context.get_device = lambda: types.SimpleNamespace(random_seed=drawn)
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    seeds = []
    for drawn in (7, 8):
        seeds.append(sglang._random_seed())
    assert len({unseeded, *seeds}) == 3
    monkeypatch.delitem(sys.modules, "sglang.srt.runtime_context")
    monkeypatch.setattr(sglang._sampler, "get_server_args", lambda: types.SimpleNamespace(random_seed=7))
    assert sglang._random_seed() == seeds[0]


def test_a_sampling_mask_is_refused_by_name(sglang, server, monkeypatch, caplog):
    """SGLang 0.5.23 itself ends a request whose mask has no status or the status INVALID (`get_sampling_mask_finish_reason` of
    managers/scheduler_components/batch_result_processor.py). With pipeline parallelism, a stage has no logits_output without a status."""
    given, rows = info(ROWS[:1] * 4), logits(4)
    given.sampling_mask_batch_indices = [1, 3]
    sampler = sglang.CroupierSampler(server.uds)
    for _ in range(2):
        tokens, output = forward(sampler, rows, given)
        assert tokens == rows.argmax(1).tolist() and not hasattr(output, "sampling_mask_output")
    # There is one warning.
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "return_sampling_mask" in caplog.text
    monkeypatch.setattr(sglang._sampler, "SamplingMaskOutput", types.SimpleNamespace, raising=False)
    monkeypatch.setattr(sglang._sampler, "SamplingMaskStatus", types.SimpleNamespace(OK=0, OVERFLOW=1, INVALID=2), raising=False)
    for stages, statuses in ((1, None), (2, [2, 2])):
        monkeypatch.setattr(sglang._sampler, "get_parallel", lambda: types.SimpleNamespace(pp_size=stages), raising=False)
        tokens, output = forward(sampler, rows, given)
        mask = getattr(output, "sampling_mask_output", None)
        assert tokens == rows.argmax(1).tolist() and (mask and mask.statuses.tolist()) == statuses
    assert mask.lengths.tolist() == mask.selected_logprobs.tolist() == [0, 0] and len(mask.token_ids) == 2
    assert mask.support_logprobs is None and len(caplog.records) == 1
    # If nobody asks for a mask, there is no warning.
    given.sampling_mask_batch_indices = None
    assert not hasattr(forward(sampler, rows, given)[1], "sampling_mask_output")


def test_without_sglang_the_import_says_what_is_missing(monkeypatch):
    for name in ("sglang", "sglang.srt.layers.sampler", "croupier.integrations.sglang"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(ImportError, match="needs sglang"):
        importlib.import_module("croupier.integrations.sglang")


def test_the_client_loads_none_of_them():
    assert not {"torch", "vllm", "sglang", "transformers"} & set(vars(croupier))
