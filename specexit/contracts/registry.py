"""Make a contract from a name, a JSON text, a dictionary or a YAML/JSON file.

Names resolve to the built-in contracts first, then to classes given to `register`, then to the
entry point group `specexit.contracts` (the entry point's value is a `Contract` subclass).
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from .base import Contract
from .errors import ContractError
from .limits import check_size

ENTRY_POINT_GROUP = "specexit.contracts"

_BUILT_IN = {
    "after_think": "combine:AfterThink",
    "all_of": "combine:AllOf",
    "any_of": "combine:AnyOf",
    "boxed_integer": "boxed:BoxedInteger",
    "boxed_math": "boxed:BoxedMath",
    "choice": "choice:Choice",
    "final_answer": "final_answer:FinalAnswer",
    "final_tag": "final_tag:FinalTag",
    "json": "json_value:Json",
    "label": "label:Label",
    "patch": "patch:Patch",
    "regex": "regex:Regex",
    "report": "report:Report",
}
_REGISTERED: dict[str, type[Contract]] = {}


def register(cls: type[Contract]) -> type[Contract]:
    """Make a custom contract known by its `name` (usable as a class decorator)."""
    if not cls.name:
        raise ContractError(f"{cls.__name__}.name: empty; a contract needs a name")
    if cls.name in _BUILT_IN:
        raise ContractError(f"{cls.__name__}.name: {cls.name!r} is the name of a built-in contract")
    _REGISTERED[cls.name] = cls
    return cls


def names() -> list[str]:
    """Every contract name that resolves here."""
    plugged = (point.name for point in entry_points(group=ENTRY_POINT_GROUP))
    return sorted({*_BUILT_IN, *_REGISTERED, *plugged})


def contract_class(name: str, path: str = "contract.type") -> type[Contract]:
    """The class behind a contract name."""
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return getattr(import_module(f"{__package__}.{module}"), attribute)
    if name in _REGISTERED:
        return _REGISTERED[name]
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            cls = point.load()
            if not (isinstance(cls, type) and issubclass(cls, Contract)):
                raise ContractError(f"{path}: entry point {name!r} is not a Contract class")
            return cls
    raise ContractError(f"{path}: {name!r} is unknown (known: {', '.join(names())})")


def contract(
    spec: str | dict[str, Any] | Contract, *, path: str = "contract", files: bool = True
) -> Contract:
    """Make a contract.

    `spec`: a name (`"boxed_integer"`), a dictionary (`{"type": "choice", "letters": "ABCD"}`), the
    same as JSON text, or the path of a YAML or JSON file. `files=False` refuses paths: use it for
    contracts that come in a request. Raises `ContractError`, which names the field at fault.
    """
    if isinstance(spec, Contract):
        return spec
    if isinstance(spec, str):
        spec = _from_text(spec.strip(), path, files)
        if isinstance(spec, str):
            return contract_class(spec, path).from_spec({}, path)
    if not isinstance(spec, dict):
        raise ContractError(f"{path}: {type(spec).__name__} is not a name or an object")
    check_size(spec, path)
    kind = spec.get("type")
    if not isinstance(kind, str):
        raise ContractError(
            f"{path}.type: missing; give the contract's name ({', '.join(names())})"
        )
    options = {key: value for key, value in spec.items() if key != "type"}
    return contract_class(kind, f"{path}.type").from_spec(options, path)


def _from_text(text: str, path: str, files: bool) -> str | dict[str, Any]:
    """A name stays a name; JSON text and files become what they hold."""
    if text.startswith(("{", "[", '"')):
        check_size(text, path)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ContractError(f"{path}: not valid JSON: {error}") from None
    if files and text.endswith((".yaml", ".yml", ".json")):
        file = Path(text)
        if not file.is_file():
            raise ContractError(f"{path}: no such file: {text}")
        import yaml

        try:
            return yaml.safe_load(file.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ContractError(f"{path}: {text} is not valid YAML: {error}") from None
    return text
