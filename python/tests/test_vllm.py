"""croupier.integrations.vllm. If vLLM is installed, its real interface is used. Otherwise it is recorded from vllm 0.32.0
(vllm/v1/sample/logits_processor/interface.py): `BatchUpdate` with removed, added and moved, which are applied in this order, and
`MoveDirectionality`. An added request is (index, params, prompt token ids, output token ids), the last a reference to its growing list."""

import dataclasses
import enum
import importlib
import sys
import types
import zlib

import croupier
import engines
import numpy as np
import pytest

VOCAB = 50
IS_REAL = engines.installed("torch", "vllm.v1.sample.logits_processor")


def recorded():
    module = types.ModuleType("vllm.v1.sample.logits_processor")

    class MoveDirectionality(enum.Enum):
        UNIDIRECTIONAL = enum.auto()
        SWAP = enum.auto()

    @dataclasses.dataclass(frozen=True)
    class BatchUpdate:
        batch_size: int
        removed: list
        added: list
        moved: list

    module.LogitsProcessor = type("LogitsProcessor", (), {})
    module.MoveDirectionality, module.BatchUpdate = MoveDirectionality, BatchUpdate
    return module


def adapter(monkeypatch):
    """The adapter's module, on vLLM's interface."""
    if not IS_REAL:
        for name in ("vllm", "vllm.v1", "vllm.v1.sample"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, "vllm.v1.sample.logits_processor", recorded())
        monkeypatch.setitem(sys.modules, "torch", engines.fake_torch())
    monkeypatch.delitem(sys.modules, "croupier.integrations.vllm", raising=False)
    yield importlib.import_module("croupier.integrations.vllm")
    sys.modules.pop("croupier.integrations.vllm", None)


@pytest.fixture
def vllm(monkeypatch):
    yield from adapter(monkeypatch)


def request(**fields):
    """vllm.SamplingParams, with its defaults."""
    if IS_REAL:
        from vllm import SamplingParams

        return SamplingParams(**fields)
    defaults = dict(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0,
                    seed=None, extra_args=None)
    return types.SimpleNamespace(**(defaults | fields))


def processor(vllm, server, **fields):
    config = types.SimpleNamespace(additional_config={"croupier_address": server.uds}, model_config=types.SimpleNamespace(seed=7), **fields)
    return vllm.CroupierLogitsProcessor(config, "cpu", False)


def row(text):
    """The row of a model that looks at the last two tokens."""
    return np.random.default_rng(zlib.crc32(bytes(text[-2:]))).normal(size=VOCAB).astype(np.float32) * 3


class Engine:
    """vLLM's persistent batch: requests move into holes, and each step samples all of them."""

    def __init__(self, vllm, processor):
        self.interface, self.processor = vllm._interface, processor
        self.batch, self.added, self.removed, self.moved = [], [], [], []

    def add(self, each):
        """Adds a request at the lowest hole, or after the last request."""
        if self.removed:
            at = self.removed.pop(self.removed.index(min(self.removed)))
            self.batch[at] = each
        else:
            at = len(self.batch)
            self.batch.append(each)
        self.added.append((at, each["params"], each["prompt"], each["output"]))

    def remove(self, each):
        """Removes a request. In a step, this comes before anything is added."""
        at = self.batch.index(each)
        self.batch[at] = None
        self.removed.append(at)

    def condense(self):
        """Moves the last requests into the remaining holes."""
        for hole in sorted(self.removed):
            while self.batch and self.batch[-1] is None:
                self.batch.pop()
            if hole < len(self.batch):
                self.batch[hole] = self.batch.pop()
                self.moved.append((len(self.batch), hole, self.interface.MoveDirectionality.UNIDIRECTIONAL))

    def swap(self, one, other):
        self.batch[one], self.batch[other] = self.batch[other], self.batch[one]
        self.moved.append((one, other, self.interface.MoveDirectionality.SWAP))

    def step(self, thrown_away=(), is_late=False):
        self.condense()
        changed = self.removed or self.added or self.moved
        update = self.interface.BatchUpdate(batch_size=len(self.batch), removed=self.removed, added=self.added, moved=self.moved)
        self.processor.update_state(update if changed else None)
        self.added, self.removed, self.moved = [], [], []
        logits = engines.tensor([row([*each["prompt"], *each["true"]]) for each in self.batch])
        left = np.asarray(self.processor.apply(logits))
        assert (np.isfinite(left).sum(1) == 1).all()
        for each, token in zip(self.batch, left.argmax(1).tolist()):
            if each in thrown_away:
                continue
            each["true"].append(token)
            if is_late:
                # With asynchronous scheduling, the previous token is known now, but this one is not.
                each["output"][:] = [*each["true"][:-1], -1]
            else:
                each["output"][:] = each["true"]


def new(prompt, **fields):
    return {"prompt": prompt, "output": [], "true": [], "params": request(**fields)}


def alone(server, each, **fields):
    """The same text, sampled on its own stream."""
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(prompt=each["prompt"], **({"engine_order": croupier.pb.ENGINE_ORDER_VLLM} | fields))
        while len(text.tokens) < len(each["true"]):
            stream.sample(row([*each["prompt"], *text.tokens]), [text])
        return text.tokens


@pytest.mark.parametrize("is_late", [False, True], ids=["synchronous", "asynchronous"])
def test_requests_come_go_and_move_and_keep_their_texts(vllm, server, is_late):
    fields = [dict(seed=1, temperature=0.0), dict(seed=2, temperature=0.8, top_p=0.9), dict(seed=3, top_k=5), dict(seed=4, min_p=0.1),
              dict(seed=5, presence_penalty=1.0, frequency_penalty=0.5), dict(seed=6, repetition_penalty=1.3)]
    requests = [new([at, 1], **each) for at, each in enumerate(fields)]
    engine = Engine(vllm, processor(vllm, server))
    for each in requests[:4]:
        engine.add(each)
    for step in range(30):
        if step == 5:
            engine.remove(requests[0])
            engine.add(requests[4])
        if step == 8:
            # No request fills this hole, so the last request moves there.
            engine.remove(requests[2])
        if step == 9:
            engine.swap(0, 2)
        if step == 12:
            # Preempted ...
            engine.remove(requests[1])
        if step == 15:
            # ... and resumed with its tokens; also a new request whose prompt takes another step.
            engine.add(requests[1])
            engine.add(requests[5])
        engine.step(thrown_away=requests[5:] if step in (15, 16) else (), is_late=is_late and step not in (4, 11, 14))
        if step == 20:
            server.kill()
            server.start()
    assert [len(each["true"]) for each in requests[:3]] == [5, 27, 8] and len(requests[5]["true"]) == 13 and len(requests[3]["true"]) == 30
    for each, own in zip(requests, fields):
        assert each["true"] == alone(server, each, **own)


def test_extra_arguments_reach_croupier(vllm, server):
    extra = {"croupier": {"dry_multiplier": 0.8, "xtc_probability": 0.5, "engine_order": "ENGINE_ORDER_CROUPIER", "temperature": 0.9}}
    each = new([1], seed=1, extra_args=extra)
    engine = Engine(vllm, processor(vllm, server))
    engine.add(each)
    for _ in range(20):
        engine.step()
    own = dict(dry_multiplier=0.8, xtc_probability=0.5, temperature=0.9, seed=1)
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(prompt=[1], **own)
        for _ in range(20):
            stream.sample(row([1, *text.tokens]), [text])
    assert each["true"] == text.tokens != alone(server, each, seed=1)


def test_ranks_without_a_seed_agree(vllm, server):
    def run():
        requests = [new([at]) for at in range(3)]
        engine = Engine(vllm, processor(vllm, server))
        for each in requests:
            engine.add(each)
        for _ in range(10):
            engine.step()
        return [each["true"] for each in requests]

    first = run()
    assert run() == first and len({tuple(each) for each in first}) == 3


def test_engines_of_data_parallelism_differ_without_a_seed(vllm, server):
    """As in vllm 0.32.0 (config/parallel.py): `reconfigure_for_independent_dp_rank` makes each engine of a dense model rank 0 and keeps
    `data_parallel_index`."""
    def run(seed=None, **parallel):
        engine, each = Engine(vllm, processor(vllm, server, parallel_config=types.SimpleNamespace(**parallel))), new([1], seed=seed)
        engine.add(each)
        for _ in range(10):
            engine.step()
        return tuple(each["true"])

    dense = [run(data_parallel_index=index, data_parallel_rank=0) for index in range(3)]
    assert len(set(dense)) == 3 and dense[1] == run(data_parallel_index=1, data_parallel_rank=1)
    # Versions without an index, or without both.
    assert [run(data_parallel_rank=rank) for rank in range(3)] == dense and run() == dense[0]
    assert run(5, data_parallel_index=0) == run(5, data_parallel_index=1)


def test_a_limit_or_a_loop_in_the_server_s_defaults_or_a_preset_ends_no_text(vllm, serve, tmp_path):
    config = tmp_path / "croupier.toml"
    config.write_text("[defaults]\nmax_tokens = 2\nrepetition_detection = {max_pattern_size = 1, min_count = 2}\n")
    presets = tmp_path / "presets.toml"
    presets.write_text("[short]\ndescription = \"one token\"\nmax_tokens = 1\nrepetition_detection = {max_pattern_size = 1, min_count = 3}\n"
                       "proposer = {kind = \"ngram\"}\n")
    made = processor(vllm, serve(f"--config={config}", f"--presets={presets}"))
    outputs, params = [[], []], [request(seed=1), request(seed=2, extra_args={"croupier": {"preset": "short"}})]
    added = [(at, each, [1], output) for at, (each, output) in enumerate(zip(params, outputs))]
    made.update_state(vllm._interface.BatchUpdate(batch_size=2, removed=[], moved=[], added=added))
    always = np.where(np.arange(VOCAB) == 3, 50, 0).astype(np.float32)
    for _ in range(5):
        left = np.asarray(made.apply(engines.tensor([always, always])))
        assert (np.isfinite(left).sum(1) == 1).all()
        for output, token in zip(outputs, left.argmax(1).tolist()):
            output.append(token)


def test_a_text_that_stop_tokens_of_the_server_s_defaults_end_is_left_to_vllm(vllm, serve, tmp_path, caplog):
    config = tmp_path / "croupier.toml"
    config.write_text("[defaults]\nstop_token_ids = [3]\n")
    made = processor(vllm, serve(f"--config={config}"))
    outputs = [[], []]
    added = [(at, request(seed=at), [1], output) for at, output in enumerate(outputs)]
    made.update_state(vllm._interface.BatchUpdate(batch_size=2, removed=[], moved=[], added=added))
    rows = [np.where(np.arange(VOCAB) == token, 50, 0).astype(np.float32) for token in (3, 4)]
    left = [1, VOCAB, VOCAB]
    for finite in left:
        made_of = np.asarray(made.apply(engines.tensor(rows)))
        assert np.isfinite(made_of).sum(1).tolist() == [finite, 1]
        for output, token in zip(outputs, made_of.argmax(1).tolist()):
            output.append(token)
    assert outputs == [[3, 3, 3], [4, 4, 4]] and caplog.text.count("stop_token_ids") == 1


def test_without_a_server_it_says_so(vllm):
    with pytest.raises(ValueError, match="croupier_address"):
        vllm.CroupierLogitsProcessor(types.SimpleNamespace(additional_config={}), "cpu", False)


def test_it_runs_for_greedy_requests_too(vllm, server):
    assert processor(vllm, server).is_argmax_invariant() is False


@pytest.mark.skipif(not IS_REAL, reason="vllm is not installed")
def test_vllm_s_loader_and_sampler_take_it(vllm, server):
    """A mixed batch through vLLM's own Sampler, with penalties, top-k and a greedy request after the processor."""
    import torch
    from vllm.v1.sample.logits_processor import LogitsProcessors, _load_logitsprocs_by_fqcns
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler

    [made] = _load_logitsprocs_by_fqcns(["croupier.integrations.vllm:CroupierLogitsProcessor"])
    assert made is vllm.CroupierLogitsProcessor
    processors = LogitsProcessors([processor(vllm, server)])
    assert len(processors.non_argmax_invariant) == 1 and not processors.argmax_invariant
    fields = [dict(seed=1, temperature=0.0), dict(seed=2, temperature=0.8, top_k=5), dict(seed=3, repetition_penalty=1.4, presence_penalty=0.5)]
    requests = [new([at, 1], **each) for at, each in enumerate(fields)]
    added = [(at, each["params"], each["prompt"], each["output"]) for at, each in enumerate(requests)]
    update, params = vllm._interface.BatchUpdate(batch_size=3, removed=[], moved=[], added=added), [each["params"] for each in requests]
    column = lambda name: torch.tensor([float(getattr(each, name)) for each in params])  # noqa: E731
    for _ in range(15):
        for each in processors.all:
            each.update_state(update)
        update = None
        metadata = SamplingMetadata(
            temperature=column("temperature"), all_greedy=False, all_random=False, top_p=None,
            top_k=torch.tensor([VOCAB, 5, VOCAB], dtype=torch.int32), generators={}, max_num_logprobs=None, no_penalties=False,
            prompt_token_ids=torch.tensor([each["prompt"] for each in requests]), frequency_penalties=column("frequency_penalty"),
            presence_penalties=column("presence_penalty"), repetition_penalties=column("repetition_penalty"),
            output_token_ids=[each["output"] for each in requests], allowed_token_ids_mask=None, bad_words_token_ids={}, logitsprocs=processors)
        logits = engines.tensor([row([*each["prompt"], *each["output"]]) for each in requests])
        for each, [token] in zip(requests, Sampler()(logits, metadata).sampled_token_ids.tolist()):
            each["output"].append(token)
            each["true"].append(token)
    for each, own in zip(requests, fields):
        assert each["true"] == alone(server, each, **own)


def test_without_vllm_the_import_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.logits_processor", None)
    monkeypatch.delitem(sys.modules, "croupier.integrations.vllm", raising=False)
    with pytest.raises(ImportError, match="needs vllm"):
        importlib.import_module("croupier.integrations.vllm")
