"""The wire's messages, made from the descriptor of the schema.

No generated code: that must never be newer than the protobuf that runs it, and engines pin old ones.
"""

from importlib import resources
from types import SimpleNamespace

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _load() -> SimpleNamespace:
    data = resources.files(__package__).joinpath("sampler.binpb").read_bytes()
    files = descriptor_pb2.FileDescriptorSet.FromString(data).file
    # A pool of its own: a program that also has generated stubs may have the schema in the default one.
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    names = SimpleNamespace()
    for file in files:
        for message in file.message_type:
            found = pool.FindMessageTypeByName(f"{file.package}.{message.name}")
            setattr(names, message.name, message_factory.GetMessageClass(found))
        for enum in file.enum_type:
            for value in enum.value:
                setattr(names, value.name, value.number)
    return names


pb = _load()
