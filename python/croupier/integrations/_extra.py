"""Parameters that a request of another program carries for Croupier alone."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format

from ..schema import pb


def parsed(extra: Any, where: str) -> Any:
    """The `SamplingParams` whose fields these are, an object or its JSON. Raises `ValueError`, which names `where` they stand."""
    try:
        return json_format.Parse(extra if isinstance(extra, str) else json.dumps(extra), pb.SamplingParams())
    except (json_format.ParseError, TypeError, ValueError) as error:
        raise ValueError(f"{where} must be fields of croupier.v1.SamplingParams: {error}") from error
