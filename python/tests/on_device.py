"""Tests that test_device.py runs on a driver without a GPU."""

import asyncio
import ctypes
import gc
import os
import pathlib
import shutil
from ctypes import byref, c_uint64, c_void_p

import numpy as np
import pytest

import croupier
from conftest import Server
from croupier import _arrays
from croupier._cuda import driver

# Not a multiple of the alignment of rows, so that there are gaps between them.
VOCAB = 300
SERVERS = "GPU-00000000-0000-0000-0000-000000000000"
OTHER = "GPU-ffffffff-0000-0000-0000-000000000000"
TEXTS = (1, 2, 3)
# ON_HOST has a sampler without a kernel, so the server copies the rows from the GPU and samples them on the CPU. ON_GPU has kernels.
ON_HOST = {"temperature": 0.9, "typical_p": 0.95}
ON_GPU = {"temperature": 0.9, "top_p": 0.95}
PARAMS = {1: ON_GPU, 2: ON_HOST, 3: ON_GPU}


def logits(text, position):
    return np.random.default_rng((text, position)).normal(size=VOCAB).astype(np.float32) * 3


def batch(position, texts=TEXTS):
    return np.stack([logits(text, position) for text in texts])


@pytest.fixture(scope="module")
def gpu():
    """One server for all tests, because its self-test makes some hundred launches before it is ready."""
    server = Server("--backend=cuda", "--threads=1")
    yield server
    server.kill()
    shutil.rmtree(server.folder, ignore_errors=True)


@pytest.fixture
def memory():
    """GPU memory that a program itself allocates, in the primary context."""
    library, context = ctypes.CDLL("libcuda.so.1"), c_void_p()
    driver().call("cuDevicePrimaryCtxRetain", byref(context), 0)
    made = []

    def make(array, **facts):
        array = np.ascontiguousarray(array)
        made.append(c_uint64())
        with driver().current(context):
            assert library.cuMemAlloc_v2(byref(made[-1]), ctypes.c_size_t(array.nbytes)) == 0
            later(library, made[-1].value, array)
        return OnGpu(made[-1].value, array, facts)

    yield make
    with driver().current(context):
        for at in made:
            library.cuMemFree_v2(at)
    driver().call("cuDevicePrimaryCtxRelease_v2", 0)


def later(library, at, array):
    """Writes like a model's kernel: the memory is written when somebody waits, on a stream that does not synchronise with others. A
    context must be current."""
    stream = c_void_p()
    assert library.cuStreamCreate(byref(stream), 1) == 0
    there = c_uint64(at), c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), stream
    assert library.cuMemcpyHtoDAsync_v2(*there) == 0


class OnGpu:
    """An array as a GPU library provides it."""

    def __init__(self, at, array, facts):
        self.__cuda_array_interface__ = {"version": 3, "shape": array.shape, "typestr": array.dtype.str, "strides": None,
                                         "data": (at, False), "stream": 1, **facts}


def call_of(function):
    """The number of this process' successful calls of a driver function."""
    lines = pathlib.Path(os.environ["FAKE_CUDA_LOG"]).read_text().splitlines()
    return lines.count(f"{os.getpid()} {function} 0")


def write(rows, values):
    """Writes rows on the GPU by address."""
    library, mapping = ctypes.CDLL("libcuda.so.1"), rows.array._mapping
    facts = rows.array.__cuda_array_interface__
    assert facts["version"] == 3 and facts["shape"] == values.shape and facts["typestr"] == values.dtype.str
    with driver().current(mapping._context):
        for index, row in enumerate(values):
            later(library, facts["data"][0] + index * facts["strides"][0], row)
    return rows


def narrowed(values, dtype):
    return _arrays.bf16(values) if dtype == "bf16" else values.astype(_arrays.DTYPES[dtype][1])


def text_of(server, place, dtype="f32", count=6, **options):
    """The texts, sampled from logits that `place` puts where they are sent from."""
    with croupier.connect(server.uds, VOCAB, dtype=dtype, **options) as stream:
        sequences = [stream.open(seed=text, **PARAMS[text]) for text in TEXTS]
        for position in range(count):
            stream.sample(place(stream, narrowed(batch(position), dtype)), sequences)
        return [sequence.tokens for sequence in sequences]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_tokens_are_those_of_inline_logits(gpu, memory, dtype):
    expected = text_of(gpu, lambda _, values: values, dtype, data_path="inline")
    assert len(set(map(tuple, expected))) == 3
    places = {
        "rows": lambda stream, values: write(stream.rows(len(values)), values),
        "array of the host": lambda _, values: values,
        "array of the GPU": lambda _, values: memory(values),
        "whole rows": lambda stream, values: whole(stream.rows(len(values)), values),
    }

    def whole(rows, values):
        rows.array[:] = values
        return rows

    for name, place in places.items():
        assert text_of(gpu, place, dtype, data_path="device_memory", device=SERVERS, slots=1) == expected, name


def test_more_rows_than_a_slot_has_go_in_several_messages(gpu, memory):
    expected = text_of(gpu, lambda _, values: values, data_path="inline")
    with pytest.raises(ValueError, match="more than max_rows, 2"):
        text_of(gpu, lambda stream, _: stream.rows(3), data_path="device_memory", max_rows=2)
    for place in (memory, lambda values: values):
        assert text_of(gpu, lambda _, values: place(values), data_path="device_memory", max_rows=2, slots=1) == expected


def test_rows_of_the_gpu_may_lie_apart_and_one_may_be_a_line(gpu, memory):
    expected = text_of(gpu, lambda _, values: values, data_path="inline")

    def apart(_, values):
        wide = np.full((len(values), VOCAB + 7), np.nan, np.float32)
        wide[:, :VOCAB] = values
        return memory(wide, shape=values.shape, strides=wide.strides)

    assert text_of(gpu, apart, data_path="device_memory") == expected
    with croupier.connect(gpu.uds, VOCAB, data_path="device_memory") as stream:
        assert stream.data_path == "device_memory"
        line = stream.open(seed=1, **ON_HOST)
        assert stream.sample(memory(logits(1, 0)), [line]) == expected[0][:1]


def test_what_does_not_fit_is_refused_and_takes_no_slot(gpu, memory):
    good = batch(0)
    with croupier.connect(gpu.uds, VOCAB, data_path="device_memory", slots=1, max_rows=4) as stream:
        sequence = stream.open(seed=1, **ON_HOST)
        for wrong, said in [
            (memory(good[:, :-1]), r"shape \(3, 299\), must be \(rows, 300\)"),
            (memory(good.astype(np.float64)), "are <f8, must be <f4"),
            (memory(good, strides=(8 * VOCAB, 8)), "contiguous"),
            (np.zeros((1, VOCAB - 1), np.float32), "shape"),
        ]:
            with pytest.raises(ValueError, match=said):
                stream.sample(wrong, [sequence])
        with pytest.raises(croupier.CroupierError, match="cuPointerGetAttribute: CUDA_ERROR_INVALID_VALUE"):
            stream.sample(OnGpu(4096, good, {}), [sequence])
        assert stream.sample(memory(good[:1]), [sequence]) == sequence.tokens


@pytest.mark.parametrize("path", ["inline", "shared_memory"])
def test_other_paths_refuse_what_lies_on_a_gpu(gpu, memory, path):
    with croupier.connect(gpu.uds, VOCAB, data_path=path) as stream:
        with pytest.raises(ValueError, match=r'data_path="device_memory".*logits.cpu\(\)'):
            stream.sample(memory(batch(0)), [stream.open(seed=1, **ON_HOST)])


def test_another_gpu_is_refused_with_both_named(gpu, serve, monkeypatch):
    with pytest.raises(croupier.CroupierError, match="no device memory: .*WRONG_DEVICE") as error:
        croupier.connect(gpu.uds, VOCAB, data_path="device_memory", device=OTHER)
    assert SERVERS in str(error.value) and OTHER in str(error.value)
    # A server whose GPU this process cannot see.
    driver()
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "9.0,Elsewhere," + OTHER.removeprefix("GPU-").replace("-", ""))
    other = serve("--backend=cuda", "--threads=1")
    with pytest.raises(croupier.CroupierError, match="which this process cannot see") as error:
        croupier.connect(other.uds, VOCAB, data_path="device_memory")
    assert SERVERS in str(error.value) and OTHER in str(error.value)


def test_the_mapping_ends_with_its_last_array(gpu):
    # Remove what earlier tests left.
    gc.collect()
    mapped, unmapped, freed = map(call_of, ("cuMemMap", "cuMemUnmap", "cuMemAddressFree"))
    with croupier.connect(gpu.uds, VOCAB, data_path="device_memory") as stream:
        rows = stream.rows(2)
    gc.collect()
    assert (call_of("cuMemMap"), call_of("cuMemUnmap")) == (mapped + 1, unmapped), "an array is left"
    del rows, stream
    gc.collect()
    assert (call_of("cuMemUnmap"), call_of("cuMemAddressFree")) == (unmapped + 1, freed + 1)
    assert call_of("cuDevicePrimaryCtxRetain") == call_of("cuDevicePrimaryCtxRelease_v2")
    current = c_void_p(1)
    driver().call("cuCtxGetCurrent", byref(current))
    assert not current.value, "the caller's context is as it was, which is none"


def test_after_a_reconnect_logits_of_the_old_region_are_lost(gpu):
    with croupier.connect(gpu.uds, VOCAB, data_path="device_memory") as stream:
        sequence = stream.open(seed=1, **ON_HOST)
        stream.sample(logits(1, 0), [sequence])
        rows, more = (write(stream.rows(1), batch(position, [1])) for position in (1, 2))
        gpu.kill()
        gpu.start()
        with pytest.raises(croupier.LogitsLost):
            stream.sample(rows, [sequence])
        # So are rows that were written but not sent.
        with pytest.raises(croupier.LogitsLost):
            stream.sample(more, [sequence])
        for position in (1, 2):
            stream.sample(write(stream.rows(1), batch(position, [1])), [sequence])
    expected = text_of(gpu, lambda _, values: values, data_path="inline", count=3)
    assert sequence.tokens == expected[0]


def test_asyncio_gives_the_same(gpu, memory):
    async def run():
        async with croupier.aio.connect(gpu.uds, VOCAB, data_path="device_memory") as stream:
            assert stream.data_path == "device_memory"
            sequences = [stream.open(seed=text, **PARAMS[text]) for text in TEXTS]
            for position in range(4):
                values = batch(position)
                await stream.sample(memory(values) if position % 2 else write(stream.rows(3), values), sequences)
            return [sequence.tokens for sequence in sequences]

    assert asyncio.run(run()) == text_of(gpu, lambda _, values: values, data_path="inline", count=4)
