"""Checks addresses. A wrong one is reported at once, because gRPC would keep looking for such a server."""

from __future__ import annotations

import os
import re

from ._checks import check_unicode

#: The end of addresses by name or number. Addresses for gRPC's resolvers, such as dns:///, have it too.
_PORT = re.compile(r"(?P<host>.*):(?P<port>[0-9]+)")
#: Schemes of other clients' addresses. gRPC would look for a host of that name until it gives up.
_SCHEMES = ("http://", "https://", "grpc://", "grpcs://", "tcp://")
#: An IPv6 address without brackets. Its last part would be taken for the port.
_BARE = re.compile(r"[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*")
_FORMS = "must be unix:PATH or HOST:PORT"
_MOST_PORTS = 65535
#: Longest path of a Unix socket in bytes. The kernel needs one more byte for its end.
_MOST_PATH = 107


def check_address(address: object) -> None:
    """Raises TypeError or ValueError with a suggestion if the address is wrong."""
    if not isinstance(address, str):
        raise TypeError(f"address is {address!r}, {_FORMS}")
    check_unicode("address", address)
    said = f"address is {address!r}, "
    if "\0" in address:
        # gRPC would take what comes before it for the whole address.
        raise ValueError(f"{said}{_FORMS} without NUL")
    if address.lower().startswith(_SCHEMES):
        raise ValueError(f"{said}{_FORMS} without a scheme; for TLS give tls_ca")
    kind, _, path = address.partition(":")
    if kind in ("unix", "unix-abstract") and kind != address:
        _check_socket(kind, path, said)
        return
    if address.startswith(("/", "./", "../", "~")) or address.endswith(".sock"):
        raise ValueError(f"{said}a path; for a Unix socket give 'unix:{os.path.expanduser(address)}'")
    _check_host(address, said)


def _check_socket(kind: str, path: str, said: str) -> None:
    if kind == "unix" and path.startswith("//"):
        if not path.startswith("///"):
            raise ValueError(f"{said}where the path begins with two slashes; give 'unix:{path[1:]}' or 'unix:{path[2:]}'")
        path = path[2:]
    if not path:
        raise ValueError(f"{said}which has no path; give for example unix:/run/croupier/croupier.sock")
    if (size := len(os.fsencode(path))) > _MOST_PATH:
        raise ValueError(f"address has a path of {size} bytes, a Unix socket's has at most {_MOST_PATH}: {path}; have the server listen on a "
                         "shorter one, or use a shorter relative path or symbolic link")


def _check_host(address: str, said: str) -> None:
    if address != address.strip():
        # For example from a file or a variable, with the end of the line.
        raise ValueError(f"{said}with white space around it; give {address.strip()!r}")
    bare = address.rstrip("/")
    found = _PORT.fullmatch(bare)
    if found is None:
        raise ValueError(said + _FORMS + _without_port(bare))
    host, port = found["host"], int(found["port"])
    if bare != address:
        raise ValueError(f"{said}{_FORMS} without a trailing slash: {bare}")
    if not 0 < port <= _MOST_PORTS:
        raise ValueError(f"{said}whose port is {port}, must be in 1 ..= {_MOST_PORTS}")
    if not host:
        raise ValueError(f"{said}{_FORMS}; the host is missing, give for example 127.0.0.1:{port}")
    if _BARE.fullmatch(host):
        raise ValueError(f"{said}{_FORMS}; an IPv6 address must be in brackets, such as [::1]:50051")


def _without_port(bare: str) -> str:
    """A suggestion for an address that does not end with a port."""
    host, _, port = bare.rpartition(":")
    if (inner := _PORT.match(bare)) and bare[inner.end()] == "/":
        return f" with nothing after the port, such as {inner[0]}"
    # Not if the port would be in the middle of dns:///HOST or of an IPv6 address.
    if host and port.isalnum() and ":" not in host:
        return f"; the port is {port!r}, must be a number, such as {host}:50051"
    return f"; the port is missing, give for example {bare.rstrip(':') or '127.0.0.1'}:50051"
