"""Shared memory: a region of the server, as its worker has it."""

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
#: Seconds between tries to lease.
_AGAIN = (0.05, 0.2, 0.5)


def lease(offer: pb.RegionOffer, size: int, address: str) -> Region:
    """A region of one's own. It ends when it is closed, or the stream ends."""
    # The first page is the client's own, see `is_lost`.
    region = _in_tries(offer, pb.RegionRequest(lease=pb.LeaseRegion(bytes=_PAGE + size)), address)
    region.memory[: len(_MAGIC)] = _MAGIC
    return region


def _in_tries(offer: pb.RegionOffer, request: pb.RegionRequest, address: str) -> Region:
    """Where many connect at once the server may cut off a side connection for a moment; a token is good until it is shown."""
    for pause in _AGAIN:
        try:
            return Region(offer, request, address)
        except OSError:
            time.sleep(pause)
    return Region(offer, request, address)


def attach(offer: pb.RegionOffer, number: int, generation: int, address: str) -> Region:
    """A region that rank 0 has leased."""
    return Region(offer, pb.RegionRequest(attach=pb.AttachRegion(region_id=number, generation=generation)), address)


class Region:
    """A region, mapped."""

    on_device = False
    _kind: tuple[np.dtype[Any], int, int] | None = None
    _whole: Array | None = None

    def __init__(self, offer: pb.RegionOffer, request: pb.RegionRequest, address: str) -> None:
        self._socket = _connect(offer.socket_path, address)
        try:
            self._ask(pb.RegionRequest(hello=pb.RegionHello(token=offer.token)))
            reply, files = self._ask(request)
            if len(files) != 1:
                raise CroupierError(f"{len(files)} descriptors came with a region")
            with files[0] as file:
                self._map(file.fileno(), reply.leased)
        except BaseException:
            self._socket.close()
            raise
        self.id, self.generation = reply.leased.region_id, reply.leased.generation
        # Of a stream that is not ended too, or Python would warn of the socket.
        weakref.finalize(self, self._socket.close)

    def _map(self, descriptor: int, leased: pb.RegionLease) -> None:
        self.memory = mmap.mmap(descriptor, leased.bytes)
        self.first = _PAGE

    def is_lost(self) -> bool:
        """Whether the server freed the pages: then what was written is gone. It frees the first page first."""
        return self.memory[: len(_MAGIC)] != _MAGIC

    def synchronize(self) -> None:
        """Waits until what was written is there, which here is at once."""

    def view(self, dtype: np.dtype[Any], count: int, stride: int, columns: int, offset: int) -> Memory:
        """Rows at an offset."""
        kind = (dtype, stride, columns)
        whole = self._whole
        if kind != self._kind or whole is None:
            # All of it is rows of this kind, from the second page on: a slot begins at a page.
            whole = np.frombuffer(self.memory, dtype, offset=self.first)
            self._kind, self._whole = kind, whole
        at = (offset - self.first) // dtype.itemsize
        return whole[at : at + count * stride].reshape(count, stride)[:, :columns]

    def close(self) -> None:
        """Ends the lease. The mapping goes with its last array."""
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
            # As a call's status has them.
            code = next((code.name for code in grpc.StatusCode if code.value[0] == error.code), None)
            said = f"no region: {error.reason}: {error.field} {error.message}"
            raise CroupierError(said, code=code, reason=error.reason, field=error.field or None)
        return reply, files

    def _with_files(self, count: int) -> tuple[bytes, list[io.FileIO]]:
        """So many bytes, and files that come with them, which programs that are started meanwhile do not get: `socket.recv_fds` drops its
        flags. Files and not descriptors, since they are closed however this is left: on an error, or by what a signal's handler raises."""
        came: list[Any] = []
        files: list[io.FileIO] = []
        space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
        try:
            # Received and kept in one call, as they are made files in one: no handler runs between.
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
    """Those that a message brought."""
    found = array.array("i")
    for level, kind, payload in beside:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
    return found


def _connect(path: str, address: str) -> socket.socket:
    """The side socket: where the server says, or with other mounts beside the socket of gRPC."""
    paths = [path]
    if address.startswith("unix:"):
        # gRPC's own naming allows unix:///absolute too.
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
