"""`penstock table` and `penstock notify`, as processes against a server process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

import pytest

from penstock.stp import Table
from tests.helpers.cli import Cli, interrupt, read_line
from tests.stp.naive import Line, NaiveTable, naive_server

TIME = "2026-01-08T00:00:00Z"


@pytest.fixture
def table(cli: Cli, request: pytest.FixtureRequest) -> Table:
    """A table with three rows, two of them of a key that has gone."""
    table = Table(cli.client, f"table/{request.node.name}")
    table.create("endpoint_manifest")
    table.write([("+", "fhir_read", "https://a.example/r"), ("+", "old", "x y"), ("-", "old")])
    return table


def name_of(table: Table) -> str:
    return table.url.split("/v1/table/")[1]


def columns_of(text: str) -> list[list[str]]:
    """The rows without their time, which is another in every run."""
    return [line.split("\t")[:1] + line.split("\t")[2:] for line in text.splitlines()]


ROWS = [
    ["1", "+", "fhir_read", "https://a.example/r"],
    ["2", "+", "old", "x y"],
    ["3", "-", "old", ""],
]


def test_create_declares_a_table(cli: Cli) -> None:
    table = cli.json("table", "create", "made/by_hand", "--version", 3)
    assert table["created"] is True
    assert (table["schema"], table["version"]) == ("by_hand", 3)
    head = Table(cli.client, "made/by_hand").head()
    assert (head.schema, head.version, head.last_seqno) == ("by_hand", 3, 0)
    again = ("table", "create", "made/by_hand", "--version", 3)
    assert cli.failed(*again)[0] == 4
    assert "already exists: made/by_hand" in cli.ok(*again, "--exist-ok")
    code, error = cli.failed("table", "create", "made/by_hand", "--schema", "other", "--exist-ok")
    assert (code, error.count("\n")) == (4, 1)


def test_put_and_rm_say_which_seqno_they_got(cli: Cli, table: Table) -> None:
    name = name_of(table)
    assert cli.json("table", "put", name, "direct", "https://a.example/d") == {"seqno": 4}
    done = cli.run("table", "put", name, "note", stdin=b"from stdin\n")
    assert (done.stdout, done.stderr) == ("", "SeqNo 5\n")
    assert cli.json("table", "rm", name, "direct", "fhir_read") == {"seqno": 7}
    assert dict(table.state()) == {"note": "from stdin"}


def test_put_takes_changes_from_stdin_all_or_none(cli: Cli, table: Table) -> None:
    name = name_of(table)
    assert cli.json("table", "put", name, stdin=b"+\ta\t1\n-\tfhir_read\n") == {"seqno": 5}
    code, error = cli.failed("table", "put", name, stdin=b"+\tb\t1\nwrong\n")
    assert (code, "Row 1" in error) == (1, True)
    assert (
        cli.failed("table", "put", name)[1] == "Error: There is nothing to write: stdin is empty.\n"
    )
    assert dict(table.state()) == {"a": "1"}


def test_read_prints_the_rows_as_they_are_on_the_wire(cli: Cli, table: Table) -> None:
    name = name_of(table)
    assert columns_of(cli.ok("table", "read", name)) == ROWS
    assert columns_of(cli.ok("table", "read", name, "--since", 2)) == ROWS[2:]
    assert columns_of(cli.ok("table", "read", name, "--since", -2)) == ROWS[1:]
    assert columns_of(cli.ok("table", "read", name, "--count", 1)) == ROWS[:1]
    assert columns_of(cli.ok("table", "tail", name, "-n", 1)) == ROWS[2:]
    first = json.loads(cli.ok("table", "read", name, "--json").splitlines()[0])
    assert list(first) == ["seqno", "timestamp", "action", "key", "record"]
    assert (first["seqno"], first["key"]) == (1, "fhir_read")


def test_what_is_read_can_be_written_again(cli: Cli) -> None:
    escaped = Table(cli.client, "table/escaped")
    escaped.create("s", escape=True)
    escaped.put("tab\tkey", "line\nend \\ \r")
    shown = cli.ok("table", "read", "table/escaped")
    assert columns_of(shown) == [["1", "+", "tab\\tkey", "line\\nend \\\\ \\r"]]
    changes = "".join(line.split("\t", 2)[2] + "\n" for line in shown.splitlines())
    assert cli.json("table", "put", "table/escaped", stdin=changes.encode()) == {"seqno": 2}
    assert dict(escaped.state()) == {"tab\tkey": "line\nend \\ \r"}


def test_state_shows_the_records_by_key(cli: Cli, table: Table) -> None:
    name = name_of(table)
    table.put("z", "last")
    assert cli.ok("table", "state", name).splitlines() == [
        "KEY        SEQNO  RECORD",
        "fhir_read  1      https://a.example/r",
        "z          4      last",
    ]
    assert cli.ok("table", "state", name, "z") == "last\n"
    records = [json.loads(line) for line in cli.ok("table", "state", name, "--json").splitlines()]
    assert [(each["key"], each["record"], each["seqno"]) for each in records] == [
        ("fhir_read", "https://a.example/r", 1),
        ("z", "last", 4),
    ]
    code, error = cli.failed("table", "state", name, "old")
    assert (code, "There is no key 'old'" in error) == (3, True)


def test_follow_goes_on_with_what_comes(cli: Cli, table: Table) -> None:
    name = name_of(table)
    with cli.start("table", "follow", name, "--since", 2) as process:
        assert columns_of(read_line(process)) == ROWS[2:]
        table.put("new", "1")
        assert columns_of(read_line(process)) == [["4", "+", "new", "1"]]
        assert interrupt(process) == (130, "")
    with cli.start("table", "tail", name, "-n", 1, "-f") as process:
        assert columns_of(read_line(process)) == [["4", "+", "new", "1"]]
        table.put("new", "2")
        assert columns_of(read_line(process)) == [["5", "+", "new", "2"]]
    assert columns_of(cli.ok("table", "follow", name, "--count", 1)) == ROWS[:1]


def test_follow_goes_on_where_its_checkpoint_is(cli: Cli, table: Table) -> None:
    name, place = name_of(table), cli.folder / "place"
    with cli.start("table", "follow", name, "--checkpoint", place) as process:
        assert [columns_of(read_line(process))[0] for _ in ROWS] == ROWS
        table.put("more", "1")
        read_line(process)  # the rows before it are processed, and their SeqNo is stored
    table.put("more", "2")
    with cli.start("table", "follow", name, "--checkpoint", place) as process:
        line = columns_of(read_line(process))[0]
        assert line in (["4", "+", "more", "1"], ["5", "+", "more", "2"])


def test_a_terminal_gets_columns_without_control_characters(cli: Cli, table: Table) -> None:
    table.put("escape", "\x1b[31mred")
    with cli.terminal("table", "tail", name_of(table), "-n", 2) as terminal:
        code, shown = terminal.end()
    assert code == 0
    assert "\t" not in shown
    assert "\N{REPLACEMENT CHARACTER}[31mred" in shown
    assert "-  old" in shown


@pytest.mark.parametrize("arguments", [["read"], ["tail"], ["follow"], ["state"], ["rm", "key"]])
def test_an_absent_table_is_one_line_and_code_3(cli: Cli, arguments: list[str]) -> None:
    verb, *rest = arguments
    code, error = cli.failed("table", verb, "table/nowhere", *rest)
    assert (code, error.count("\n")) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["put", "{}", "tab\tkey", "v"], 1),
        (["put", "{}", "key", "line\nend"], 1),
        (["put", "{}", "", "v"], 1),
        (["follow", "{}", "--count", "1", "--checkpoint", "x"], 2),
        (["read", "{}", "--since", "abc"], 2),
        (["tail", "{}", "-n", "0"], 2),
        (["rm", "{}"], 2),
    ],
)
def test_mistakes_are_told_in_words(
    cli: Cli, table: Table, arguments: list[str], code: int
) -> None:
    done = cli.run("table", *[part.format(name_of(table)) for part in arguments])
    assert done.returncode == code
    assert done.stderr
    assert len(table.read()) == 3


class Other(NaiveTable):
    """A server that knows nothing of Penstock."""

    rows: ClassVar[list[Line]] = [(4, TIME, "+", "a", "1"), (7, TIME, "+", "b", "tab\there")]
    notified: ClassVar[list[dict[str, list[str]]]] = []


@pytest.fixture
def other() -> Iterator[str]:
    Other.notified.clear()
    with naive_server(Other) as url:
        yield url


def test_tables_of_any_stp_server_are_named_by_their_url(cli: Cli, other: str) -> None:
    assert cli.ok("table", "read", other) == f"4\t{TIME}\t+\ta\t1\n7\t{TIME}\t+\tb\ttab\there\n"
    assert cli.ok("table", "state", other, "a") == "1\n"
    assert cli.ok("table", "follow", other, "--count", 2, "--json").count("\n") == 2


def test_notify_sends_a_form(cli: Cli, other: str) -> None:
    surl = "https://me.example/v1/table/t"
    callback = "match=https://me.example/v1/notify/match"
    assert cli.ok("notify", other, "--surl", surl, callback) == f"notified {other}\n"
    cli.ok("notify", other, callback)
    match = ["https://me.example/v1/notify/match"]
    assert Other.notified == [{"surl": [surl], "match": match}, {"match": match}]


def test_notify_says_what_a_penstock_server_made_of_it(cli: Cli) -> None:
    stranger = "match=https://stranger.example/n"
    done = cli.run("notify", "hub", "--surl", "https://stranger.example/t", stranger)
    assert (done.returncode, done.stdout) == (0, "notified hub\n")
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        "The server ignored surl",
        "The server ignored match",
    ]
    assert set(cli.json("notify", "hub", stranger)["ignored"]) == {"match"}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--surl", "nowhere"],
        ["match"],
        ["Match=https://a.example"],
        ["a=b"],
        ["surl=https://a.example"],
    ],
)
def test_a_notify_that_means_nothing_is_not_sent(
    cli: Cli, other: str, arguments: list[str]
) -> None:
    code, error = cli.failed("notify", other, *arguments)
    assert (code, "Error: " in error) == (2, True)
    assert Other.notified == []
