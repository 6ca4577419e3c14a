"""Croupier as the sampler of other programs. Each module needs that program, and nothing here is loaded by `import croupier`."""

from __future__ import annotations

import importlib
import os
from typing import Any


def needed(module: str, package: str, what: str) -> Any:
    """A module of the program that an integration is for."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {package}, of which {module} cannot be imported: {error}", name=module) from error


def sglang_plugin() -> None:
    """SGLang's entry point, called in each of its processes: registers the backend where CROUPIER_SGLANG_ADDRESS names a server.
    It stands here so that nothing is loaded where it does not."""
    if address := os.environ.get("CROUPIER_SGLANG_ADDRESS"):
        needed("croupier.integrations.sglang", "sglang", "the sampling backend croupier").register(address)
