"""Generates the client's files from the schema: croupier/sampler.binpb is its descriptor, croupier/params.py has its parameters as
dataclasses with the schema's own documentation, and croupier/_messages.pyi has the messages' types for type checkers.

    python python/generate.py [FOLDER]

Needs grpcio-tools. If FOLDER is given, the files are written there, and nothing is changed here.
"""

from __future__ import annotations

import pathlib
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

PYTHON = pathlib.Path(__file__).resolve().parent
PROTO = PYTHON.parent / "proto"
FILE = "croupier/v1/sampler.proto"
ROOT = "SamplingParams"
WIDTH = 120
#: A space at which lines are not broken.
UNBROKEN = "\N{NO-BREAK SPACE}"

HEAD = '''"""Parameters, as the schema documents them. Made by python/generate.py; do not change it here.

A field that is None is absent: the stream's default holds, then the server's. An empty list is absent on the wire too.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex, TypedDict

from ._params import Params

if TYPE_CHECKING:
    from .schema import pb

__all__ = [{all}]
'''

FIELDS = '''class SamplingFields(TypedDict, total=False):
    """Fields of `SamplingParams` by name, as `Stream.open` takes them."""
'''

# Messages are created at run time, so there is no module of this name. `schema` imports it as `pb` for type checkers only.
STUB = '''# What type checkers see of the messages. Made by python/generate.py; do not change it here.

from abc import ABCMeta as _ABCMeta
from collections.abc import Iterable as _Iterable, Mapping as _Mapping, MutableSequence as _MutableSequence
from typing import Any as _Any, TypeVar as _TypeVar

from google.protobuf.message import Message as _Protobuf
from typing_extensions import Self as _Self

_T = _TypeVar("_T")
_Fields = _Mapping[str, _Any]
# A message has a field `bytes`.
_Bytes = bytes

class _Message(_Protobuf):  # type: ignore[misc, unused-ignore]  # Without protobuf's own stubs it is Any.
    DESCRIPTOR: _Any
    @classmethod
    def FromString(cls, data: bytes) -> _Self: ...
    def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...
    def ByteSize(self) -> int: ...
    def CopyFrom(self, other: _Self) -> None: ...
    def MergeFrom(self, other: _Self) -> None: ...
    def ClearField(self, field_name: str) -> None: ...
    def HasField(self, field_name: str) -> bool: ...
    def ListFields(self) -> list[tuple[_Any, _Any]]: ...
    def SetInParent(self) -> None: ...
    def WhichOneof(self, oneof_group: str) -> str | None: ...

class _Enum:
    """An enum's names and numbers."""
    DESCRIPTOR: _Any
    def Name(self, number: int) -> str: ...
    def Value(self, name: str) -> int: ...
    def keys(self) -> list[str]: ...
    def values(self) -> list[int]: ...
    def items(self) -> list[tuple[str, int]]: ...

class _Scalars(_MutableSequence[_T], metaclass=_ABCMeta):
    def MergeFrom(self, other: _Self) -> None: ...

class _Messages(_MutableSequence[_T], metaclass=_ABCMeta):
    def add(self, **fields: _Any) -> _T: ...
    def MergeFrom(self, other: _Self) -> None: ...
'''

Field = descriptor_pb2.FieldDescriptorProto
TYPES = {
    Field.TYPE_FLOAT: ("float", "0.0"), Field.TYPE_DOUBLE: ("float", "0.0"), Field.TYPE_BOOL: ("bool", "False"),
    Field.TYPE_STRING: ("str", '""'), Field.TYPE_BYTES: ("bytes", 'b""'),
}


def compiled(options: list[str]) -> bytes:
    """The schema's descriptor."""
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "made"
        code = protoc.main(["protoc", f"-I{PROTO}", f"--descriptor_set_out={made}", *options, FILE])
        if code:
            sys.exit("the schema does not compile")
        return made.read_bytes()


class Schema:
    """Messages, enums and their comments."""

    def __init__(self, file: Any) -> None:
        self.messages = {message.name: (at, message) for at, message in enumerate(file.message_type)}
        self.enums = {enum.name: (at, enum) for at, enum in enumerate(file.enum_type)}
        self.said = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}

    def reached(self) -> tuple[list[str], list[str]]:
        """Messages and enums that parameters consist of, each after those that it depends on."""
        messages: list[str] = []
        enums: list[str] = []

        def visit(name: str) -> None:
            for field in self.messages[name][1].field:
                kind = field.type_name.rpartition(".")[2]
                if field.type == Field.TYPE_ENUM and kind not in enums:
                    enums.append(kind)
                if field.type == Field.TYPE_MESSAGE and kind not in messages:
                    visit(kind)
            messages.append(name)

        visit(ROOT)
        return messages, enums


def docstring(said: str, indent: str) -> str:
    """A comment as a docstring, in paragraphs."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n *\n", said.strip())]
    if any(mark in said for mark in ('\\', '"' * 3)):
        sys.exit(f"a comment cannot be a docstring: {said}")
    wide = WIDTH - len(indent)
    text = "\n\n".join(textwrap.fill(part, wide, initial_indent="" if at else "   ")[0 if at else 3:]
                       for at, part in enumerate(paragraphs))
    last = "\n" if len(text.splitlines()[-1]) + 3 > wide or text.endswith('"') else ""
    return textwrap.indent(f'"""{text}{last}"""', indent, lambda line: bool(line.strip()))


def enum_class(schema: Schema, name: str) -> Iterator[str]:
    at, enum = schema.enums[name]
    prefix = "".join("_" + c if c.isupper() and i else c for i, c in enumerate(name)).upper() + "_"
    yield f"class {name}(enum.IntEnum):"
    yield docstring(schema.said[5, at], "    ")
    yield ""
    for number, value in enumerate(enum.value):
        yield f"    {value.name.removeprefix(prefix)} = {value.number}"
        if said := schema.said.get((5, at, 2, number)):
            yield docstring(said, "    ")


def field_type(field: Any) -> tuple[str, str]:
    """A field's type and its default."""
    if field.type in (Field.TYPE_MESSAGE, Field.TYPE_ENUM):
        # Enums are also accepted by number or name, and messages as wire messages or dicts.
        name = field.type_name.rpartition(".")[2]
        other = "int | str" if field.type == Field.TYPE_ENUM else f"pb.{name} | Mapping[str, Any]"
        if name == "TokenSequence":
            other += " | Sequence[int | SupportsIndex]"
        base, zero = f"{name} | {other}", "None"
    else:
        base, zero = TYPES.get(field.type, ("int", "0"))
        # To a type checker, numpy's numbers are not Python numbers.
        base += {"float": " | SupportsFloat", "int": " | SupportsIndex"}.get(base, "")
    if field.label == Field.LABEL_REPEATED:
        by_token = " | Mapping[int, float | SupportsFloat]" if field.name == "logit_bias" else ""
        # None means not given, because an empty list may be intended.
        return f"Sequence[{base}]{by_token} | None", "None"
    if field.name == "json_schema":
        # As a Python object: it is sent as JSON.
        base = "str | Mapping[str, Any] | bool"
    if field.name == "choices":
        # Sent as lines.
        base = "str | Sequence[str]"
    # An absent field of a oneof, or an absent optional field, is not "" or 0.
    if field.proto3_optional or field.HasField("oneof_index") or zero == "None":
        return f"{base} | None", "None"
    return base, zero


def message_class(schema: Schema, name: str) -> Iterator[str]:
    at, message = schema.messages[name]
    yield "@dataclass(frozen=True, kw_only=True)"
    yield f'class {name}(Params["pb.{name}"]):'
    yield docstring(schema.said[4, at], "    ")
    yield ""
    before = ""
    for number, field in enumerate(message.field):
        kind, default = field_type(field)
        yield f"    {field.name}: {kind} = {default}"
        # A field without a comment is explained with the field before it.
        said = schema.said.get((4, at, 2, number)) or f"See `{before}`."
        before = before if said.startswith("See `") else field.name
        yield docstring(said, "    ")


def fields_class(schema: Schema) -> Iterator[str]:
    yield FIELDS
    for field in schema.messages[ROOT][1].field:
        yield f"    {field.name}: {field_type(field)[0]}"


def stub_field(field: Any) -> tuple[str, str]:
    """The stub for reading a field of a message, and for the argument of the constructor."""
    name = field.type_name.rpartition(".")[2]
    is_message = field.type == Field.TYPE_MESSAGE
    kind = name if is_message else "_Bytes" if field.type == Field.TYPE_BYTES else TYPES.get(field.type, ("int", ""))[0]
    taken = f"{kind} | _Fields" if is_message else f"{kind} | str" if field.type == Field.TYPE_ENUM else kind
    if field.label == Field.LABEL_REPEATED:
        kind, taken = f"{'_Messages' if is_message else '_Scalars'}[{kind}]", f"_Iterable[{taken}]"
    elif not is_message:
        return f"    {field.name}: {kind}", f"{field.name}: {taken} | None = ..."
    # Repeated and message fields cannot be assigned.
    return f"    @property\n    def {field.name}(self) -> {kind}: ...", f"{field.name}: {taken} | None = ..."


def stub_class(name: str, message: Any) -> str:
    """The stub of a message."""
    fields = [stub_field(field) for field in message.field]
    given = [taken.replace(" ", UNBROKEN) for _, taken in fields]
    given = textwrap.fill(", ".join(["self", *(["*"] if fields else []), *given]) + f"){UNBROKEN}->{UNBROKEN}None:{UNBROKEN}...", WIDTH,
                          initial_indent="    def __init__(", subsequent_indent=" " * 17).replace(UNBROKEN, " ")
    return "\n".join([f"class {name}(_Message):", *(read for read, _ in fields), given])


def stub(data: bytes) -> str:
    """The text of _messages.pyi."""
    schema = Schema(descriptor_pb2.FileDescriptorSet.FromString(data).file[0])
    values = "\n".join(f"{value.name}: int" for _, enum in schema.enums.values() for value in enum.value)
    enums = "\n".join(f"{name}: _Enum" for name in schema.enums)
    return "\n\n".join([STUB.rstrip(), *(stub_class(name, message) for name, (_, message) in schema.messages.items()), enums, values]) + "\n"


def module(data: bytes) -> str:
    """The text of params.py."""
    schema = Schema(descriptor_pb2.FileDescriptorSet.FromString(data).file[0])
    messages, enums = schema.reached()
    classes = ["\n".join(enum_class(schema, name)) for name in enums]
    classes += ["\n".join(message_class(schema, name)) for name in messages]
    classes.append("\n".join(fields_class(schema)))
    names = textwrap.fill(", ".join(f'"{name}"' for name in sorted([*enums, *messages, "SamplingFields"])), WIDTH, initial_indent=" " * 11,
                          subsequent_indent=" " * 11)[11:]
    return "\n\n\n".join([HEAD.replace("{all}", names).rstrip(), *classes]) + "\n"


def main(folder: pathlib.Path) -> None:
    folder.joinpath("sampler.binpb").write_bytes(compiled([]))
    folder.joinpath("params.py").write_text(module(compiled(["--include_source_info"])))
    folder.joinpath("_messages.pyi").write_text(stub(compiled([])))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PYTHON / "croupier")
