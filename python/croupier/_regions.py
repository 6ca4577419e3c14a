"""Shared memory: the worker's side of a region of the server."""

from __future__ import annotations

import array
import io
import mmap
import socket
import struct
import time
import weakref
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from .errors import CroupierError
from .schema import pb

if TYPE_CHECKING:
    from ._forms import Array, Memory

_MAGIC = b"croupier"
_PAGE = 4096
_TIMEOUT = 10.0
_MOST_DESCRIPTORS = 4
#: Seconds between attempts to lease.
_AGAIN = (0.05, 0.2, 0.5)


def lease(offer: pb.RegionOffer, size: int, address: str) -> Region:
    """Leases a region of one's own. It ends when it is closed or the stream ends."""
    # The first page is the client's own, see `is_lost`.
    region = _in_tries(offer, pb.RegionRequest(lease=pb.LeaseRegion(bytes=_PAGE + size)), address)
    region.memory[: len(_MAGIC)] = _MAGIC
    return region


def _in_tries(offer: pb.RegionOffer, request: pb.RegionRequest, address: str) -> Region:
    """Tries several times. If many clients connect at once, the server may cut off a side connection for a moment. A
    token stays valid until it is shown."""
    for pause in _AGAIN:
        try:
            return Region(offer, request, address)
        except OSError:
            time.sleep(pause)
    return Region(offer, request, address)


def attach(offer: pb.RegionOffer, number: int, generation: int, address: str) -> Region:
    """Maps a region that rank 0 has leased."""
    return Region(offer, pb.RegionRequest(attach=pb.AttachRegion(region_id=number, generation=generation)), address)


class Region:
    """A region that is mapped."""

    on_device = False
    _kind: tuple[np.dtype[Any], int, int] | None = None
    _whole: Array | None = None

    def __init__(self, offer: pb.RegionOffer, request: pb.RegionRequest, address: str) -> None:
        self._socket = _connect(offer.socket_path, address)
        try:
            self._ask(pb.RegionRequest(hello=pb.RegionHello(token=offer.token)))
            reply, files = self._ask(request)
            if len(files) != 1:
                raise CroupierError(f"the server sent {len(files)} descriptors with a region, must be one")
            with files[0] as file:
                self._map(file.fileno(), reply.leased)
        except BaseException:
            self._socket.close()
            raise
        self.id, self.generation = reply.leased.region_id, reply.leased.generation
        # This also covers streams that were not ended. Otherwise Python would warn about the socket.
        weakref.finalize(self, self._socket.close)

    def _map(self, descriptor: int, leased: pb.RegionLease) -> None:
        self.memory = mmap.mmap(descriptor, leased.bytes)
        self.first = _PAGE

    def is_lost(self) -> bool:
        """Whether the server freed the pages, so that everything written to them is gone. The server frees the first
        page first."""
        return self.memory[: len(_MAGIC)] != _MAGIC

    def synchronize(self) -> None:
        """Waits until written data is visible. In host memory it is visible at once."""

    def view(self, dtype: np.dtype[Any], count: int, stride: int, columns: int, offset: int) -> Memory:
        """Rows at an offset."""
        kind = (dtype, stride, columns)
        whole = self._whole
        if kind != self._kind or whole is None:
            # One array of all rows of this kind, from the second page on, because a slot begins at a page.
            whole = np.frombuffer(self.memory, dtype, offset=self.first)
            self._kind, self._whole = kind, whole
        at = (offset - self.first) // dtype.itemsize
        return whole[at : at + count * stride].reshape(count, stride)[:, :columns]

    def close(self) -> None:
        """Ends the lease. The mapping ends with its last array."""
        self._socket.close()
        self._kind = self._whole = None

    def _ask(self, request: pb.RegionRequest) -> tuple[pb.RegionReply, list[io.FileIO]]:
        message = request.SerializeToString()
        self._socket.sendall(struct.pack("<I", len(message)) + message)
        data, files = self._with_files(4)
        data += self._exactly(4 - len(data))
        reply = pb.RegionReply.FromString(self._exactly(struct.unpack("<I", data)[0]))
        if reply.WhichOneof("reply") == "error":
            error = reply.error
            # In the form that a call's status has.
            code = next((code.name for code in grpc.StatusCode if code.value[0] == error.code), None)
            said = f"no region: {error.reason}: {error.field} {error.message}".replace(":  ", ": ")
            raise CroupierError(said, code=code, reason=error.reason, field=error.field or None)
        return reply, files

    def _with_files(self, count: int) -> tuple[bytes, list[io.FileIO]]:
        """Receives this many bytes, and the files that come with them. Programs started meanwhile do not inherit the
        files: `socket.recv_fds` would drop the flag for that. They are files and not descriptors, because files are
        closed however this is left: on an error, or by what a signal handler raises."""
        came: list[Any] = []
        files: list[io.FileIO] = []
        space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
        try:
            # The message is received and kept in one call, and the descriptors become files in one call, so that no
            # signal handler runs in between.
            came.extend(map(self._socket.recvmsg, (count,), (space,), (socket.MSG_CMSG_CLOEXEC,)))
            files.extend(map(io.FileIO, _descriptors(came[0][1])))
        except BaseException:
            if came and not files:
                files.extend(map(io.FileIO, _descriptors(came[0][1])))
            raise
        return came[0][0], files

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise CroupierError("the side socket was closed")
            data += more
        return data


def _descriptors(beside: list[tuple[int, int, bytes]]) -> array.array[int]:
    """The descriptors that came with a message."""
    found = array.array("i")
    for level, kind, payload in beside:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
    return found


def _connect(path: str, address: str) -> socket.socket:
    """Connects to the side socket: at the path that the server names, or beside the socket of gRPC if the mounts
    differ."""
    paths = [path]
    if address.startswith("unix:"):
        # gRPC's own naming also allows unix:///absolute.
        paths.append(address.removeprefix("unix:").removeprefix("//") + ".region")
    failed: OSError | None = None
    for candidate in paths:
        side = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        side.settimeout(_TIMEOUT)
        try:
            side.connect(candidate)
            return side
        except OSError as error:
            side.close()
            failed = error
    raise CroupierError(f"the side socket {paths[0]} cannot be reached: {failed}")
