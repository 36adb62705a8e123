"""One protocol for every library: what each accepts, refuses, and how its refusal reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ValidationFailed
from penstock.state.events import insert
from penstock.state.schema import Collection
from penstock.state.validators import JsonSchema, Validator, validator_for
from tests.state.models import ADA, SCHEMAS, AttrsUser, DataclassUser, StructUser

BAD = [
    {"id": "ada", "years": -1},
    {"id": "ada", "years": "many"},
    {"id": "ada"},
    "ada",
    None,
    [],
]


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_good_value_becomes_the_librarys_own(name: str) -> None:
    schema, expected = SCHEMAS[name]
    validator = validator_for(schema)
    assert isinstance(validator, Validator)
    assert validator.load(json.dumps(ADA).encode()) == expected
    assert json.loads(validator.dump(ADA)) == ADA


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name != "function"])
def test_the_librarys_own_value_is_written_as_its_json(name: str) -> None:
    schema, value = SCHEMAS[name]
    assert json.loads(validator_for(schema).dump(value)) == ADA


@pytest.mark.parametrize("value", BAD, ids=json.dumps)
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_bad_value_is_one_kind_of_error(name: str, value: Any) -> None:
    users = Collection[Any](type="user", schema=SCHEMAS[name][0])
    with pytest.raises(ValidationFailed) as caught:
        users.load(insert("user", "ada", value))
    error = caught.value
    assert (error.status, error.code) == (422, "validation-failed")
    assert error.detail.startswith("user 'ada': value")
    assert (error.field or "").startswith("value")
    assert error.__cause__ is not None
    assert error.rule
    with pytest.raises(ValidationFailed):
        users.insert(value, key="ada")


@pytest.mark.parametrize(
    ("name", "rule"),
    [("pydantic", "greater_than_equal"), ("json schema", "minimum"), ("msgspec", "type")],
)
def test_errors_name_the_path_and_the_rule(name: str, rule: str) -> None:
    users = Collection[Any](type="user", schema=SCHEMAS[name][0])
    with pytest.raises(ValidationFailed) as caught:
        users.load(insert("user", "ada", {"id": "ada", "years": -1}))
    assert (caught.value.field, caught.value.rule) == ("value.years", rule)


@pytest.mark.parametrize(
    ("schema", "value", "field"),
    [
        ({"items": {"properties": {"a": {"type": "string"}}}}, [{}, {"a": 1}], "value[1].a"),
        (dict[str, list[int]], {"x": [1, "2"]}, "value[...][1]"),
        (list[StructUser], [{"id": 1, "years": 1}], "value[0].id"),
    ],
)
def test_paths_reach_into_arrays(schema: Any, value: Any, field: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        Collection[Any](type="t", schema=schema).load(insert("t", "k", value))
    assert caught.value.field == field


def test_pydantic_says_how_much_else_is_wrong() -> None:
    users = Collection[Any](type="user", schema=SCHEMAS["pydantic"][0])
    with pytest.raises(ValidationFailed, match="and 1 more"):
        users.load(insert("user", "ada", {}))


def test_an_instance_that_was_spoiled_later_is_refused() -> None:
    for value in (StructUser("ada", 1), DataclassUser("ada", 1)):
        value.years = -5
        with pytest.raises(ValidationFailed):
            Collection[Any](type="user", schema=type(value)).insert(value, key="ada")
    ada = SCHEMAS["pydantic"][1].model_copy(update={"age": "x"})
    with pytest.raises(ValidationFailed):
        Collection[Any](type="user", schema=type(ada)).insert(ada, key="ada")
    spoiled = AttrsUser("ada", 1)
    object.__setattr__(spoiled, "years", -5)
    with pytest.raises(ValidationFailed):
        Collection[Any](type="user", schema=AttrsUser).insert(spoiled, key="ada")


@pytest.mark.parametrize("value", [False, True])
def test_a_function_may_return_booleans_that_are_values(value: bool) -> None:
    raw = json.dumps(value).encode()
    assert validator_for(lambda same: same).load(raw) is value


def test_builtin_types_are_schemas() -> None:
    assert validator_for(str).load(b'"x"') == "x"
    with pytest.raises(ValidationFailed):
        Collection[str](type="config", schema=str).insert(5, key="theme")


def test_a_class_of_ones_own_is_called_with_the_value() -> None:
    class Wrapped:
        def __init__(self, value: Any) -> None:
            self.value = value["a"]

    assert validator_for(Wrapped).load(b'{"a":1}').value == 1


@pytest.mark.parametrize("thing", [5, "text", None, [1]])
def test_what_cannot_check_is_refused_at_once(thing: Any) -> None:
    with pytest.raises(TypeError, match="cannot check"):
        validator_for(thing)


# JSON Schema


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"type": "strin"}, "at /type"),
        ({"properties": 5}, "at /properties"),
        ({"pattern": "("}, "pattern"),
        ({"pattern": "(?=x)x"}, "pattern"),  # needs backtracking, which can hang
        ({"$ref": "#/$defs/missing"}, ""),
        ({"$schema": "https://example.com/unknown"}, ""),
    ],
)
def test_a_document_that_is_no_schema_is_refused_at_once(document: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"usable JSON Schema.*{words}"):
        JsonSchema(document)


def test_references_never_leave_the_document(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"type": "string"}')
    for reference in (other.as_uri(), "http://127.0.0.1:9/x.json", "other.json"):
        with pytest.raises(ValueError, match="usable JSON Schema"):
            JsonSchema({"$ref": reference})


def test_references_inside_the_document_and_recursion_work() -> None:
    tree = JsonSchema({
        "$ref": "#/$defs/node",
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    })  # fmt: skip
    tree.load(b'{"next":{"next":{}}}')
    with pytest.raises(ValueError):
        tree.load(b'{"next":{"next":1}}')


def test_patterns_take_linear_time() -> None:
    schema = JsonSchema({"pattern": "^(a+)+$"})
    with pytest.raises(ValueError):
        schema.load(b'"' + b"a" * 5000 + b'!"')


def test_formats_are_checked_and_drafts_are_told_apart() -> None:
    with pytest.raises(ValueError):
        JsonSchema({"format": "date-time"}).load(b'"yesterday"')
    draft4 = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1,
              "exclusiveMinimum": True}  # fmt: skip
    with pytest.raises(ValueError):
        JsonSchema(draft4).load(b"1")


def test_true_and_false_are_schemas() -> None:
    assert validator_for(True).load(b"1") == 1
    with pytest.raises(ValueError):
        validator_for(False).load(b"1")


def test_long_messages_are_cut() -> None:
    collection = Collection[Any](type="t", schema={"enum": [1]})
    with pytest.raises(ValidationFailed) as caught:
        collection.load(insert("t", "k", "x" * 10_000))
    assert len(caught.value.detail) < 500
