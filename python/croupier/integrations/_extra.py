"""Parameters that a request of another program carries for Croupier alone."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format

from .._params import as_json, as_wire, check_lists
from ..schema import pb

#: Fields by each of their names in JSON.
_FIELDS = {name: field.name for field in pb.SamplingParams.DESCRIPTOR.fields for name in (field.name, field.json_name)}


def parsed(extra: Any, where: str) -> pb.SamplingParams:
    """The `SamplingParams` whose fields these are, an object or its JSON. Raises `ValueError`, which names `where` they stand."""
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
        # The last where they are nested too deep: a request's own mistake, which must not end the engine.
        raise ValueError(f"{where} must be fields of croupier.v1.SamplingParams: {error}") from error


def _top_k(fields: Any) -> Any:
    """With top_k as the wire has it, in thinking too: -1 is off."""
    if not isinstance(fields, dict):
        return fields
    # Both are names of it in JSON.
    own = {name: as_wire("top_k", fields[name]) for name in ("top_k", "topK") if name in fields}
    inner = {name: _top_k(fields[name]) for name in ("thinking_budget", "thinkingBudget") if name in fields}
    return fields | own | inner


def _schema(name: str, value: Any) -> Any:
    """A grammar's JSON schema as text, which may stand there as an object, as in the client."""
    is_plain = name not in ("json_schema", "jsonSchema") or value is None or isinstance(value, str)
    return value if is_plain else as_json(value)
