"""Croupier as the sampler of other programs. Each module needs the program it is for. `import croupier` loads none of
them."""

from __future__ import annotations

import importlib
import os
from typing import Any


def needed(module: str, package: str, what: str) -> Any:
    """Imports a module of the program that an integration is for."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {package}, but {module} cannot be imported: {error}", name=module) from error


def sglang_plugin() -> None:
    """SGLang's entry point, called in each of its processes. It registers the backend if CROUPIER_SGLANG_ADDRESS names
    a server. It is here so that nothing else is loaded if the variable is not set."""
    if address := os.environ.get("CROUPIER_SGLANG_ADDRESS"):
        needed("croupier.integrations.sglang", "sglang", "the sampling backend croupier").register(address)
