"""JSON: when a complete valid value first exists, by json.loads and jsonschema."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from specexit import Committer, contract
from specexit.contracts import ContractError
from specexit.contracts.schema import JsonSchema

from .streams import answer_of, check

ANY = contract("json")
LENIENT = contract({"type": "json", "lenient": True})
ROOT = contract({"type": "json", "root": "any"})
FIELD_SCHEMA = {"type": "object", "required": ["answer"]}
FIELD = contract({"type": "json", "schema": FIELD_SCHEMA, "field": "answer"})

CASES = [
    # text, any container, lenient, any root
    ('{"n":"use } here","ok":true}', {"n": "use } here", "ok": True}, ..., ...),
    ('```json\n{"t":"run ```x``` now"}\n```', {"t": "run ```x``` now"}, ..., ...),
    ('```json{"a":1}```', {"a": 1}, ..., ...),
    (r'{"a":"\u2705 more', None, ..., ...),
    (r'{"a":"\u2705 more"}', {"a": "✅ more"}, ..., ...),
    ('{"a":1}\n', {"a": 1}, ..., ...),
    ('{"a":1} or {"a":2}', {"a": 1}, ..., ...),
    (r'\frac{}{} x[1] {"a":[1,2]}', {"a": [1, 2]}, ..., ...),
    ('{x | x} {"a":1}', {"a": 1}, ..., ...),
    ('json{"a":1}', {"a": 1}, ..., ...),
    ('0{"b":{"a":1}}', {"b": {"a": 1}}, ..., ...),
    ('list[{"a":1}]', [{"a": 1}], ..., ...),
    (r'\text{"so"} then {"a":1}', {"a": 1}, ..., ...),
    ('x["k"] then {"a":1}', {"a": 1}, ..., ...),
    ("f{} and x[1, 2]", None, ..., ...),
    ('[0, 1) then {"a":1}', {"a": 1}, ..., ...),
    ('{"a":"x\ny","b":{"c":1}}', None, {"a": "x\ny", "b": {"c": 1}}, ...),
    ('{"a":"x\ny","b":{"c":1}}\n{"d":2}', {"d": 2}, {"a": "x\ny", "b": {"c": 1}}, ...),
    (r'{"a":"\( x","b":{"c":1}}', None, {"a": r"\( x", "b": {"c": 1}}, ...),
    (r'{"a":"\u12 x"}', None, {"a": r"\u12 x"}, ...),
    (r'{"a":"\ud83d\ude00"}', {"a": "😀"}, ..., ...),
    (r'{"a":"\ud83d"}', {"a": "\ud83d"}, ..., ...),
    ('{"a":1,"a":2}', {"a": 2}, ..., ...),
    ('{"a":NaN}', None, ..., ...),
    ('{"a":-Infinity}', None, ..., ...),
    ('{"a":1,}', None, ..., ...),
    ('{"a":01}', None, ..., ...),
    ("{'a':1}", None, ..., ...),
    ('{"a" 1}', None, ..., ...),
    ('{"a":tru}', None, ..., ...),
    ("[1,2", None, ..., ...),
    ("[1,2]", [1, 2], ..., ...),
    ("{}", {}, ..., ...),
    ('{"a":\n\n  \n "b"}', {"a": "b"}, ..., ...),
    ('{"a":' + "\n " * 200, None, ..., ...),
    ("12", None, None, 12),
    ("12 ", None, None, 12),
    ("12.5e-1\n", None, None, 1.25),
    ("12.", None, None, None),
    ("-", None, None, None),
    ("true", None, None, True),
    ('"x y"', None, None, "x y"),
    (r'"\ud83d\ude00"', None, None, "😀"),
]


@pytest.mark.parametrize(("text", "strict", "lenient", "root"), CASES)
def test_json_reads(text, strict, lenient, root):
    """Links of the public cases among these.

    https://github.com/amd/gaia/pull/1824 (a brace in a string)
    https://github.com/elizaOS/eliza/issues/30736 (a fence in a string)
    https://github.com/BoundaryML/baml/pull/4882 (a partial escape)
    https://github.com/mlc-ai/xgrammar/issues/269 (a brace glued to a newline)
    https://github.com/OpenNSWM-Lab/FAROS/issues/70 (two objects)
    """
    assert answer_of(ANY, text) == strict
    assert answer_of(LENIENT, text) == (strict if lenient is ... else lenient)
    assert answer_of(ROOT, text) == (strict if root is ... else root)


def test_commit_is_at_the_closing_brace_of_a_glued_token():
    """https://github.com/mlc-ai/xgrammar/issues/269"""
    committer = Committer(ANY, thinking=False)
    assert committer.feed('{"a":{"b":1}') is None
    assert committer.feed("}\n").position == len('{"a":{"b":1}}')


def test_values_that_fail_the_schema_are_passed_over_whole():
    assert answer_of(FIELD, '{"b":{"answer":1}} {"answer":6}') == 6
    assert answer_of(FIELD, '[{"answer":1}]') == 1
    assert answer_of(FIELD, '{"answer":null}') is None


def test_duplicate_keys_can_be_refused():
    strict = contract({"type": "json", "duplicate_keys": "refuse"})
    assert answer_of(strict, '{"a":1,"a":2}\n{"a":3}') == {"a": 3}


def test_depth_and_size_are_bounded():
    deep = "[" * 50_000
    start = time.process_time()
    assert answer_of(ANY, "[" * 64 + "]" * 64, rounds=1) is not None
    assert answer_of(ANY, "[" * 65 + "]" * 65, rounds=1) is None
    assert Committer(ANY, thinking=False).feed(deep + "]" * 50_000) is None
    assert Committer(ANY, thinking=False).feed('{"a":' * 50_000) is None
    assert time.process_time() - start < 5
    short = contract({"type": "json", "max_chars": 20})
    assert answer_of(short, '{"a":"' + "x" * 30 + '"}\n{"a":1}') == {"a": 1}


KEYS = st.sampled_from(["a", "b", "", "}", "\\"])
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(['"', "\\", "}", "]", "```", "\ud83d", "\u2028"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
containers = st.lists(values, max_size=3) | st.dictionaries(KEYS, values, max_size=3)


def first_complete(text: str) -> int | None:
    """The shortest prefix that json.loads accepts."""
    for end in range(1, len(text) + 1):
        try:
            json.loads(text[:end])
        except ValueError:
            continue
        return end
    return None


@settings(max_examples=120, deadline=None)
@given(containers, st.booleans(), st.sampled_from([None, 1]), st.data())
def test_commits_where_json_loads_first_succeeds(value, ascii_only, indent, data):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    mutate = data.draw(st.sampled_from(["none", "cut", "swap", "drop"]))
    if mutate == "cut":
        text = text[: data.draw(st.integers(0, len(text)))]
    elif mutate != "none" and text:
        at = data.draw(st.integers(0, len(text) - 1))
        text = text[:at] + ("" if mutate == "drop" else data.draw(st.characters())) + text[at + 1 :]
    if text[:1] not in ("{", "["):
        return
    commit = check(ANY, text, rounds=1)
    end = first_complete(text)
    if end is not None:
        assert commit is not None
        assert commit.position == end
        assert commit.answer == json.loads(text[:end])


SCHEMAS: list[Any] = [
    {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 2}}},
    {
        "type": "object",
        "additionalProperties": False,
        "patternProperties": {"^a+$": {"type": "string"}},
    },
    {"type": "object", "additionalProperties": {"type": "number"}, "properties": {"a": True}},
    {"type": "array", "uniqueItems": True, "items": {"type": ["integer", "number", "boolean"]}},
    {
        "type": "array",
        "prefixItems": [{"const": 1}],
        "items": {"$ref": "#/$defs/x"},
        "$defs": {"x": {"type": "string", "pattern": "b+$"}},
    },
    {
        "anyOf": [
            {"type": "object", "minProperties": 2},
            {"type": "array", "contains": {"const": 1}},
        ]
    },
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "maxProperties": 1},
]
INSTANCES: list[Any] = [
    {},
    {"a": 2},
    {"a": 1},
    {"a": "x", "aa": "y"},
    {"b": 1},
    {"a": "x", "b": 2},
    [],
    [1],
    [1, 1.0],
    [1, True],
    [1, "ab"],
    [1, "ba"],
    [2, "b"],
    {"a": {"a": {}}},
    {"a": {"a": {"b": 1, "c": 2}}},
    {"b": 1, "c": "x"},
    [0, False],
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_bounded_validator_agrees_with_jsonschema(schema):
    ours, stock = JsonSchema(schema, "schema"), Draft202012Validator(schema)
    verdicts = [stock.is_valid(instance) for instance in INSTANCES]
    assert [ours.valid(instance) for instance in INSTANCES] == verdicts
    assert len(set(verdicts)) == 2


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_schema_decides_whether_the_value_counts(schema):
    made = contract({"type": "json", "schema": schema})
    stock = Draft202012Validator(schema)
    for instance in INSTANCES:
        text = json.dumps(instance)
        fits = stock.is_valid(instance)
        assert (answer_of(made, text, rounds=1) == instance) is fits


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (3, r"contract\.schema: int is not a JSON Schema"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, r"contract\.schema\.\$schema: "),
        ({"type": "objekt"}, r"contract\.schema\.type: 'objekt'"),
        ({"properties": {"a": {"minimum": "x"}}}, r"contract\.schema\.properties\.a\.minimum: "),
        ({"$ref": "https://example.com/x"}, r"contract\.schema\.\$ref: .* leaves the schema"),
        ({"$ref": "#/$defs/x"}, r"contract\.schema\.\$ref: .* points to nothing"),
        ({"$ref": "#x"}, r"contract\.schema\.\$ref: .* points to nothing"),
        ({"items": {"pattern": "("}}, r"contract\.schema\.items\.pattern: "),
        ({"items": {"pattern": r"(a)\1"}}, r"contract\.schema\.items\.pattern: "),
        ({"pattern": "a" * 2000}, r"contract\.schema\.pattern: 2000 characters"),
        ({"patternProperties": {"(": {}}}, r"contract\.schema\.patternProperties\.\(: "),
        (
            {"patternProperties": {"a": {}}, "unevaluatedProperties": False},
            r"contract\.schema\.unevaluatedProperties: not supported",
        ),
    ],
)
def test_wrong_schemas_are_refused_by_field(schema, message):
    with pytest.raises(ContractError, match="^" + message):
        contract({"type": "json", "schema": schema})


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def test_huge_and_deep_schemas_are_refused_by_size():
    for schema, message in (
        (nested(100), "nested deeper"),
        ({"enum": list(range(5_000))}, "more than 4096 values"),
        ({"description": "x" * 70_000}, "characters, at most"),
    ):
        with pytest.raises(ContractError, match=message):
            contract({"type": "json", "schema": schema})
    with pytest.raises(ContractError, match="characters, at most"):
        contract('{"type": "json", "x": "' + "x" * 70_000 + '"}')
    with pytest.raises(ContractError, match=r"nested deeper|not valid JSON"):
        contract('{"type":' + "[" * 30_000 + "]" * 30_000 + "}")


def test_schemas_that_explode_or_never_end_are_stopped():
    laughs: dict[str, Any] = {
        f"x{i}": {"allOf": [{"$ref": f"#/$defs/x{i + 1}"}] * 2} for i in range(28)
    }
    laughs["x28"] = {}
    hostile = [
        {"$ref": "#/$defs/x0", "$defs": laughs},
        {"$ref": "#"},
        {"type": "array", "items": {"pattern": "(a+)+$"}},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "items": {"anyOf": [{"const": i} for i in range(500)]}},
    ]
    texts = [
        "[1]",
        "[1]",
        json.dumps(["a" * 5_000 + "b"]),
        json.dumps([[i, "x"] for i in range(4_000)]),
        json.dumps([499] * 5_000),
    ]
    for schema, text in zip(hostile, texts, strict=True):
        start = time.process_time()
        Committer({"type": "json", "schema": schema}, thinking=False).feed(text)
        assert time.process_time() - start < 5


def test_json_equality():
    assert ANY.equal({"a": 1, "b": [1.0]}, {"b": [1], "a": 1.0})
    assert not ANY.equal([1], [True])
    assert FIELD.score("203", "203")
    assert FIELD.score(203, "203")
    assert ANY.score({"a": 1}, '{"a": 1}')
    assert not ANY.score(None, "x")


def test_specs_go_round():
    assert contract(FIELD.spec()) == FIELD
    assert hash(contract(FIELD.spec())) == hash(FIELD)


def test_agrees_with_json_on_real_outputs(records):
    made = contract(
        {"type": "json", "schema": {"type": "object", "required": ["reasoning", "answer"]}}
    )
    lenient = contract({**made.spec(), "lenient": True})
    rng = random.Random(0)
    sample = rng.sample(records("zeroeval_json_dev"), 300)
    agreed = broken = mended = 0
    for record in sample:
        text = record["output"]
        commit = check(made, text, rounds=1)
        head = text.lstrip().removeprefix("```").lstrip().removeprefix("json").lstrip()
        if not head.startswith("{"):
            continue
        begin = text.index("{")
        try:
            value, end = json.JSONDecoder().raw_decode(text, begin)
        except ValueError:
            broken += 1
            assert commit is None or text[: commit.position].count("\n{") > 0
            mended += Committer(lenient, thinking=False).feed(text) is not None
            continue
        agreed += 1
        if Draft202012Validator(made.schema).is_valid(value):
            assert commit is not None
            assert (commit.answer, commit.position) == (value, end)
    assert agreed > 100
    assert broken > 80
    assert mended > 0.75 * broken
