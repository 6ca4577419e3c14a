"""Device memory: the worker's side of a region on the GPU that the server samples on."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from ._arrays import as_array, dtype_of, in_dtype, is_on_device
from ._cuda import Mapping, driver
from ._regions import Region
from .errors import CroupierError
from .schema import pb

if TYPE_CHECKING:
    from ._forms import Array, Numbers, OnDevice

_BF16 = np.dtype("<u2")
#: Names of bf16 in other programs. numpy does not have it.
_BF16_NAMES = ("<u2", "<i2", "<V2", "|V2")


def lease(offer: pb.RegionOffer, size: int, address: str, uuid: str) -> DeviceRegion:
    """Leases a region of one's own on the server's GPU. Unless `uuid` is empty, the GPU must have that UUID."""
    # If there is no driver here, the server need not allocate memory.
    driver()
    request = pb.RegionRequest(lease=pb.LeaseRegion(bytes=size, device=pb.RegionDevice(uuid=uuid)))
    return DeviceRegion(offer, request, address)


class DeviceRegion(Region):
    """A region on a GPU, mapped."""

    on_device = True

    def _map(self, descriptor: int, leased: pb.RegionLease) -> None:
        self._mapping: Mapping | None = Mapping(descriptor, leased.bytes, leased.device_uuid)
        self.first = 0

    def is_lost(self) -> bool:
        """Rows are not read back from a device region that was left."""
        return True

    def synchronize(self) -> None:
        """Waits until everything that was requested from the GPU is done."""
        if (mapping := self._mapping) is not None:
            mapping.synchronize()

    def view(self, dtype: np.dtype[Any], count: int, stride: int, columns: int, offset: int) -> DeviceArray:
        """Rows at an offset."""
        mapping = self._mapping
        if mapping is None:
            raise CroupierError("the stream was ended, so its rows are gone")
        return DeviceArray(mapping, mapping.address + offset, dtype, (count, columns), stride)

    def close(self) -> None:
        """Ends the lease. The mapping ends with its last array."""
        super().close()
        self._mapping = None


class DeviceArray:
    """Rows on a GPU. `torch.as_tensor(array, device=f"cuda:{array.device}")` is the same memory, and so is whatever
    another library makes of `__cuda_array_interface__`. `array[:] = logits` copies logits there, from the GPU or the
    host."""

    def __init__(self, mapping: Mapping, address: int, dtype: np.dtype[Any], shape: tuple[int, int], stride: int) -> None:
        self._mapping, self._address, self._row = mapping, address, stride * dtype.itemsize
        self._by: Any = None
        self.dtype, self.shape, self.device = dtype, shape, mapping.device
        """The GPU's ordinal in this process is `device`."""

    def held(self, by: object) -> DeviceArray:
        """The same memory, which keeps `by` alive."""
        array = copy.copy(self)
        array._by = by
        return array

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": self.shape, "strides": (self._row, self.dtype.itemsize),
                "typestr": self.dtype.str, "data": (self._address, False), "stream": None}

    def __setitem__(self, where: slice, logits: Numbers | OnDevice) -> None:
        if where != slice(None):
            raise IndexError("rows on a GPU can only be written as a whole; use array[:] = logits, or a GPU library")
        if is_on_device(logits):
            self._copy(logits)
        else:
            name = dtype_of(self)
            numbers = in_dtype(as_array(logits, name), name)
            self._upload(np.broadcast_to(np.asarray(numbers, self.dtype), self.shape))

    def _copy(self, logits: OnDevice) -> None:
        facts = logits.__cuda_array_interface__
        shape, itemsize = tuple(facts["shape"]), self.dtype.itemsize
        shape = (1, *shape) if len(shape) == 1 else shape
        if shape != self.shape:
            raise ValueError(f"logits have the shape {shape}, must be {self.shape}")
        strides = strides_of(facts, self.dtype)
        if shape[0]:
            # A single row has no meaningful row stride.
            self._mapping.copy(self._address, self._row, facts["data"][0], strides[0] if shape[0] > 1 else self._row,
                               shape[1] * itemsize, shape[0])

    def _upload(self, logits: Array) -> None:
        count, columns = self.shape
        whole = self._row // self.dtype.itemsize
        rows = logits
        if whole != columns:
            # One copy is faster than one for each row.
            rows = np.zeros((count, whole), self.dtype)
            rows[:, :columns] = logits
        rows = np.ascontiguousarray(rows)
        if count:
            self._mapping.upload(self._address, rows.ctypes.data, rows.nbytes)


def strides_of(facts: dict[str, Any], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """The strides of a GPU array whose rows can be copied. Other arrays are refused."""
    is_bf16 = dtype == _BF16 and facts["typestr"] in _BF16_NAMES
    if not is_bf16 and facts["typestr"] != dtype.str:
        raise ValueError(f"logits on the GPU are {facts['typestr']}, must be {dtype.str}, the stream's dtype")
    strides: tuple[int, ...] = facts.get("strides") or (facts["shape"][-1] * dtype.itemsize, dtype.itemsize)
    if strides[-1] != dtype.itemsize:
        raise ValueError("columns of logits on the GPU are not contiguous; give logits.contiguous()")
    return strides


def row_count(logits: OnDevice, columns: int, dtype: np.dtype[Any]) -> int:
    """The number of rows with this many columns."""
    facts = logits.__cuda_array_interface__
    shape: tuple[int, ...] = tuple(facts["shape"])
    if len(shape) not in (1, 2) or shape[-1] != columns:
        raise ValueError(f"logits have the shape {shape}, must be (rows, {columns})")
    strides_of(facts, dtype)
    return shape[0] if len(shape) == 2 else 1


def count_of(logits: Array | OnDevice) -> int:
    """The number of rows of an array on the host or on a GPU."""
    return shape_of(logits)[0]


def shape_of(logits: Array | OnDevice) -> tuple[int, int]:
    """The numbers of rows and of columns of an array on the host or on a GPU."""
    shape = logits.shape if isinstance(logits, np.ndarray) else tuple(logits.__cuda_array_interface__["shape"])
    return (shape[0] if len(shape) == 2 else 1), shape[-1]


def some(logits: Array | OnDevice, first: int, end: int) -> Array | OnDevice:
    """Some rows of an array, in the same memory."""
    return logits[first:end] if isinstance(logits, np.ndarray) else _Some(logits, first, end)


class _Some:
    """Some rows of a GPU array."""

    def __init__(self, logits: OnDevice, first: int, end: int) -> None:
        self._whole = logits
        facts = dict(logits.__cuda_array_interface__)
        count, columns = facts["shape"]
        size = np.dtype(facts["typestr"]).itemsize
        strides = facts.get("strides") or (columns * size, size)
        address, is_read_only = facts["data"]
        self.__cuda_array_interface__ = {**facts, "shape": (min(end, count) - first, columns), "strides": strides,
                                         "data": (address + first * strides[0], is_read_only)}
