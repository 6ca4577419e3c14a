"""Makes what the client has from the schema: croupier/sampler.binpb, its descriptor, and croupier/params.py, its parameters as
dataclasses with the schema's own documentation.

    python python/generate.py [FOLDER]

Needs grpcio-tools. With a folder the two files are put there, and nothing is changed here.
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

HEAD = '''"""Parameters, as the schema documents them. Made by python/generate.py; do not change it here.

A field that is None is absent: the stream's default holds, then the server's. Lists that are empty are absent too.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._params import Params

__all__ = [{all}]
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
    """Messages, enums and what is said of them."""

    def __init__(self, file: Any) -> None:
        self.messages = {message.name: (at, message) for at, message in enumerate(file.message_type)}
        self.enums = {enum.name: (at, enum) for at, enum in enumerate(file.enum_type)}
        self.said = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}

    def reached(self) -> tuple[list[str], list[str]]:
        """Messages and enums that parameters are made of, each after those that it needs."""
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
    """A comment as a docstring, with its paragraphs."""
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
        # Enums by name and messages as dicts are taken too.
        other = "str" if field.type == Field.TYPE_ENUM else "Mapping[str, Any]"
        base, zero = f"{field.type_name.rpartition('.')[2]} | {other}", "None"
    else:
        base, zero = TYPES.get(field.type, ("int", "0"))
    if field.label == Field.LABEL_REPEATED:
        by_token = " | Mapping[int, float]" if field.name == "logit_bias" else ""
        return f"Sequence[{base}]{by_token}", "()"
    if field.proto3_optional or zero == "None":
        return f"{base} | None", "None"
    return base, zero


def message_class(schema: Schema, name: str) -> Iterator[str]:
    at, message = schema.messages[name]
    yield "@dataclass(frozen=True, kw_only=True)"
    yield f"class {name}(Params):"
    yield docstring(schema.said[4, at], "    ")
    yield ""
    before = ""
    for number, field in enumerate(message.field):
        kind, default = field_type(field)
        yield f"    {field.name}: {kind} = {default}"
        # Fields that are explained together stand together.
        said = schema.said.get((4, at, 2, number)) or f"See `{before}`."
        before = before if said.startswith("See `") else field.name
        yield docstring(said, "    ")


def module(data: bytes) -> str:
    """The text of params.py."""
    schema = Schema(descriptor_pb2.FileDescriptorSet.FromString(data).file[0])
    messages, enums = schema.reached()
    classes = ["\n".join(enum_class(schema, name)) for name in enums]
    classes += ["\n".join(message_class(schema, name)) for name in messages]
    names = textwrap.fill(", ".join(f'"{name}"' for name in sorted(enums + messages)), WIDTH, initial_indent=" " * 11,
                          subsequent_indent=" " * 11)[11:]
    return "\n\n\n".join([HEAD.replace("{all}", names).rstrip(), *classes]) + "\n"


def main(folder: pathlib.Path) -> None:
    folder.joinpath("sampler.binpb").write_bytes(compiled([]))
    folder.joinpath("params.py").write_text(module(compiled(["--include_source_info"])))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PYTHON / "croupier")
