"""JSON Schema 2020-12 with bounded time, for schemas that come in a request.

What a schema can do to a validator, and what stops it here: patterns that backtrack (a linear-time
engine matches them), references that multiply or never end, hundreds of alternatives for thousands
of items (a budget per validation; no remote references at all), and `uniqueItems` by pairwise
comparison (hashed instead). `format` is an
annotation, as the standard has it by default.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend

from .automaton import Automaton
from .errors import ContractError
from .limits import MAX_PATTERN_CHARS
from .pattern import compile_pattern
from .search import Search

MAX_STEPS = 100_000
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
Check = Callable[[Any, Any, Any, dict[str, Any]], Iterable[ValidationError] | None]
_DATA = ("const", "enum", "default", "examples")


class _BudgetError(Exception):
    """The schema took more steps than one validation may."""


@lru_cache(maxsize=256)
def linear_search(pattern: str) -> Callable[[str], bool]:
    """A function that tells whether `pattern` matches somewhere in a text, in linear time.

    RE2 where it is installed, else our own automaton, which knows less syntax.
    Raises `ContractError` when the engine refuses the pattern.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ContractError(f"{len(pattern)} characters, at most {MAX_PATTERN_CHARS} allowed")
    try:
        import re2
    except ImportError:
        machine = Automaton(compile_pattern(pattern, max_states=2_000), max_chars=sys.maxsize)
        nullable = machine.nullable()

        def found(text: str) -> bool:
            search = Search(machine)
            return nullable or (search.feed(text) or search.close()) is not None

        return found
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise ContractError(f"{pattern!r} is refused by RE2: {error}") from None
    return lambda text: compiled.search(text) is not None


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not linear_search(pattern)(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, _: Any
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, schema in patterns.items():
            matches = linear_search(pattern)
            for key, value in instance.items():
                if matches(key):
                    yield from validator.descend(value, schema, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, rule: Any, instance: Any, schema: dict[str, Any]
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    named = schema.get("properties", {})
    matchers = [linear_search(pattern) for pattern in schema.get("patternProperties", {})]
    for key, value in instance.items():
        if key in named or any(matches(key) for matches in matchers):
            continue
        yield from validator.descend(value, rule, path=key)


def _unique_items(_: Any, wanted: bool, instance: Any, __: Any) -> Iterator[ValidationError]:
    if wanted and isinstance(instance, list):
        keys = [json.dumps(value_key(item), sort_keys=True) for item in instance]
        if len(set(keys)) < len(keys):
            yield ValidationError("has items that are not unique")


def value_key(value: Any) -> Any:
    """A form in which equal JSON values (1 and 1.0, but not 1 and true) are equal."""
    if isinstance(value, dict):
        return {"o": {key: value_key(item) for key, item in value.items()}}
    if isinstance(value, list):
        return [value_key(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _counted(check: Check) -> Check:
    """The keyword's check, taking its weight from the budget first."""

    def checked(
        validator: Any, rule: Any, instance: Any, schema: dict[str, Any]
    ) -> Iterator[ValidationError]:
        weight = 1 + (len(rule) // 16 if isinstance(rule, list | dict) else 0)
        left = _steps_left.get() - weight
        _steps_left.set(left)
        if left < 0:
            raise _BudgetError
        yield from check(validator, rule, instance, schema) or ()

    return checked


_steps_left: ContextVar[int] = ContextVar("steps_left", default=0)
_CHECKS: dict[str, Check] = {
    **Draft202012Validator.VALIDATORS,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
_Validator = extend(
    Draft202012Validator, {keyword: _counted(check) for keyword, check in _CHECKS.items()}
)


class JsonSchema:
    """A checked schema; `valid` says whether a value satisfies it."""

    def __init__(self, schema: Any, where: str) -> None:
        if not isinstance(schema, dict | bool):
            raise ContractError(
                f"{where}: {type(schema).__name__} is not a JSON Schema (an object)"
            )
        if isinstance(schema, dict):
            dialect = schema.get("$schema", _DIALECT)
            if not isinstance(dialect, str) or dialect.rstrip("#") != _DIALECT:
                raise ContractError(f"{where}.$schema: {dialect!r} is not {_DIALECT}")
            _check(schema, schema, where)
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise ContractError(f"{where}{_dotted(error.absolute_path)}: {error.message}") from None
        self._validator = _Validator(schema)

    def valid(self, value: Any) -> bool:
        """Whether `value` satisfies the schema, within the budget."""
        _steps_left.set(MAX_STEPS)
        try:
            return self._validator.is_valid(value)
        except (_BudgetError, RecursionError):
            return False


def _dotted(path: Any) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def _check(node: Any, root: dict[str, Any], where: str) -> None:
    """Refuse what the budget cannot hold: remote or missing references, patterns, see above."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            _check(item, root, f"{where}[{index}]")
    if not isinstance(node, dict):
        return
    for key in ("$ref", "$dynamicRef"):
        if isinstance(node.get(key), str):
            _check_reference(node[key], root, f"{where}.{key}")
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        _check_pattern(pattern, f"{where}.pattern")
    patterns = node.get("patternProperties")
    if isinstance(patterns, dict):
        if "unevaluatedProperties" in node:
            raise ContractError(
                f"{where}.unevaluatedProperties: not supported beside patternProperties; "
                "use additionalProperties"
            )
        for key in patterns:
            _check_pattern(key, f"{where}.patternProperties.{key}")
    for key, item in node.items():
        if key not in _DATA:
            _check(item, root, f"{where}.{key}")


def _check_pattern(pattern: str, where: str) -> None:
    try:
        linear_search(pattern)
    except ContractError as error:
        raise ContractError(f"{where}: {error}") from None


def _check_reference(reference: str, root: dict[str, Any], where: str) -> None:
    if not reference.startswith("#"):
        raise ContractError(f"{where}: {reference!r} leaves the schema; only '#...' is allowed")
    target: Any = root
    if reference.startswith("#/"):
        for part in reference[2:].split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and part.isdigit() and int(part) < len(target):
                target = target[int(part)]
            elif isinstance(target, dict) and part in target:
                target = target[part]
            else:
                raise ContractError(f"{where}: {reference!r} points to nothing")
    elif len(reference) > 1 and not _has_anchor(root, reference[1:]):
        raise ContractError(f"{where}: {reference!r} points to nothing")


def _has_anchor(node: Any, name: str) -> bool:
    if isinstance(node, dict):
        named = name in (node.get("$anchor"), node.get("$dynamicAnchor"))
        return named or any(_has_anchor(item, name) for item in node.values())
    return isinstance(node, list) and any(_has_anchor(item, name) for item in node)
