"""Logits in GPU memory, without a GPU: client and server run on the driver of tests/cuda_driver."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
DRIVER = HERE.parents[1] / "target" / "emulator" / "driver"


def test_device_memory_on_a_driver_without_a_gpu(tmp_path):
    if not (DRIVER / "libcuda.so.1").exists():
        pytest.skip(f"there is no {DRIVER}/libcuda.so.1; scripts/emulator-build makes it")
    # The loader reads LD_LIBRARY_PATH only when a process starts.
    environment = {**os.environ, "LD_LIBRARY_PATH": str(DRIVER), "FAKE_CUDA_ANSWERS": str(DRIVER / "answers"),
                   "FAKE_CUDA_LOG": str(tmp_path / "calls")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(HERE / "on_device.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_device_memory_wants_a_driver_and_a_server_with_a_gpu(server):
    import croupier

    with pytest.raises(croupier.CroupierError, match="no device memory: (the CUDA driver cannot be used|no region: NO_DEVICE)"):
        croupier.connect(server.uds, 100, data_path="device_memory")


def test_options_of_device_memory_are_checked():
    import croupier

    with pytest.raises(ValueError, match="vocab_shards"):
        croupier.connect("unix:/none", 100, data_path="device_memory", vocab_shards=[50, 50])
    with pytest.raises(ValueError, match="needs data_path device_memory, not auto"):
        croupier.connect("unix:/none", 100, device="GPU-00000000-0000-0000-0000-000000000000")
    with pytest.raises(ValueError, match="one of auto, inline, shared_memory, device_memory"):
        croupier.connect("unix:/none", 100, data_path="gpu")
