"""Parameters that a request of another program carries for Croupier alone."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format

from .._params import as_wire
from ..schema import pb


def parsed(extra: Any, where: str) -> pb.SamplingParams:
    """The `SamplingParams` whose fields these are, an object or its JSON. Raises `ValueError`, which names `where` they stand."""
    try:
        text = extra if isinstance(extra, str) else json.dumps(extra)
        fields = json.loads(text)
        # Both are names of it in JSON.
        for name in ("top_k", "topK"):
            if isinstance(fields, dict) and as_wire("top_k", given := fields.get(name)) != given:
                text = json.dumps(fields | {name: as_wire("top_k", given)})
        params: pb.SamplingParams = json_format.Parse(text, pb.SamplingParams())
        return params
    except (json_format.ParseError, TypeError, ValueError, RecursionError) as error:
        # The last where they are nested too deep: a request's own mistake, which must not end the engine.
        raise ValueError(f"{where} must be fields of croupier.v1.SamplingParams: {error}") from error
