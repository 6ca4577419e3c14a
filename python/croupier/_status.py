"""Reads the machine-readable details of a call's status: two of `google.rpc`'s messages, without the package that has
them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from ._call import is_from_core
from .errors import CroupierError

if TYPE_CHECKING:
    from .errors import Cause

#: The domain of reasons that docs/errors.md lists. Something in between may have others.
_DOMAIN = "croupier"
_KEY = "grpc-status-details-bin"
#: As in google/rpc/status.proto and error_details.proto, without the parts that are not read.
_MESSAGES = {
    "Status": {"details": (3, "Any")},
    "Any": {"type_url": (1, "string"), "value": (2, "bytes")},
    "ErrorInfo": {"reason": (1, "string"), "domain": (2, "string")},
    "BadRequest": {"field_violations": (1, "FieldViolation")},
    "FieldViolation": {"field": (1, "string"), "description": (2, "string")},
}


def _made() -> dict[str, Any]:
    """Classes for these messages, in a pool of their own: a program may have generated classes for them in the default
    pool."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="croupier_status.proto", package="google.rpc", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, of) in fields.items():
            if of in _MESSAGES:
                message.field.add(name=field, number=number, label=kinds.LABEL_REPEATED, type=kinds.TYPE_MESSAGE, type_name=f".google.rpc.{of}")
            else:
                kind = kinds.TYPE_BYTES if of == "bytes" else kinds.TYPE_STRING
                message.field.add(name=field, number=number, label=kinds.LABEL_OPTIONAL, type=kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"google.rpc.{name}")) for name in _MESSAGES}


_KINDS = _made()


def said(error: BaseException) -> str:
    """The server's message for people."""
    if isinstance(error, CroupierError):
        return str(error)
    if isinstance(error, grpc.RpcError):
        if is_from_core(error):
            # It hides what the call ended with.
            return "the connection was lost"
        return f"{error.code().name}: {error.details()}"
    return "the server ended the stream"


def failed(why: str, error: BaseException | None) -> CroupierError:
    """An error of the client that carries the machine-readable details of the error behind it."""
    return CroupierError(why, **cause_of(error))


def cause_of(error: BaseException | None) -> Cause:
    """The code, reason and field of an error: a gRPC error, or an error of this client that has them."""
    if isinstance(error, CroupierError):
        return {"code": error.code, "reason": error.reason, "field": error.field}
    if not isinstance(error, grpc.RpcError) or is_from_core(error):
        return {}
    found: Cause = {"code": error.code().name}
    try:
        for detail in _KINDS["Status"].FromString(_bytes_of(error)).details:
            name = detail.type_url.rpartition("/")[2].removeprefix("google.rpc.")
            if name not in ("ErrorInfo", "BadRequest"):
                continue
            read = _KINDS[name].FromString(detail.value)
            if name == "ErrorInfo" and read.domain == _DOMAIN:
                found["reason"] = read.reason
            elif name == "BadRequest" and read.field_violations:
                found["field"] = read.field_violations[0].field
    except DecodeError:
        # It was not sent by a Croupier server, so the code is all there is.
        pass
    return found


def _bytes_of(error: grpc.RpcError) -> bytes:
    """The details as they came, from errors of gRPC for threads or for asyncio."""
    details: bytes = next((value for key, value in error.trailing_metadata() or () if key == _KEY), b"")
    return details
