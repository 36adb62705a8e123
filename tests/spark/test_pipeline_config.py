"""pipeline.toml: what is read, and how each mistake is named."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.errors import InvalidPipeline
from penstock.spark.config import load_pipeline, make_pipeline
from penstock.spark.ddl import parse_ddl
from penstock.spark.type_schema import type_schema

GOOD: dict[str, Any] = {
    "source": {"url": "http://127.0.0.1:4437/", "streams": ["shop/**"]},
    "warehouse": {"path": "./warehouse"},
    "types": {"user": {"schema": "id STRING, name STRING, city STRING"}},
    "publish": {"cities": {"sql": "SELECT 1 AS key", "to": "derived/cities"}},
}
EVERYTHING = (
    "id STRING NOT NULL COMMENT 'who', total DOUBLE, n INT, d DATE, t TIMESTAMP, "
    "money DECIMAL(5, 2), tags ARRAY<STRING>, m MAP<STRING, INT>, s STRUCT<a: INT, b: STRING>"
)
FITS = (
    '{"id":"x","total":1,"n":3,"d":"2024-01-02","t":"2024-01-02T03:04:05+02:00","money":"1.25",'
    '"tags":["a",null],"m":{"q":1},"s":{"a":1},"more":true}'
)


def test_paths_are_from_the_files_folder_and_the_token_may_come_from_outside(
    tmp_path: Path,
) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(
        """
        [source]
        url = "http://127.0.0.1:4437"
        streams = ["shop/**"]
        [warehouse]
        path = "./kept"
        [types.user]
        schema = "user.json"
        """
    )
    (tmp_path / "user.json").write_text(
        json.dumps({"properties": {"id": {"type": "string"}, "tags": {"type": "array"}}})
    )
    found = load_pipeline(file, {"PENSTOCK_TOKEN": "secret"})
    assert found.warehouse.path == str(tmp_path / "kept")
    assert found.warehouse.checkpoint == str(tmp_path / "kept" / "_checkpoint")
    assert found.source.token == "secret"
    assert [field.name for field in found.types["user"].fields] == ["id", "tags"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda given: given.pop("source"), "source is missing"),
        (lambda given: given["source"].pop("url"), "source.url is missing"),
        (lambda given: given["source"].update(url="shop"), "begin with http://"),
        (lambda given: given["source"].update(urls=1), "source.urls is not known"),
        (lambda given: given["source"].update(streams="a"), "source.streams: expected `array`"),
        (lambda given: given["types"]["user"].update(schema="id STRNG"), "types.user: The schema"),
        (lambda given: given["types"]["user"].update(schema="_id STRING"), "begin with _"),
        (lambda given: given["types"]["user"].update(schema="none.json"), "there is no file"),
        (lambda given: given["publish"]["cities"].pop("sql"), "either sql or function"),
        (
            lambda given: given["publish"]["cities"].update(to="table:"),
            "publish.cities.to is empty",
        ),
        (
            lambda given: given["publish"].update(two=given["publish"]["cities"]),
            "have the same `to`",
        ),
        (lambda given: given.update(pipeline={"fold_percent": 0}), "pipeline.fold_percent"),
    ],
)
def test_a_mistake_is_named_by_its_place(change: Callable[[Any], Any], words: str) -> None:
    given = copy.deepcopy(GOOD)
    make_pipeline(given)
    change(given)
    with pytest.raises(InvalidPipeline) as caught:
        make_pipeline(given)
    assert words in caught.value.detail


def test_validate_says_what_the_pipeline_does_or_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(
        '[source]\nurl = "http://x"\nstreams = ["a"]\n[warehouse]\npath = "w"\n'
        '[types.user]\nschema = "id STRING"\n'
    )
    good = CliRunner().invoke(main, ["pipeline", "validate", str(file)])
    assert good.exit_code == 0
    assert "user: id string" in good.output
    file.write_text("[source")
    bad = CliRunner().invoke(main, ["pipeline", "validate", str(file)])
    assert bad.exit_code == 1
    assert "is not TOML" in bad.stderr
    assert bad.stderr.count("\n") == 1


def test_a_column_list_is_read_as_spark_reads_it() -> None:
    fields = {field.name: field for field in parse_ddl(EVERYTHING + ", `odd name` BIGINT")}
    assert {name: str(field.type) for name, field in fields.items()} == {
        "id": "string",
        "total": "double",
        "n": "int32",
        "d": "date32[day]",
        "t": "timestamp[us, tz=UTC]",
        "money": "decimal128(5, 2)",
        "tags": "list<item: string>",
        "m": "map<string, int32>",
        "s": "struct<a: int32, b: string>",
        "odd name": "int64",
    }
    assert not fields["id"].nullable


@pytest.mark.parametrize(
    "text", ["", "id", "id STRING,", "id STRING name STRING", "m MAP<INT, INT>", "a INT, A INT"]
)
def test_what_is_no_column_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidPipeline):
        parse_ddl(text)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (FITS, None),
        ('{"id":1}', "value.id: Expected `str`, got `int`"),
        ("{}", "missing required field `id`"),
        ('{"id":"x","n":2147483648}', "value.n"),
        ('{"id":"x","money":12345.678}', "value: "),
        ('{"id":"x","t":"2024-01-02T03:04:05"}', "timezone"),
        ('{"id":"x","s":{"a":"z"}}', "value.s.a"),
        ("3", "Expected `object`"),
        ("null", "Expected `object`"),
    ],
)
def test_a_value_fits_its_columns_or_there_is_a_reason(value: str, reason: str | None) -> None:
    schema = pickle.loads(pickle.dumps(type_schema(EVERYTHING)))
    other, problem = schema.problems([FITS, value])
    assert other is None
    assert problem is None if reason is None else reason in (problem or "")


def test_values_become_columns_and_what_does_not_fit_is_null() -> None:
    schema = type_schema("id STRING NOT NULL, n INT, s STRUCT<a: INT>")
    columns = schema.columns(['{"id":"x","n":1,"s":{"a":2}}', None, '{"id":5,"n":7}', "[]"])
    assert [column.to_pylist() for column in columns] == [
        ["x", None, None, None],
        [1, None, 7, None],
        [{"a": 2}, None, None, None],
    ]


def test_a_json_schema_checks_all_it_says_and_gives_a_column_for_each_property() -> None:
    document = {
        "properties": {
            "mail": {"type": "string", "format": "email"},
            "n": {"type": ["integer", "null"]},
            "any": {"type": "object"},
        },
        "required": ["mail"],
    }
    schema = type_schema(document)
    good = '{"mail":"a@b.c","n":null,"any":{"q":1}}'
    assert schema.problems([good]) == [None]
    assert all(schema.problems(['{"mail":"a"}', "{}", '{"mail":"a@b.c","n":"1"}']))
    assert [column.to_pylist() for column in schema.columns([good])] == [
        ["a@b.c"],
        [None],
        ['{"q":1}'],
    ]
    assert schema.version != type_schema({**document, "required": []}).version
