"""croupier.integrations.vllm_v2. If vLLM is installed, its real base class is used. The runner's buffers are stand-ins, because they need a
GPU: `LogitsProcRequestState` and `LogitsContext` of vllm 0.32.0 (vllm/v1/worker/gpu/sample/logits_processor/interface.py)."""

import importlib
import sys
import types

import croupier
import engines
import numpy as np
import pytest
from test_vllm import VOCAB, request, row
from test_vllm_extra import ORDER

PACKAGE = "vllm.v1.worker.gpu.sample.logits_processor"
IS_REAL = engines.installed("torch", "vllm", PACKAGE)
SLOTS, LONGEST = 6, 80


@pytest.fixture
def vllm(monkeypatch):
    if not IS_REAL:
        parts = PACKAGE.split(".")
        for end in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        sys.modules[PACKAGE].LogitsProcessor = type("LogitsProcessor", (), {})
        monkeypatch.setitem(sys.modules, "torch", engines.fake_torch())
    monkeypatch.delitem(sys.modules, "croupier.integrations.vllm_v2", raising=False)
    yield importlib.import_module("croupier.integrations.vllm_v2")
    sys.modules.pop("croupier.integrations.vllm_v2", None)


class Buffer(np.ndarray):
    """A GPU buffer that counts how often it is read."""

    looks = 0

    def __getitem__(self, place):
        Buffer.looks += 1
        return np.asarray(self)[place]


class Runner:
    """A runner with slots for requests, and with batches in any order."""

    def __init__(self, vllm, server):
        buffer = lambda shape: types.SimpleNamespace(np=np.zeros(shape, np.int32), gpu=np.zeros(shape, np.int32))  # noqa: E731
        self.states = types.SimpleNamespace(prompt_len=buffer(SLOTS), prefill_len=buffer(SLOTS), all_token_ids=buffer((SLOTS, LONGEST)))
        self.tokens = self.states.all_token_ids.gpu
        self.states.all_token_ids.gpu = self.tokens.view(Buffer)
        self.lengths = [0] * SLOTS
        config = types.SimpleNamespace(additional_config={"croupier_address": server.uds})
        self.processor = vllm.CroupierLogitsProcessor(config, self.states)

    def add(self, slot, prompt, output=(), **fields):
        tokens = [*prompt, *output]
        self.states.prompt_len.np[slot], self.states.prefill_len.np[slot], self.lengths[slot] = len(prompt), len(tokens), len(tokens)
        self.tokens[slot, : len(tokens)] = tokens
        assert self.processor.add_request(slot, request(**fields))

    def text(self, slot):
        return self.tokens[slot, self.states.prompt_len.np[slot] : self.lengths[slot]].tolist()

    def step(self, slots, amid_prompt=(), forced=types.MappingProxyType({})):
        """Runs a step. Requests in `amid_prompt` have not finished their prompts, so their tokens are discarded. `forced`: by slot, tokens
        with which vLLM replaces the chosen ones."""
        lengths = [self.lengths[slot] - (slot in amid_prompt) for slot in slots]
        logits = engines.tensor([row(self.tokens[slot, :length].tolist()) for slot, length in zip(slots, lengths)])
        context = types.SimpleNamespace(idx_mapping_np=np.array(slots), seq_lens_upper_bound_np=np.array(lengths))
        left = np.asarray(self.processor.apply(logits, context))
        for slot, own in zip(slots, left):
            if slot in amid_prompt:
                assert np.isfinite(own).all()
                continue
            assert np.isfinite(own).sum() == 1
            self.tokens[slot, self.lengths[slot]] = forced.get(slot, own.argmax())
            self.lengths[slot] += 1


def alone(server, prompt, count, **fields):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(prompt=prompt, **({"engine_order": croupier.pb.ENGINE_ORDER_VLLM} | fields))
        while len(text.tokens) < count:
            stream.sample(row([*prompt, *text.tokens]), [text])
        return text.tokens


def test_requests_keep_their_texts_in_any_batch(vllm, server):
    runner = Runner(vllm, server)
    runner.add(3, [1, 1], seed=1, temperature=0.0)
    runner.add(0, [2, 1], seed=2, top_p=0.9)
    runner.add(5, [3, 1, 4], seed=3, temperature=0.8, top_k=6)
    runner.step([0, 3, 5], amid_prompt=[5])
    for turn in range(10):
        runner.step([[0, 3, 5], [5, 0, 3], [3, 5]][turn % 3])
    first = runner.text(3)
    # Another request takes the slot, and a preempted one comes back in another slot.
    runner.add(3, [4, 1], seed=4, min_p=0.1)
    runner.add(1, [2, 1], runner.text(0), seed=2, top_p=0.9)
    server.kill()
    server.start()
    for _ in range(10):
        runner.step([1, 5, 3])
    assert first == alone(server, [1, 1], 11, seed=1, temperature=0.0)
    assert runner.text(1) == alone(server, [2, 1], 18, seed=2, top_p=0.9)
    assert runner.text(5) == alone(server, [3, 1, 4], 20, seed=3, temperature=0.8, top_k=6)
    assert runner.text(3) == alone(server, [4, 1], 10, seed=4, min_p=0.1)
    # Slot 0 is still held, because nothing tells that its request has left.
    assert len(runner.processor._connected.sequences) == 4


def test_penalties_are_vllm_s(vllm, server):
    runner = Runner(vllm, server)
    runner.add(0, [1, 1], seed=1, repetition_penalty=2.0, presence_penalty=2.0, frequency_penalty=2.0)
    for _ in range(20):
        runner.step([0])
    assert runner.text(0) == alone(server, [1, 1], 20, seed=1)


def test_penalties_of_a_preset_or_of_the_server_s_defaults_do_not_come_on_top_of_vllm_s(vllm, serve, tmp_path):
    presets, config = tmp_path / "presets.toml", tmp_path / "croupier.toml"
    presets.write_text("[sharp]\ndescription = \"with penalties\"\nrepetition_penalty = 1.5\npresence_penalty = 1.5\ntemperature = 0.9\n")
    config.write_text("[defaults]\nfrequency_penalty = 2\n")
    runner, sharp = Runner(vllm, serve(f"--presets={presets}", f"--config={config}")), {"croupier": {"preset": "sharp"}}
    runner.add(0, [1, 1], seed=1)
    runner.add(1, [1, 1], seed=1, presence_penalty=0.5, extra_args=sharp)
    for _ in range(20):
        runner.step([0, 1])
    plain = serve()
    assert runner.text(0) == alone(plain, [1, 1], 20, seed=1)
    # vLLM has already applied its presence penalty to the row, so the preset's does not count. The preset's repetition penalty does.
    assert runner.text(1) == alone(plain, [1, 1], 20, seed=1, temperature=0.9, repetition_penalty=1.5)


def test_what_vllm_lacks_is_applied_and_what_is_refused_is_ended(vllm, server, caplog):
    runner, extra = Runner(vllm, server), {"xtc_probability": 1.0, "xtc_threshold": 0.05, "dry_multiplier": 1.0}
    runner.add(0, [1, 1], seed=1, extra_args={"croupier": extra})
    runner.add(1, [1, 1], seed=1, extra_args={"croupier": {"top_h": 7.0}})
    for _ in range(20):
        runner.step([0, 1])
    assert runner.text(0) == alone(server, [1, 1], 20, seed=1, sampler_order=ORDER, **extra) != alone(server, [1, 1], 20, seed=1)
    assert runner.text(1) == [0] * 20 and caplog.text.count("a request is ended") == 1


def test_a_token_that_vllm_forces_is_in_the_text(vllm, server):
    runner, once = Runner(vllm, server), {"croupier": {"no_repeat_ngram": {"size": 1}}}
    for slot in range(3):
        runner.add(slot, [VOCAB - 1 - slot], temperature=0.0, extra_args=once)
    for turn in range(30):
        runner.step([2, 0, 1], forced={0: 3} if turn == 1 else {1: 3} if turn == 7 else {})
    for slot, at in ((0, 1), (1, 7), (2, None)):
        text = runner.text(slot)
        expected = alone(server, [VOCAB - 1 - slot], 30 if at is None else at, temperature=0.0, no_repeat_ngram={"size": 1})
        if at is not None:
            expected += [3]
        with croupier.connect(server.uds, VOCAB) as stream:
            own = stream.open(prompt=[VOCAB - 1 - slot], output=expected, temperature=0.0, no_repeat_ngram={"size": 1})
            while len(own.tokens) < 30:
                stream.sample(row([VOCAB - 1 - slot, *own.tokens]), [own])
        assert text == own.tokens and len(set(text)) == 30


def test_looking_for_forced_tokens_does_not_cost_more_in_a_larger_batch(vllm, server):
    looks = []
    for slots in ([0], list(range(SLOTS))):
        runner = Runner(vllm, server)
        for slot in slots:
            runner.add(slot, [slot])
        for _ in range(3):
            runner.step(slots)
        Buffer.looks = 0
        for _ in range(5):
            runner.step(slots)
        looks.append(Buffer.looks)
    assert looks == [5, 5]


def test_slots_that_are_not_known_are_left_alone(vllm, server):
    runner = Runner(vllm, server)
    logits = engines.tensor([row([1])])
    before = np.asarray(logits).copy()
    context = types.SimpleNamespace(idx_mapping_np=np.array([4]), seq_lens_upper_bound_np=np.array([1]))
    assert np.array_equal(np.asarray(runner.processor.apply(logits, context)), before)


def test_speculative_decoding_is_refused(vllm):
    with pytest.raises(ValueError, match="speculative decoding"):
        vllm.CroupierLogitsProcessor(types.SimpleNamespace(speculative_config=object()), None)


@pytest.mark.skipif(not IS_REAL, reason="vllm is not installed")
def test_vllm_s_loader_takes_it(vllm):
    from vllm.v1.worker.gpu.sample.logits_processor.loader import _load_v2_logitsprocs_by_fqcns

    assert _load_v2_logitsprocs_by_fqcns(["croupier.integrations.vllm_v2:CroupierLogitsProcessor"]) == [vllm.CroupierLogitsProcessor]
