"""Tables that are damaged or out of reach: one line that names the place and says what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.errors import WarehouseBroken
from penstock.spark.error_text import storage_message
from penstock.spark.warehouse.warehouse import Warehouse
from tests.spark.warehouse_bench import USER, WarehouseBench, put

SCHEMA = '[types.user]\nschema = "name STRING, age INT"\n'


def log(folder: Path) -> list[Path]:
    return sorted((folder / "_delta_log").glob("*.json"))


def cut_short(path: Path) -> None:
    log(path / "events")[-1].write_text("{not")


def lose_an_entry(path: Path) -> None:
    log(path / "events")[1].unlink()


def lose_files(path: Path) -> None:
    for file in (path / "state" / "user").glob("*.parquet"):
        file.unlink()


def spoil_files(path: Path) -> None:
    for file in (path / "events").glob("*.parquet"):
        file.write_bytes(b"PAR1")


def spoil_the_state(path: Path) -> None:
    log(path / "state" / "user")[-1].write_text("{not")


def no_folder(path: Path) -> None:
    shutil.rmtree(path / "events")
    (path / "events").write_text("a file")


@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (cut_short, "events cannot be read or written: Kernel error: Json error"),
        (lose_an_entry, "restore it from a copy"),
        (lose_files, "else restore the file from a copy"),
        (spoil_files, "too small to be a Parquet file"),
        (spoil_the_state, "or delete it: the next run rebuilds it from events"),
        (no_folder, "Check the path"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_in_a_line(
    tmp_path: Path, damage: Callable[[Path], None], wanted: str
) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    bench.batch(put("a", '{"name":"Ada"}'))
    bench.fold()
    bench.batch(put("b", '{"name":"Bob"}'))
    bench.duck.close()
    bench.warehouse.close()
    damage(bench.path)
    file = tmp_path / "pipeline.toml"
    file.write_text(
        '[source]\nurl = "http://127.0.0.1:9"\nstreams = ["s"]\n[warehouse]\npath = "warehouse"\n'
        + SCHEMA
    )
    done = CliRunner().invoke(main, ["pipeline", "show", str(file), "user"])
    assert done.exit_code != 0
    assert wanted in done.output
    assert str(bench.path) in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_an_object_store_that_does_not_answer_is_said_in_a_line() -> None:
    options = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "max_retries": "0",
    }
    with pytest.raises(
        WarehouseBroken, match=r"s3://bucket/w/events cannot be .* refused"
    ) as error:
        Warehouse("s3://bucket/w", options).need()
    assert "\n" not in error.value.detail
    assert "hidden" not in error.value.detail


def test_long_words_of_others_are_cut_in_the_middle() -> None:
    message = storage_message(
        "first\n  \x1b[31m↳\x1b[0m " + "wrapped " * 500 + "\n   0: <stack>\nlast"
    )
    assert message.startswith("first wrapped")
    assert message.endswith("last")
    assert "stack" not in message
    assert len(message) < 450
