"""Settings: one pydantic model per component, loaded from YAML plus dotted overrides, strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from specexit.errors import ConfigError


class Settings(BaseModel):
    """Base of every configuration section: frozen, unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


S = TypeVar("S", bound=BaseModel)


def parse(cls: type[S], values: dict[str, Any], where: str = "") -> S:
    """Validate `values` as `cls`.

    Raises:
        ConfigError: one line per fault, `section.key: value is not ...`, naming the allowed keys
            where a key is unknown.
    """
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        lines = [_describe(fault, cls, where) for fault in error.errors()]
        raise ConfigError("\n".join(lines)) from None


def load(cls: type[S], path: str | Path | None, overrides: list[str] | None = None) -> S:
    """Load `cls` from a YAML file (None: defaults only) and `key.sub=value` overrides.

    Values of overrides are YAML: `policy.patience=2`, `think.end=null`, `signals=[remain]`.
    """
    values: dict[str, Any] = {}
    where = ""
    if path is not None:
        file = Path(path)
        if not file.is_file():
            raise ConfigError(f"--config: no file {file}; give the path of an existing YAML file")
        try:
            loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ConfigError(f"{file}: not valid YAML: {error}") from None
        if loaded is not None and not isinstance(loaded, dict):
            raise ConfigError(f"{file}: the top level must be a mapping of settings")
        values = loaded or {}
        where = f"{file}: "
    for item in overrides or []:
        _override(values, item)
    return parse(cls, values, where)


def _override(values: dict[str, Any], item: str) -> None:
    key, equals, text = item.partition("=")
    if not equals or not key:
        raise ConfigError(f"override {item!r}: write it as key.sub=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {item!r}: the value is not valid YAML: {error}") from None
    *parents, last = key.split(".")
    section = values
    for parent in parents:
        section = section.setdefault(parent, {})
        if not isinstance(section, dict):
            raise ConfigError(f"override {item!r}: {parent} is a value, not a section")
    section[last] = value


def _describe(fault: Any, cls: type[BaseModel], where: str) -> str:
    path = ".".join(str(part) for part in fault["loc"]) or cls.__name__
    if fault["type"] == "extra_forbidden":
        known = _keys_at(cls, fault["loc"][:-1])
        hint = f"; known keys: {', '.join(known)}" if known else ""
        return f"{where}{path}: unknown key{hint}"
    if fault["type"] == "missing":
        return f"{where}{path}: missing, a value is required"
    message = fault["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return f"{where}{path}: {fault['input']!r} is not valid: {message}"


def _keys_at(cls: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    model: Any = cls
    for part in location:
        field = getattr(model, "model_fields", {}).get(part)
        if field is None:
            return []
        model = field.annotation
    return sorted(getattr(model, "model_fields", {}))
