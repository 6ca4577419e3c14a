"""The base of the generated parameter classes, and the conversion of parameters to messages of the wire."""

from __future__ import annotations

import inspect
import json
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from google.protobuf.descriptor import FieldDescriptor

from ._checks import MOST, MOST_64, check_known, shown
from ._meant import DIFFERS, ELSEWHERE, MEANT
from .schema import pb

if TYPE_CHECKING:
    from ._forms import Parameters

_WANTED = {
    FieldDescriptor.TYPE_UINT32: f"a whole number in 0 ..= {MOST}",
    FieldDescriptor.TYPE_UINT64: f"a whole number in 0 ..= {MOST_64}",
    FieldDescriptor.TYPE_BOOL: "True or False",
    FieldDescriptor.TYPE_STRING: "a string",
}

#: The types that a field for a JSON schema accepts.
_SCHEMA = "a JSON schema: a dict, True, False or a string of JSON"

#: The message for a token sequence. Other engines have a list of token ids in its place.
TOKENS = "TokenSequence"

_Message = TypeVar("_Message")


class Params(Generic[_Message]):
    """An immutable set of parameters. `dataclasses.replace` makes a modified copy."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    if not TYPE_CHECKING:
        # Hidden from type checkers, which know the fields better.
        def __new__(cls, *_: Any, **given: Any) -> Params[_Message]:
            check_names(cls.__name__, given, cls.__dataclass_fields__)
            return super().__new__(cls)

    def to_pb(self) -> _Message:
        """The message of the wire. Raises TypeError or ValueError for a value that no message can hold. The server
        checks the ranges."""
        made: _Message = message(type(self).__name__, {field.name: getattr(self, field.name) for field in fields(self)})
        return made


def message(name: str, given: Mapping[str, object]) -> Any:
    """A message with these fields. A field that is None is absent."""
    kind = getattr(pb, name)
    known = kind.DESCRIPTOR.fields_by_name
    check_names(name, given, known)
    plain = {field: _plain(known[field], value) for field, value in given.items() if value is not None}
    for oneof in kind.DESCRIPTOR.oneofs:
        chosen = [field.name for field in oneof.fields if field.name in plain]
        if len(oneof.fields) > 1 and len(chosen) > 1:
            raise ValueError(f"{name} has {' and '.join(chosen)}, must have only one of them")
    try:
        return kind(**plain)
    except (TypeError, ValueError, OverflowError) as error:
        # protobuf does not say which field is wrong.
        for field, value in plain.items():
            _check(kind, known[field], value)
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{name}: {error}") from error


def _check(kind: Any, field: Any, value: Any) -> None:
    """Checks whether the field of a message may have this value."""
    try:
        kind(**{field.name: value})
    except (TypeError, ValueError, OverflowError) as error:
        of = kind.DESCRIPTOR.name
        said = f"{of}.{field.name} is {shown(value)}, must be {_wanted(field)}"
        raise (TypeError if isinstance(error, TypeError) else ValueError)(said + _documented(of, field.name)) from error


def _wanted(field: Any) -> str:
    """The values that a field accepts, in words."""
    if field.message_type is not None:
        names = ", ".join(field.message_type.fields_by_name)
        bare = "a list of token ids, " if field.message_type.name == TOKENS else ""
        one = f"{bare}a {field.message_type.name} or a dict of its fields: {names}"
    elif field.enum_type is not None:
        one = f"one of {', '.join(_short_names(field.enum_type))}"
    else:
        one = _SCHEMA if field.name == "json_schema" else _WANTED.get(field.type, "a number")
    return f"a list, each {one}" if _is_list(field) else one


def _is_list(field: Any) -> bool:
    """Whether a field is repeated."""
    # Older versions of protobuf have only the label, and newer ones deprecate it.
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _documented(of: str, name: str) -> str:
    """The schema's documentation of a field."""
    from . import params

    try:
        source = inspect.getsource(getattr(params, of))
    except (AttributeError, OSError):
        return ""
    found = re.search(rf'^    {name}: [^\n]*\n    """(.*?)"""', source, re.MULTILINE | re.DOTALL)
    return ". " + " ".join(found[1].split()) if found else ""


def params_of(given: Parameters | None, fields: Mapping[str, object], defaults: pb.SamplingParams | None = None) -> pb.SamplingParams:
    """The SamplingParams of a text, from parameters as a whole and fields that take precedence, on a stream with these
    defaults."""
    over: pb.SamplingParams = message("SamplingParams", fields)
    check_lists(fields, over, defaults)
    if given is None:
        return over
    whole, source = pb.SamplingParams(), as_message(given, "SamplingParams")
    if isinstance(given, (Mapping, Params)):
        own = given if isinstance(given, Mapping) else vars(given)
        check_lists({name: None if name in fields else value for name, value in own.items()}, source, defaults)
    # A copy, so that choices made here do not show in the caller's message.
    whole.CopyFrom(source)
    for name in fields:
        whole.ClearField(name)
    whole.MergeFrom(over)
    return whole


def check_lists(given: Mapping[str, object], made: pb.SamplingParams, defaults: pb.SamplingParams | None = None) -> None:
    """Refuses empty lists. On the wire an empty list is absent, which means the stream's default, not an empty list. A
    list that was not given is None, both in a dataclass and in one that was taken apart."""
    known = made.DESCRIPTOR.fields_by_name
    for name, value in given.items():
        if value is None or not _is_list(known[name]) or getattr(made, name):
            continue
        if name == "allowed_token_ids":
            raise ValueError("SamplingParams.allowed_token_ids is empty, so no token would be allowed; leave it out, or give None, to allow all")
        if defaults is not None and getattr(defaults, name):
            raise ValueError(f"SamplingParams.{name} is empty, and an empty list does not override the one in default_params; leave it out there, "
                             "and give it to each text that needs it")


def as_message(given: Any, name: str = "") -> Any:
    """A message of the wire, made from a dataclass, a message, or a dict if the message's name is known."""
    if name and isinstance(given, Mapping):
        return message(name, dict(given))
    found = given.to_pb() if isinstance(given, Params) else given
    if name and found is not None and not isinstance(found, getattr(pb, name)):
        preset = f"; did you mean preset={given!r}?" if isinstance(given, str) and name == "SamplingParams" else ""
        raise TypeError(f"parameters are {type(given).__name__}, must be a croupier.{name}, a croupier.pb.{name} or a dict of its fields{preset}")
    return found


def check_names(of: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuses unknown fields, and suggests the field that is meant or the nearest known one."""
    check_known(of, given, known, "field", MEANT, DIFFERS, ELSEWHERE if of == "SamplingParams" else {})


def _plain(field: Any, value: Any) -> Any:
    if field.name == "logit_bias" and isinstance(value, Mapping):
        return _biases(value)
    if field.name == "json_schema" and not isinstance(value, str):
        return as_json(value)
    if field.name == "choices" and _is_many(value):
        return _as_lines(value)
    if isinstance(value, (str, bytes)) and _is_list(field) and field.type == field.TYPE_STRING:
        # Otherwise each character would be a text of its own.
        raise TypeError(f"{field.containing_type.name}.{field.name} is {value!r}, must be a list of texts, such as [{value!r}]")
    if isinstance(value, (str, bytes)) and field.enum_type is None:
        return value
    if isinstance(value, str) and _is_list(field):
        names = ", ".join(_short_names(field.enum_type))
        raise TypeError(f"{field.containing_type.name}.{field.name} is {value!r}, must be a list of names, such as [{value!r}]; known: {names}")
    if _is_many(value):
        return [_at(field, f"[{place}]", item) for place, item in enumerate(value)]
    return _at(field, "", value)


def _at(field: Any, place: str, value: Any) -> Any:
    """As `_one`. A mistake inside a message is reported with the fields around it, and one in a list with its
    position."""
    try:
        return _one(field, value)
    except (TypeError, ValueError) as error:
        of = field.containing_type.name
        inner, sep = (field.message_type.name, ".") if field.message_type is not None else (f"{of}.{field.name}", " ")
        if not str(error).startswith(inner + sep):
            raise
        said = f"{of}.{field.name}{place}{sep}{str(error).removeprefix(inner + sep)}"
        raise (TypeError if isinstance(error, TypeError) else ValueError)(said) from error


def _biases(given: Mapping[Any, Any]) -> list[pb.LogitBias]:
    """Biases by token id, as in engines and in OpenAI's API, where ids may be text."""
    try:
        return [pb.LogitBias(token_id=int(token) if isinstance(token, str) else operator.index(token), bias=float(bias)) for token, bias in given.items()]
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"logit_bias is {shown(given)}, must be a dict of biases by token id, such as {{5: 2.0}}: {error}") from error


def as_json(schema: Any) -> str:
    """A schema as JSON. Properties keep their order, because output is written in that order."""
    try:
        # As short as possible: the length of a grammar is limited, and the same schema is compiled only once.
        return json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_known_to_json)
    except (TypeError, ValueError, RecursionError) as error:
        raise (ValueError if isinstance(error, RecursionError) else type(error))(f"json_schema is not {_SCHEMA}: {error}") from error


def _as_lines(choices: Iterable[Any]) -> str:
    """Choices as the wire represents them."""
    lines = list(choices)
    for line in lines:
        if not isinstance(line, str):
            raise TypeError(f"choices has {line!r}, must be a list of strings")
        if "\n" in line or "\r" in line:
            raise ValueError(f"choices has {line!r}, and a choice is one line without line ends; use a regex instead")
        if not line:
            raise ValueError("choices has '', and a choice cannot be empty; leave it out, or use a regex such as (yes|no)?")
    return "\n".join(lines)


def _known_to_json(value: Any) -> Any:
    """Converts values that JSON represents differently: mappings other than dict, numbers and arrays of numpy."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"it has {value!r}, which JSON cannot represent")


def _is_many(value: Any) -> bool:
    # A single number of an array also has the method, but no dimension.
    return hasattr(value, "__iter__") and not isinstance(value, (str, bytes, Mapping)) and getattr(value, "ndim", 1) != 0


def _one(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.name == TOKENS and _is_many(value):
            return message(TOKENS, {"token_ids": value})
        return message(field.message_type.name, dict(value)) if isinstance(value, Mapping) else as_message(value)
    # protobuf does not accept numpy's numbers.
    value = value.item() if hasattr(value, "item") else value
    return as_wire(field.name, value) if field.enum_type is None else _number(field, value)


def as_wire(name: str, value: Any) -> Any:
    """A field's value. It converts the one value that other programs use differently: vLLM and SGLang use -1 for top_k
    off, which on the wire is 0."""
    return 0 if name == "top_k" and type(value) is int and value == -1 else value


def _number(field: Any, value: Any) -> Any:
    """The number of an enum value, given by number or by name. The name may or may not begin with that of the enum."""
    if not isinstance(value, str):
        return value
    kind = field.enum_type
    short = _short_names(kind)
    chosen = kind.values_by_name[value].number if value in kind.values_by_name else short.get(value.lower())
    if chosen is None:
        raise ValueError(f"{field.containing_type.name}.{field.name} is {value!r}, must be one of {', '.join(short)}")
    return chosen


def _short_names(kind: Any) -> dict[str, int]:
    """An enum's values by name, without the enum's own name in front."""
    return {value.name.removeprefix(prefix_of(kind.name)).lower(): value.number for value in kind.values}


def prefix_of(enum_name: str) -> str:
    """The common prefix of an enum's value names: for EngineOrder it is ENGINE_ORDER_."""
    return "".join("_" + c if c.isupper() and at else c for at, c in enumerate(enum_name)).upper() + "_"
