"""Limits on contracts that come in a request.

A contract is code in disguise: it may be huge, deep, or hold a pattern that takes for ever. The
limits are constants, checked before any work, and every message names the field.
"""

from __future__ import annotations

import json
from typing import Any

from .errors import ContractError

MAX_SPEC_CHARS = 65_536
MAX_SPEC_DEPTH = 32
MAX_SPEC_ITEMS = 4_096
MAX_PATTERN_CHARS = 1_000


def check_size(spec: Any, path: str) -> None:
    """Refuse a spec (JSON text or value) that is too long, too deep or not JSON."""
    if isinstance(spec, str):
        if len(spec) > MAX_SPEC_CHARS:
            raise ContractError(f"{path}: {len(spec)} characters, at most {MAX_SPEC_CHARS} allowed")
        return
    items = 0
    stack = [(spec, path, 1)]
    while stack:
        value, where, depth = stack.pop()
        if depth > MAX_SPEC_DEPTH:
            raise ContractError(f"{path}: nested deeper than {MAX_SPEC_DEPTH} levels")
        items += 1
        if items > MAX_SPEC_ITEMS:
            raise ContractError(f"{path}: more than {MAX_SPEC_ITEMS} values")
        if isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ContractError(f"{where}: key {key!r} is not a string")
                stack.append((item, f"{where}.{key}", depth + 1))
        elif isinstance(value, list | tuple):
            stack += [(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    try:
        size = len(json.dumps(spec, default=_spec_of))
    except (TypeError, ValueError) as error:
        raise ContractError(f"{path}: not a JSON value: {error}") from None
    if size > MAX_SPEC_CHARS:
        raise ContractError(f"{path}: {size} characters, at most {MAX_SPEC_CHARS} allowed")


def _spec_of(value: Any) -> Any:
    spec = getattr(value, "spec", None)
    if spec is None:
        raise TypeError(f"{type(value).__name__} is not JSON")
    return spec()
