"""The messages of the wire, created from the schema's descriptor.

There is no generated code, because generated code must not be newer than the protobuf that runs it, and engines pin old
versions.
"""

import copyreg
from importlib import resources
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

__all__ = ["pb"]


def _load() -> SimpleNamespace:
    data = resources.files(__package__).joinpath("sampler.binpb").read_bytes()
    files = descriptor_pb2.FileDescriptorSet.FromString(data).file
    # A pool of its own: a program that also has generated stubs may have the schema in the default pool.
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    names = SimpleNamespace()
    for file in files:
        for message in file.message_type:
            found = pool.FindMessageTypeByName(f"{file.package}.{message.name}")
            kind = message_factory.GetMessageClass(found)
            setattr(names, message.name, kind)
            # Pickle looks for classes by name, and these are in no module.
            copyreg.pickle(kind, _pickled)
        for enum in file.enum_type:
            for value in enum.value:
                setattr(names, value.name, value.number)
            # As in generated code, with Name and Value.
            setattr(names, enum.name, EnumTypeWrapper(pool.FindEnumTypeByName(f"{file.package}.{enum.name}")))
    return names


def _pickled(message: Any) -> tuple[Any, tuple[str, bytes]]:
    return _unpickled, (message.DESCRIPTOR.name, message.SerializeToString())


def _unpickled(name: str, data: bytes) -> Any:
    return getattr(pb, name).FromString(data)


if TYPE_CHECKING:
    # The types of the messages, for which there is only a stub.
    from . import _messages as pb
else:
    pb = _load()
