"""Parameters for Croupier alone, carried by a request of another program."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format

from .._params import as_json, as_wire, check_lists
from ..schema import pb

#: Field names by each of their names in JSON.
_FIELDS = {name: field.name for field in pb.SamplingParams.DESCRIPTOR.fields for name in (field.name, field.json_name)}


def parsed(extra: Any, where: str) -> pb.SamplingParams:
    """The `SamplingParams` with these fields, given as an object or its JSON. Raises `ValueError`, which names `where`
    they were given."""
    try:
        text = extra if isinstance(extra, str) else json.dumps(extra)
        fields = json.loads(text)
        if (taken := _top_k(fields)) != fields:
            text = json.dumps(taken)
        if isinstance(fields, dict) and isinstance(grammar := fields.get("grammar"), dict):
            text = json.dumps(json.loads(text) | {"grammar": {name: _schema(name, value) for name, value in grammar.items()}})
        params: pb.SamplingParams = json_format.Parse(text, pb.SamplingParams())
        check_lists({_FIELDS[name]: value for name, value in json.loads(text).items()}, params)
        return params
    except (json_format.ParseError, TypeError, ValueError, RecursionError) as error:
        # RecursionError comes from too deep nesting. It is the request's own mistake and must not end the engine.
        raise ValueError(f"{where} must be fields of croupier.v1.SamplingParams: {error}") from error


def _top_k(fields: Any) -> Any:
    """The fields with top_k as on the wire, where off is 0, not -1. This includes the thinking budget."""
    if not isinstance(fields, dict):
        return fields
    # Both are its names in JSON.
    own = {name: as_wire("top_k", fields[name]) for name in ("top_k", "topK") if name in fields}
    inner = {name: _top_k(fields[name]) for name in ("thinking_budget", "thinkingBudget") if name in fields}
    return fields | own | inner


def _schema(name: str, value: Any) -> Any:
    """A grammar's JSON schema as text. As in the client, it may be given as an object."""
    is_plain = name not in ("json_schema", "jsonSchema") or value is None or isinstance(value, str)
    return value if is_plain else as_json(value)
