"""The types that logits may have."""

import array
import ctypes
import gc
import sys
import types

import numpy as np
import pytest

import croupier
from croupier import Rows
from croupier._device import DeviceArray
from croupier._arrays import DTYPES, as_rows, bf16, format_named, widened, writable
from test_client import PATHS

VOCAB = 100
ROWS = np.random.default_rng(1).normal(size=(3, VOCAB)).astype(np.float32) * 3
BITS = bf16(ROWS)


class Dlpack:
    """A tensor of some library, on the host or on another device."""

    def __init__(self, values, device=1):
        self.values, self.device = values, device

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return (self.device, 0)


class Unknown(Dlpack):
    """Numbers of a DLPack type that numpy does not know."""

    def __dlpack__(self, **_):
        raise BufferError("unsupported dtype")

    def __array__(self, dtype=None, copy=None):
        return self.values


class Tensor:
    """A torch tensor on the host, as far as it is used here."""

    def __init__(self, values, dtype, detached=False):
        self.values, self.dtype, self.detached = values, dtype, detached

    def detach(self):
        return Tensor(self.values, self.dtype, True)

    def view(self, dtype):
        return Tensor(self.values.view(np.int16), dtype, self.detached)

    def numpy(self):
        assert self.detached and self.dtype != "torch.bfloat16"
        return self.values


FORMS = {
    "numpy": (ROWS, "f32"),
    "numpy, another order": (ROWS.astype(">f4"), "f32"),
    "dlpack": (Dlpack(ROWS), "f32"),
    "buffer with a shape": (memoryview(ROWS), "f32"),
    "torch": (Tensor(ROWS, "torch.float32"), "f32"),
    "numpy float16": (ROWS.astype(np.float16), "f16"),
    "dlpack float16": (Dlpack(ROWS.astype(np.float16)), "f16"),
    "torch float16": (Tensor(ROWS.astype(np.float16), "torch.float16"), "f16"),
    "uint16": (BITS, "bf16"),
    "torch bfloat16": (Tensor(BITS, "torch.bfloat16"), "bf16"),
}


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(int16="torch.int16"))


@pytest.mark.parametrize("form", FORMS)
def test_memory_that_fits_is_not_copied(torch, form):
    logits, dtype = FORMS[form]
    rows = as_rows(logits, VOCAB, dtype)
    expected = {"f32": ROWS, "f16": ROWS.astype(np.float16), "bf16": BITS}[dtype]
    assert np.array_equal(rows, expected)
    whose = getattr(logits, "values", logits)
    assert np.shares_memory(rows, np.asarray(whose))


LINE = ROWS.reshape(-1).tolist()
CONVERTED = {
    "a flat buffer": (array.array("f", LINE), "f32", ROWS),
    "a flat memoryview": (memoryview(array.array("f", LINE)), "f32", ROWS),
    "bytes": (ROWS.tobytes(), "f32", ROWS),
    "bytearray": (bytearray(BITS.tobytes()), "bf16", BITS),
    "a memoryview of bytes": (memoryview(ROWS.astype(np.float16).tobytes()), "f16", ROWS.astype(np.float16)),
    "a list": (ROWS.tolist(), "f32", ROWS),
    "one row": (ROWS[0], "f32", ROWS[:1]),
    "float64": (ROWS.astype(np.float64), "bf16", BITS),
    "bf16 on a stream of f32": (BITS, "f32", widened(BITS)),
    "bf16 on a stream of f16": (BITS, "f16", widened(BITS)),
    "numbers that DLPack does not give to numpy": (Unknown(ROWS), "f32", ROWS),
    "no rows in a list": ([], "f32", ROWS[:0]),
    "no rows in bytes": (b"", "bf16", BITS[:0]),
    "whole numbers": (np.ones((2, VOCAB), np.int32), "f32", np.ones((2, VOCAB))),
}


@pytest.mark.parametrize("form", CONVERTED)
def test_other_forms_are_converted(form):
    logits, dtype, expected = CONVERTED[form]
    rows = as_rows(logits, VOCAB, dtype)
    assert rows.shape == expected.shape and np.array_equal(rows, expected)


def test_a_matrix_is_taken_as_its_rows(server):
    matrix, ids = ROWS.view(np.matrix), np.array([[3, 5], [5, 7]]).view(np.matrix)
    with croupier.connect(server.uds, VOCAB) as stream:
        listed, expected = stream.top_n(matrix, 5), stream.top_n(ROWS, 5)
        assert [ids.tolist() for ids in listed.ids] == [ids.tolist() for ids in expected.ids]
        text = stream.open(seed=1)
        masks = np.zeros((1, VOCAB), bool)
        masks[0, 9] = True
        assert stream.sample(matrix[:1], [text], token_masks=masks.view(np.matrix)) == [9]
        with pytest.raises(ValueError, match=r"ids\[0\] has the shape \(1, 2\), must be one-dimensional: the token ids of one row"):
            stream.sample(croupier.TopN(ids, np.ones((2, 2)), [0.0, 0.0]), [text, stream.open()])


def test_what_is_no_rows_is_refused():
    for wrong, said in [
        (ROWS[:, 1:], "shape"), (ROWS[None], "shape"), (ROWS.reshape(-1), "shape"), (b"\0" * 401, "401 bytes, must be a multiple of 4, the size of one f32"),
        (array.array("f", LINE[1:]), "shape"), (LINE[1:], rf"shape \({len(LINE) - 1},\)"), (ROWS[0, 1:], rf"shape \({VOCAB - 1},\)"),
        (Dlpack(ROWS, device=2), "on a device of DLPack type 2"),
    ]:
        with pytest.raises(ValueError, match=said):
            as_rows(wrong, VOCAB, "f32")
    # numpy would convert the text "1" to the number 1.
    for wrong in (ROWS.astype(str), ROWS.astype(bytes), [["1"] * VOCAB], ROWS.astype("m8[s]")):
        for dtype in DTYPES:
            with pytest.raises(TypeError, match="logits are .*, must be real numbers"):
                as_rows(wrong, VOCAB, dtype)
    # It would convert None to NaN.
    for wrong, said in ((np.array([[None] * VOCAB]), " with NoneType among them"), ([[0.0] * (VOCAB - 1) + [None]], " with NoneType among them"),
                        ([None] * VOCAB, " with NoneType among them"), (ROWS.astype(object), "")):
        for dtype in DTYPES:
            with pytest.raises(TypeError, match=f"logits are object{said}, must be real numbers"):
                as_rows(wrong, VOCAB, dtype)
    with pytest.raises(BufferError):
        as_rows(type("Bare", (), {"__dlpack__": Unknown.__dlpack__})(), VOCAB, "f32")


@pytest.mark.parametrize("path", ["inline", "shared_memory"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_every_form_gives_the_same_tokens(server, torch, path, dtype):
    native = {"f32": ROWS, "f16": ROWS.astype(np.float16), "bf16": BITS}[dtype]
    forms = [native, Dlpack(native), memoryview(native), native.tobytes(), Tensor(native, "torch.any"),
             np.asfortranarray(native), np.repeat(native, 2, axis=0)[::2]]
    with croupier.connect(server.uds, VOCAB, dtype=dtype, data_path=path) as stream:
        tokens = []
        for form in forms:
            texts = [stream.open(seed=number) for number in range(3)]
            tokens.append(stream.sample(form, texts))
            again = [stream.open(seed=number) for number in range(3)]
            stream.submit(form, again)
            stream.result()
            assert [text.tokens[0] for text in again] == tokens[-1]
    assert all(each == tokens[0] for each in tokens) and len(set(tokens[0])) == 3


def test_bfloat16_of_a_library_is_taken_as_it_is():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    rows = ROWS.astype(ml_dtypes.bfloat16)
    assert np.array_equal(as_rows(rows, VOCAB, "bf16"), BITS)
    assert np.shares_memory(as_rows(rows, VOCAB, "bf16"), rows)
    assert np.array_equal(as_rows(rows, VOCAB, "f32"), rows.astype(np.float32))
    swapped = rows.byteswap().view(rows.dtype.newbyteorder(">"))
    for dtype in "bf16", "f32":
        assert np.array_equal(as_rows(swapped, VOCAB, dtype), as_rows(rows, VOCAB, dtype))


class TorchsOwn:
    """A number format with the repr of torch's."""

    def __init__(self, name):
        self.name_of_it = name

    def __repr__(self):
        return f"torch.{self.name_of_it}"


@pytest.mark.parametrize("dtype, given", [
    ("f32", ["f32", "float32", np.float32, np.single, np.dtype("<f4"), ROWS.dtype, TorchsOwn("float32"), "torch.float32"]),
    ("f16", ["f16", "float16", np.float16, np.half, np.dtype("<f2"), TorchsOwn("float16"), "torch.float16"]),
    ("bf16", ["bf16", "bfloat16", TorchsOwn("bfloat16"), "torch.bfloat16", type("bfloat16", (np.generic,), {})]),
])
def test_number_formats_have_the_names_of_other_libraries_too(server, dtype, given):
    for name in given:
        assert format_named(name) == dtype
    with croupier.connect(server.uds, VOCAB, dtype=given[-1]) as stream:
        assert stream.rows(1).array.dtype == DTYPES[dtype][1]
        text = stream.open()
        assert stream.sample(ROWS[:1], [text]) and stream.sample(stream.top_n(ROWS[:1], VOCAB), [text])


def test_bfloat16_of_a_library_names_a_format():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    assert format_named(ml_dtypes.bfloat16) == format_named(np.dtype(ml_dtypes.bfloat16)) == "bf16"
    # Other formats with two bytes or a similar name are not bf16.
    for wrong in ml_dtypes.float8_e4m3fn, np.uint16, np.int16:
        with pytest.raises(ValueError, match="dtype is .*, must be one of f32, f16, bf16"):
            format_named(wrong)


@pytest.mark.parametrize("wrong", ["f64", "half", "", np.float64, float, np.dtype("f8"), TorchsOwn("float64"), None, 16, ["f32"], ROWS])
def test_a_number_format_that_is_none_is_told(wrong):
    with pytest.raises(ValueError, match="(?s)^dtype is .*, must be one of f32, f16, bf16, or the name in numpy or torch: float32, float16, bfloat16$"):
        croupier.connect("unix:/none", VOCAB, dtype=wrong)


@pytest.mark.filterwarnings("error")
def test_complex_numbers_of_a_library_are_refused():
    library = pytest.importorskip("ml_dtypes")
    for kind in {"complex32", "bcomplex32"} & set(dir(library)):
        with pytest.raises(TypeError, match="complex32, must be real numbers"):
            as_rows(ROWS.astype(getattr(library, kind)), VOCAB, "f32")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("path", ["inline", "shared_memory"])
def test_what_is_too_small_for_the_dtype_is_a_mask(server, path, dtype):
    """There is no numpy warning, which programs may have turned into an error."""
    masked = np.where(ROWS < 1, np.finfo(np.float64).min, ROWS)
    with croupier.connect(server.uds, VOCAB, data_path=path, dtype=dtype) as stream:
        tokens = []
        for given in (masked, np.where(ROWS < 1, -np.inf, ROWS), stream.top_n(masked, VOCAB), croupier.TopN([range(VOCAB)] * 3, masked, [-np.inf] * 3)):
            tokens.append(stream.sample(given, [stream.open(seed=seed, temperature=3.0) for seed in range(3)]))
        texts, rows = [stream.open(seed=seed, temperature=3.0) for seed in range(3)], stream.rows(3)
        rows.write(masked)
        assert [stream.sample(rows, texts)] * 4 == tokens
        too_large = np.where(ROWS < 1, -np.inf, 1e300)
        with pytest.raises(croupier.RowError, match="infin"):
            stream.sample(too_large, [stream.open() for _ in range(3)])


@pytest.mark.parametrize("path", ["inline", "shared_memory"])
def test_objects_are_not_sent(server, path):
    wrong = np.array([[None] * VOCAB])
    with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
        text, rows = stream.open(), stream.rows(1)
        ways = (lambda: stream.sample(wrong, [text]), lambda: stream.submit(wrong, [text]), lambda: rows.write(wrong), lambda: stream.top_n(wrong, 5),
                lambda: stream.sample(croupier.TopN([range(VOCAB)], wrong, [0.0]), [text]))
        for way in ways:
            with pytest.raises(TypeError, match="logits are object with NoneType among them, must be real numbers"):
                way()
        assert stream.sample(ROWS[:1], [text])


@pytest.mark.parametrize("wrong, kind", [(2.5, TypeError), ("3", TypeError), (0, ValueError)])
def test_a_top_n_of_no_number_is_told(server, wrong, kind):
    with croupier.connect(server.uds, VOCAB) as stream, pytest.raises(kind, match=f"n is {wrong!r}, must be"):
        stream.top_n(ROWS, wrong)


def test_tensors_of_torch(server):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tensors are stood for by objects like them")
    rows = torch.from_numpy(ROWS)
    for tensor, dtype in [(rows, "f32"), (rows.half(), "f16"), (rows.bfloat16(), "bf16"), (rows.clone().requires_grad_(), "f32")]:
        assert format_named(tensor.dtype) == dtype
        taken = as_rows(tensor, VOCAB, dtype)
        assert taken.ctypes.data == tensor.data_ptr()
        with croupier.connect(server.uds, VOCAB, dtype=dtype) as stream:
            one, two = stream.open(seed=1), stream.open(seed=1)
            assert stream.sample(tensor[:1], [one]) == stream.sample(tensor.detach().float().numpy()[:1], [two])


@pytest.mark.parametrize("how", [
    lambda array: array.__setitem__(slice(None), ROWS),
    lambda array: array.__setitem__(..., ROWS.astype(np.float64)),
    lambda array: array.__setitem__(slice(None), ROWS.tolist()),
    lambda array: array.__setitem__(slice(None), BITS),
    lambda array: [row.__setitem__(slice(None), values) for row, values in zip(array, ROWS)],
    lambda array: [array.__setitem__((i, j), ROWS[i, j]) for i in range(3) for j in range(VOCAB)],
    lambda array: array.__setitem__(slice(None), FORMS["torch bfloat16"][0]),
])
def test_numbers_that_are_assigned_to_bf16_rows_become_bf16(torch, how):
    array = writable(np.zeros((3, VOCAB), np.uint16))
    how(array)
    assert (np.asarray(array) == BITS).all()


def test_one_number_may_be_assigned_to_bf16_rows():
    array = writable(np.zeros((1, 4), np.uint16))
    array[:] = -20
    array[0, 1], array[0, 2], array[0, 3] = 1.5, np.uint16(0x4000), np.nan
    assert array.tolist() == [[0xC1A0, 0x3FC0, 0x4000, 0x7FC0]]
    array.fill(1.5)
    assert array.tolist() == [[0x3FC0] * 4]
    # numpy rejects computing into the array.
    for wrong in (lambda: np.add(ROWS[:1, :4], 1, out=array), lambda: np.copyto(array, ROWS[:1, :4])):
        with pytest.raises(TypeError, match="same_kind"):
            wrong()


@pytest.mark.parametrize("path", PATHS)
def test_no_setting_of_numpy_makes_a_conversion_fail(server, path):
    tiny = np.full((1, VOCAB), 1e-300)
    with croupier.connect(server.uds, VOCAB, data_path=path) as stream, np.errstate(all="raise"):
        text = stream.open()
        stream.sample(tiny, [text])
        stream.submit(tiny, [text])
        stream.result()
        assert len(text.tokens) == 2


def test_a_message_that_cannot_be_made_waits_for_no_answer(server, monkeypatch):
    with croupier.connect(server.uds, VOCAB, data_path="inline") as stream:
        text = stream.open()
        with monkeypatch.context() as patched, pytest.raises(MemoryError):
            patched.setattr(stream._session, "encode", lambda part: (_ for _ in ()).throw(MemoryError))
            stream.sample(ROWS[:1], [text])
        assert not stream._session.waiting
        assert stream.result().work[0].tokens and len(text.tokens) == 1


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_bits_are_written_to_rows_of_other_formats_not_assigned(dtype):
    """These arrays are numpy's own, which takes uint16 for whole numbers."""
    rows = Rows(writable(np.zeros((3, VOCAB), DTYPES[dtype][1])))
    assert type(rows.raw) is np.ndarray
    rows.write(BITS)
    assert (rows.raw == widened(BITS).astype(DTYPES[dtype][1])).all()
    rows.array[:] = 0 * BITS + 3
    assert (rows.raw == 3).all()


@pytest.mark.parametrize("given", [ROWS, ROWS.astype(np.float64), ROWS.tolist(), BITS])
def test_numbers_that_are_assigned_to_bf16_rows_on_a_gpu_become_bf16(given):
    class Mapping:
        """Records the bytes that would be uploaded to the GPU."""

        device = 0

        def upload(self, _, address, size):
            self.taken = np.frombuffer(ctypes.string_at(address, size), np.uint16)

    mapping = Mapping()
    rows = Rows(DeviceArray(mapping, 0, np.dtype("<u2"), (3, VOCAB), VOCAB))
    for write in (rows.write, lambda logits: rows.array.__setitem__(slice(None), logits)):
        rows.is_written = False
        write(given)
        assert rows.is_written
        assert (mapping.taken.reshape(3, VOCAB) == BITS).all()


@pytest.mark.parametrize("path", ["inline", "shared_memory"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_rows_take_what_sample_takes(server, torch, dtype, form, path):
    given = FORMS[form][0]
    with croupier.connect(server.uds, VOCAB, dtype=dtype, data_path=path) as stream:
        tokens = []
        for write in (lambda rows: rows.write(given), None):
            texts = [stream.open(seed=seed) for seed in range(3)]
            rows = given
            if write is not None:
                rows = stream.rows(3)
                write(rows)
            tokens.append(stream.sample(rows, texts))
        assert tokens[0] == tokens[1]
        rows = stream.rows(2)
        with pytest.raises(ValueError, match="logits have 3 rows, must have 2"):
            rows.write(ROWS)
        with pytest.raises(ValueError, match="shape"):
            rows.write(ROWS[:2, 1:])
        stream.discard(rows)
        with pytest.raises(ValueError, match="discarded"):
            rows.write(ROWS[:2])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_an_array_keeps_its_place_without_its_rows(server, dtype):
    with croupier.connect(server.uds, VOCAB, dtype=dtype, slots=2) as stream:
        first, second = stream.rows(1).array, stream.rows(1).array[:, 1:]
        assert not np.shares_memory(first, second)
        with pytest.raises(croupier.CroupierError, match="every slot"):
            stream.rows(1)
        del first
        gc.collect()
        assert len(stream._session.free) == 1
        del second
        gc.collect()
        assert len(stream._session.free) == 2
