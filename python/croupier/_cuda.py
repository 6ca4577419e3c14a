"""The CUDA driver, through ctypes: the calls needed to map memory of another process and to copy into it."""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import Any

from .errors import CroupierError

_LIBRARY = "libcuda.so.1"
_TO = c_void_p
# As in cuda.h: CUdevice is an int, CUdeviceptr and handles have 64 bits, contexts are pointers.
_FUNCTIONS = {
    "cuInit": [c_uint],
    "cuGetErrorName": [c_int, ctypes.POINTER(c_char_p)],
    "cuDeviceGetCount": [_TO],
    "cuDeviceGet": [_TO, c_int],
    "cuDeviceGetUuid": [_TO, c_int],
    "cuDeviceGetUuid_v2": [_TO, c_int],
    "cuDevicePrimaryCtxRetain": [_TO, c_int],
    "cuDevicePrimaryCtxRelease_v2": [c_int],
    "cuCtxGetCurrent": [_TO],
    "cuCtxSetCurrent": [c_void_p],
    "cuCtxSynchronize": [],
    "cuPointerGetAttribute": [_TO, c_int, c_uint64],
    "cuMemImportFromShareableHandle": [_TO, c_void_p, c_int],
    "cuMemAddressReserve": [_TO, c_size_t, c_size_t, c_uint64, c_ulonglong],
    "cuMemMap": [c_uint64, c_size_t, c_size_t, c_uint64, c_ulonglong],
    "cuMemSetAccess": [c_uint64, c_size_t, _TO, c_size_t],
    "cuMemUnmap": [c_uint64, c_size_t],
    "cuMemAddressFree": [c_uint64, c_size_t],
    "cuMemRelease": [c_uint64],
    "cuMemcpyHtoD_v2": [c_uint64, c_void_p, c_size_t],
    "cuMemcpyDtoD_v2": [c_uint64, c_uint64, c_size_t],
}
_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("type", c_int), ("id", c_int), ("flags", c_int)]


class Driver:
    """The driver, loaded and initialised."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
            for name, arguments in _FUNCTIONS.items():
                function = getattr(self._library, name)
                function.argtypes, function.restype = arguments, c_int
        except (OSError, AttributeError) as error:
            raise CroupierError(f"the CUDA driver cannot be used: {error}") from error
        self.call("cuInit", 0)

    def call(self, function: str, *arguments: Any) -> None:
        """Makes a call that must succeed."""
        code = self.ask(function, *arguments)
        if code:
            name = c_char_p()
            self.ask("cuGetErrorName", code, byref(name))
            raise CroupierError(f"{function}: {name.value.decode() if name.value else f'CUresult {code}'}")

    def ask(self, function: str, *arguments: Any) -> int:
        """Makes a call and returns its CUresult."""
        code: int = getattr(self._library, function)(*arguments)
        return code

    def find(self, uuid: str) -> int:
        """The device with this UUID: "GPU-" and 36 characters, or "MIG-" and 36 characters for a slice of a card."""
        count, device, raw, card = c_int(), c_int(), (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetCount", byref(count))
        seen = []
        for ordinal in range(count.value):
            self.call("cuDeviceGet", byref(device), ordinal)
            self.call("cuDeviceGetUuid_v2", byref(raw), device)
            # The older function does not know slices and returns the card's UUID.
            self.call("cuDeviceGetUuid", byref(card), device)
            seen.append(_spelled(bytes(raw), bytes(raw) != bytes(card)))
            if _digits(seen[-1]) == _digits(uuid):
                return device.value
        raise CroupierError(f"the region is on {uuid}, which this process cannot see; visible GPUs: {', '.join(seen) or 'none'}")

    @contextmanager
    def current(self, context: Any) -> Iterator[None]:
        """Makes this context current. Afterwards the caller's context is current again."""
        # Setting is used instead of push and pop. It has the same effect: if no context is current, setting one pushes
        # it, and setting none pops it.
        before = c_void_p()
        self.call("cuCtxGetCurrent", byref(before))
        self.call("cuCtxSetCurrent", context)
        try:
            yield
        finally:
            self.ask("cuCtxSetCurrent", before)


@functools.cache
def driver() -> Driver:
    """The driver. It is loaded on first use; after a failure the next use tries again."""
    return Driver()


class Mapping:
    """Memory of another process, mapped as long as this object is alive."""

    def __init__(self, descriptor: int, size: int, uuid: str) -> None:
        self._driver, self.size = driver(), size
        self.device = self._driver.find(uuid)
        call, ask = self._driver.call, self._driver.ask
        self._context = context = c_void_p()
        with ExitStack() as undo:
            # The context that PyTorch and all users of the CUDA runtime share.
            call("cuDevicePrimaryCtxRetain", byref(context), self.device)
            undo.callback(ask, "cuDevicePrimaryCtxRelease_v2", self.device)
            with self._driver.current(context):
                self.address = self._map(descriptor, undo)
            # Not at the end of the process, which frees everything anyway.
            weakref.finalize(self, _unmap, self._driver, context, undo.pop_all(), os.getpid()).atexit = False

    def _map(self, descriptor: int, undo: ExitStack) -> int:
        call, ask, size = self._driver.call, self._driver.ask, self.size
        handle, address = c_uint64(), c_uint64()
        call("cuMemImportFromShareableHandle", byref(handle), descriptor, _DESCRIPTOR)
        try:
            call("cuMemAddressReserve", byref(address), size, 0, 0, 0)
            undo.callback(ask, "cuMemAddressFree", address, size)
            call("cuMemMap", address, size, 0, handle, 0)
            undo.callback(ask, "cuMemUnmap", address, size)
        finally:
            # The mapping keeps the memory alive.
            ask("cuMemRelease", handle)
        call("cuMemSetAccess", address, size, byref(_Access(_ON_DEVICE, self.device, _READ_WRITE)), 1)
        return address.value

    def synchronize(self) -> None:
        """Waits for everything that this process has requested from the device, in its primary context."""
        with self._driver.current(self._context):
            self._driver.call("cuCtxSynchronize")

    def upload(self, to: int, at: int, size: int) -> None:
        """Copies bytes from the host."""
        with self._driver.current(self._context):
            self._driver.call("cuMemcpyHtoD_v2", to, at, size)

    def copy(self, to: int, step_to: int, at: int, step_at: int, size: int, count: int) -> None:
        """Copies `count` rows of `size` bytes within the device. The strides say how far rows are apart. Waits before
        and after."""
        call, owner = self._driver.call, c_int()
        with self._driver.current(self._context):
            call("cuPointerGetAttribute", byref(owner), _DEVICE_ORDINAL, at)
            if owner.value != self.device:
                raise ValueError(f"logits are on GPU {owner.value}, must be on GPU {self.device}, where the server's region is")
            # Streams that do not synchronise with the copying one may still be writing these rows.
            call("cuCtxSynchronize")
            if step_to == step_at:
                count, size = 1, (count - 1) * step_to + size
            for row in range(count):
                call("cuMemcpyDtoD_v2", to + row * step_to, at + row * step_at, size)
            call("cuCtxSynchronize")


def _unmap(loaded: Driver, context: Any, undo: ExitStack, process: int) -> None:
    """Unmaps the memory. Errors cannot be reported to anybody here. A child of `fork` has no driver."""
    if os.getpid() != process:
        return
    try:
        with loaded.current(context):
            # A kernel of the program may still be writing there.
            loaded.ask("cuCtxSynchronize")
            undo.close()
    except CroupierError:
        pass


def _spelled(raw: bytes, is_slice: bool) -> str:
    digits = raw.hex()
    return ("MIG-" if is_slice else "GPU-") + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _digits(uuid: str) -> str:
    return uuid.partition("-")[2].replace("-", "").lower()
