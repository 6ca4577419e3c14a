"""croupier.integrations._logits: the path of logits from an engine to the server, in the adapters for vLLM and SGLang."""

import types

import croupier
import engines
import numpy as np
import pytest
from croupier.integrations._logits import rows_that_fit
from test_sglang import ROWS, TOP_K_ALL, forward, info, logits, sglang  # noqa: F401
from test_vllm import VOCAB, Engine, adapter, alone, new, processor, row

#: The vocabulary size of Qwen 3.
LARGE = 151_936


@pytest.fixture
def vllm(monkeypatch):
    yield from adapter(monkeypatch)


def test_the_largest_step_is_what_a_region_has_room_for():
    default = croupier.pb.Limits()
    assert rows_that_fit(default, LARGE, 256, 1) == 256
    assert rows_that_fit(default, LARGE, 1024, 1) == rows_that_fit(default, LARGE, 1024, 2) == 441
    # Four ranks share the limit for all regions. The result is at least one row.
    assert rows_that_fit(default, LARGE, 1024, 4) == 220 and rows_that_fit(default, LARGE, 256, 2000) == 1
    large = croupier.pb.Limits(max_bytes_per_region=1 << 30, max_region_bytes=2 << 30, max_device_region_bytes=256 << 20)
    assert rows_that_fit(large, LARGE, 1024, 2) == 1024 and rows_that_fit(large, LARGE, 1024, 2, on_device=True) == 220
    # A row of 50 logits takes 256 bytes, including the gap before the next row.
    assert rows_that_fit(croupier.pb.Limits(max_bytes_per_region=8192), VOCAB, 100, 1) == 16


def test_usual_sizes_of_vllm_and_sglang_go_through_shared_memory(vllm, sglang, server, caplog):  # noqa: F811
    rows = np.zeros((2, LARGE), np.float32)
    rows[:, 7] = 1
    made = processor(vllm, server, scheduler_config=types.SimpleNamespace(max_num_seqs=1024))
    asked = [new([1], temperature=0.0) for _ in rows]
    added = [(at, each["params"], each["prompt"], each["output"]) for at, each in enumerate(asked)]
    made.update_state(vllm._interface.BatchUpdate(batch_size=2, removed=[], moved=[], added=added))
    assert np.asarray(made.apply(engines.tensor(rows))).argmax(1).tolist() == [7, 7]
    assert made._connected.data_path == "shared_memory"
    sampler = sglang.CroupierSampler(server.uds)
    assert forward(sampler, rows, info(ROWS[:1] * 2))[0] == [7, 7]
    assert sampler._stream.data_path == "shared_memory" and not caplog.records


def test_a_batch_that_is_larger_than_the_region_is_split(vllm, sglang, serve, caplog):  # noqa: F811
    # Room for 16 rows.
    server, plain = serve("--max-bytes-per-region=8192"), serve()
    made = processor(vllm, server)
    engine, requests = Engine(vllm, made), [new([at, 1], seed=at, temperature=1.5) for at in range(40)]
    for each in requests:
        engine.add(each)
    for step in range(6):
        if step == 3:
            server.kill()
            server.start()
        engine.step()
    assert all(each["true"] == alone(plain, each, seed=at, temperature=1.5) for at, each in enumerate(requests))
    samplers, given = [sglang.CroupierSampler(each.uds) for each in (server, plain)], info([(1.5, TOP_K_ALL, 1.0, 0.0)] * 300, [5] * 300)
    for step in range(4):
        tokens = [forward(sampler, logits(300, step), given)[0] for sampler in samplers]
        assert tokens[0] == tokens[1] and len(set(tokens[0])) > 10
    assert {stream.data_path for stream in (made._connected, *(each._stream for each in samplers))} == {"shared_memory"}
    # The only message is that the server was killed.
    [said] = caplog.messages
    assert said.startswith(f"connection to {server.uds} lost: ")


def test_it_is_said_once_where_logits_could_go_through_shared_memory_and_do_not(vllm, sglang, serve, caplog):  # noqa: F811
    server = serve("--max-bytes-per-region=4096")
    made, sampler = processor(vllm, server), sglang.CroupierSampler(server.uds, max_rows=100)
    engine = Engine(vllm, made)
    engine.add(each := new([1], temperature=0.0))
    for step in range(3):
        engine.step()
        assert forward(sampler, logits(4), info(ROWS[:1] * 4))[0] == logits(4).argmax(1).tolist()
    assert each["true"][0] == int(row([1]).argmax()) and made._connected.data_path == sampler._stream.data_path == "inline"
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 2 and all("max_bytes_per_region" in each and "max_region_bytes" in each and server.uds in each for each in warned)
    # There is no warning if the inline path is requested.
    caplog.clear()
    sampler = sglang.CroupierSampler(server.uds, data_path="inline")
    forward(sampler, logits(4), info(ROWS[:1] * 4))
    assert sampler._stream.data_path == "inline" and not caplog.records
