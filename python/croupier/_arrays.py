"""Converts logits in any form to numpy arrays of rows."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from .schema import pb

if TYPE_CHECKING:
    from typing_extensions import TypeGuard, TypeIs

    from ._forms import Array, Dtype, Memory, Numbers, OnDevice, Place
    from ._types import Rows

#: Number formats: the wire's value, and numpy's type. bf16 is the upper half of a float32, as uint16.
DTYPES: dict[str, tuple[int, np.dtype[Any]]] = {
    "f32": (pb.LOGITS_DTYPE_F32, np.dtype("<f4")),
    "f16": (pb.LOGITS_DTYPE_F16, np.dtype("<f2")),
    "bf16": (pb.LOGITS_DTYPE_BF16, np.dtype("<u2")),
}
#: The names that other libraries use.
_CALLED = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_BITS = DTYPES["bf16"][1]
#: The least number that bf16 rounds to an infinity, halfway between its largest one and 2 ** 128.
_TOO_LARGE = np.float32(2.0**128 - 2.0**119)
#: kDLCPU, and host memory that a GPU can reach.
_ON_HOST = (1, 3)
_NUMBERS = "fiub"
#: Complex numbers, text, times and objects. numpy would convert them to real numbers: the text "1" to 1, and None to
#: NaN.
_NO_NUMBERS = "cSUTmMO"


def as_rows(logits: Numbers | OnDevice, columns: int, dtype: str) -> Array:
    """Logits as an array of rows that can be copied to their destination. If they already fit, it is their own
    memory."""
    given = array = as_array(logits, dtype)
    if array.ndim == 1 and not array.size:
        # No rows: [] or b"".
        array = array.reshape(0, columns)
    elif array.ndim == 1:
        flat = not isinstance(logits, np.ndarray) and array.size % columns == 0
        array = array.reshape(-1, columns) if flat and _has_no_shape(logits) else array[np.newaxis]
    if array.ndim != 2 or array.shape[1] != columns:
        if given.dtype.kind in "OUS" and given.ndim < 2:
            # numpy makes an object of everything that it does not know.
            many = f" of {type(given[0]).__name__}" if given.ndim else ""
            raise TypeError(f"logits are {type(logits).__name__}{many}, must be numbers in the shape (rows, {columns}): an array, a tensor, "
                            "lists or bytes")
        raise ValueError(f"logits have the shape {given.shape}, must be (rows, {columns})")
    return in_dtype(array, dtype)


def as_array(logits: Numbers | OnDevice, dtype: str) -> Array:
    """The logits as a numpy array: from numpy, torch, DLPack, a buffer, or anything that numpy can convert."""
    if isinstance(logits, np.ma.MaskedArray):
        raise TypeError("logits are a masked array, whose mask would be lost; give logits.filled(-numpy.inf)")
    if isinstance(logits, np.ndarray):
        # Rows of a matrix would be matrices, not rows of numbers.
        return np.asarray(logits)
    if is_on_device(logits):
        raise ValueError("logits are on a GPU; connect with data_path=\"device_memory\" and without vocab_shards, "
                         "or give a copy on the host, such as logits.cpu() of a tensor")
    if _is_raw(logits):
        # Bytes do not say which numbers they contain. They are taken as they go over the wire.
        size, each = memoryview(logits).nbytes, DTYPES[dtype][1].itemsize
        if size % each:
            raise ValueError(f"logits are {size} bytes, must be a multiple of {each}, the size of one {dtype}")
        return np.frombuffer(logits, DTYPES[dtype][1])
    if _is_tensor(logits):
        return _of_tensor(logits)
    if hasattr(logits, "__dlpack__"):
        place = logits.__dlpack_device__()[0] if hasattr(logits, "__dlpack_device__") else 1
        if int(place) not in _ON_HOST:
            raise ValueError(f"logits are on a device of DLPack type {int(place)}; give a copy on the host")
        try:
            # Each release of numpy expects something else of the argument, hence Any.
            exported: Any = logits
            array: Array = np.from_dlpack(exported)
            return array
        except (BufferError, RuntimeError, TypeError):
            # Formats that DLPack has but numpy does not, such as bf16, may be convertible in another way.
            if not hasattr(logits, "__array__"):
                raise
    return np.asarray(logits)


def is_on_device(logits: object) -> TypeIs[OnDevice]:
    """Whether the object says that it is on a GPU. A PyTorch tensor on the host does not have this attribute."""
    return hasattr(logits, "__cuda_array_interface__")


def in_dtype(array: Array, dtype: str, what: str = "logits are") -> Array:
    """The array with numbers that can be copied into rows of the dtype. uint16 always means bf16."""
    if array.dtype.name == "bfloat16":
        # From a library that adds such a type to numpy.
        array = array.view(np.dtype(array.dtype.byteorder + "u2"))
    # A library's complex types have no kind of their own.
    if array.dtype.kind in _NO_NUMBERS or "complex" in array.dtype.name:
        raise TypeError(f"{what} {array.dtype}{_odd(array)}, must be real numbers")
    # In either byte order.
    is_bf16 = array.dtype.newbyteorder("<") == _BITS
    if dtype == "bf16":
        return array if is_bf16 else bf16(array)
    if is_bf16:
        return widened(array)
    # Anything that is not a number fails here, before anything is sent.
    return array if array.dtype.kind in _NUMBERS else array.astype(DTYPES[dtype][1])


def format_of(array: Array) -> str:
    """Which of `DTYPES` the numbers have as given. f32 if they have none of them."""
    little = array.dtype.newbyteorder("<")
    if array.dtype.name == "bfloat16":
        return "bf16"
    return next((name for name, (_, of) in DTYPES.items() if of == little), "f32")


def _odd(array: Array) -> str:
    """For an array of objects, the name of a kind among them that is not a number."""
    kinds = (type(item) for item in array.flat) if array.dtype.kind == "O" else ()
    return next((f" with {kind.__name__} among them" for kind in kinds if not issubclass(kind, (int, float))), "")


def _is_raw(logits: object) -> TypeGuard[bytes | bytearray | memoryview]:
    if isinstance(logits, memoryview):
        return logits.format in ("B", "b", "c")
    return isinstance(logits, (bytes, bytearray))


def _has_no_shape(logits: object) -> bool:
    """Whether it is a buffer that is one-dimensional whatever it contains."""
    return not hasattr(logits, "shape") or isinstance(logits, memoryview)


def _is_tensor(logits: object) -> bool:
    return hasattr(logits, "detach") and hasattr(logits, "numpy") and str(getattr(logits, "dtype", "")).startswith("torch.")


def _of_tensor(tensor: Any) -> Array:
    """The memory of a tensor on the host. numpy has no bf16, so a bf16 tensor becomes its bits."""
    tensor = tensor.detach()
    is_bf16 = str(tensor.dtype) == "torch.bfloat16"
    # int16, because not every release in use has uint16.
    array: Array = tensor.view(sys.modules["torch"].int16).numpy() if is_bf16 else tensor.numpy()
    return array.view(_BITS) if is_bf16 else array


def narrowing(rows: Rows | None = None, given: object = None) -> contextlib.AbstractContextManager[None]:
    """A context for converting numbers to a smaller type. Numbers that are too large become infinities, which masks
    need, and numpy would warn about. If an infinity is not a mask, the server reports it. `rows`, the destination, then
    records the reason; if `given` was converted before, it says so itself. Numbers that are too small become 0, and a
    NaN is also for the server to report, so neither raises, whatever the program has set in numpy: the step may have
    begun."""
    if rows is None:
        return np.errstate(over="ignore", under="ignore", invalid="ignore")

    def note(*_: object) -> None:
        rows.is_overflowed = True

    if isinstance(given, _Overflowed):
        note()
    return np.errstate(over="call", under="ignore", invalid="ignore", call=note)


class _Overflowed(np.ndarray[Any, np.dtype[Any]]):
    """bf16 as its bits, of numbers some of which were too large and became infinities."""


def bf16(values: Array) -> Array:
    """The numbers as bf16. numpy has no such type. Numbers of float32 are rounded to nearest even."""
    given = values
    with narrowing():
        values = np.asarray(given, "<f4")
        large = values >= _TOO_LARGE
        is_overflowed = large.any() and np.any(given[large] < np.inf)
    bits = values.view("<u4")
    # A NaN whose payload is in the lower half would become an infinity.
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    made: Array = np.where(np.isnan(values), 0x7FC0, rounded).astype("<u2")
    return made.view(_Overflowed) if is_overflowed else made


def widened(values: Array) -> Array:
    """Converts bf16 to float32."""
    return (values.astype("<u4") << 16).view("<f4")


class Bf16Array(np.ndarray[Any, np.dtype[Any]]):
    """bf16 rows as their bits. A number that is written into them is converted to bf16, as with any array; uint16 is
    taken as bits. numpy alone would silently truncate 1.5 to the bits 1, which is another number."""

    def __setitem__(self, where: Any, logits: Any) -> None:
        super().__setitem__(where, in_dtype(as_array(logits, "bf16"), "bf16") if self.dtype == _BITS else logits)

    def fill(self, value: Any) -> None:
        """As numpy's `fill`."""
        self[...] = value


def writable(array: Memory) -> Memory:
    """Rows that logits may be written into."""
    return array.view(Bf16Array) if isinstance(array, np.ndarray) and array.dtype == _BITS else array


class _Held:
    """Memory that keeps its owner alive. It is not an array, because an array of an array refers to the innermost
    one."""

    def __init__(self, array: Array, by: object) -> None:
        self.array, self.by, self.__array_interface__ = array, by, array.__array_interface__


def held(array: Memory, by: object) -> Memory:
    """The same memory, which keeps `by` alive as long as an array refers to it."""
    if not isinstance(array, np.ndarray):
        return array.held(by)
    return np.asarray(_Held(array, by)).view(type(array))


def format_named(dtype: Dtype) -> str:
    """This client's name of a number format, which may be given as another library has it."""
    # numpy's types have a name, and so have classes. A type of torch only shows its name, after that of the module.
    given = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype)
    name = str(given).rpartition(".")[2]
    name = _CALLED.get(name, name)
    if name not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, must be one of {', '.join(DTYPES)}, or the name in numpy or torch: {', '.join(_CALLED)}")
    return name


def dtype_of(array: Memory) -> str:
    """The name of the number format of rows."""
    return next(name for name, (_, own) in DTYPES.items() if own == array.dtype)


def filled(rows: Rows, array: Array | OnDevice, place: Place) -> Rows:
    """Fills rows that were taken from `place` with these values. If that fails, the rows are given back."""
    try:
        with narrowing(rows, array):
            rows.raw[:] = array
        rows.is_written = True
    except BaseException:
        place.discard(rows)
        raise
    return rows
