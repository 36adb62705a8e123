"""`penstock read` of a part of a stream, aliases, delimiters, and `append` of keyed lines."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.cli.formats import Message, compile_format
from penstock.cli.values import Moment
from penstock.state import insert
from tests.helpers.cli import Cli


def run(cli: Cli, *arguments: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
    """A command in this process, which is faster than one of its own."""
    result = CliRunner().invoke(main, arguments, input=stdin, env=cli.env)
    return result.exit_code, result.stdout_bytes, result.stderr


def ok(cli: Cli, *arguments: str) -> str:
    code, output, error = run(cli, *arguments)
    assert code == 0, error
    return output.decode()


def later() -> int:
    """A millisecond that is over when this returns, and after all before it."""
    moment = time.time_ns() // 1_000_000 + 2
    while time.time_ns() // 1_000_000 <= moment:
        pass
    return moment


@pytest.fixture
def dated(cli: Cli) -> Iterator[tuple[str, int]]:
    """A stream with two messages, a moment, and two more; and another stream of that time."""
    streams = [cli.make("dated/a", 0, 1)]
    moment = later()
    streams[0].append_many([2, 3])
    streams.append(cli.make("dated/b", 7))
    yield "dated/a", moment
    for stream in streams:
        stream.delete()


def test_since_and_until_are_times(cli: Cli, dated: tuple[str, int]) -> None:
    name, moment = dated
    instant = datetime.fromtimestamp(moment / 1000, UTC).isoformat()
    assert ok(cli, "read", name, "--since", instant) == "2\n3\n"
    assert ok(cli, "read", name, "--until", str(moment)) == "0\n1\n"
    assert ok(cli, "read", name, "--since", "1h") == "0\n1\n2\n3\n"
    assert ok(cli, "read", name, "--since", "1h", "--until", instant, "-c", "1") == "0\n"
    assert ok(cli, "read", name, "--until", "yesterday") == ""


def test_the_last_messages_come_from_the_server(cli: Cli, dated: tuple[str, int]) -> None:
    name, _ = dated
    assert ok(cli, "read", name, "-n", "2") == "2\n3\n"
    assert ok(cli, "read", name, "-n", "9", "-c", "1") == "0\n"
    cli.make("dated.txt", "a\nb\nc", content_type="text/plain")
    assert ok(cli, "read", "dated.txt", "-n", "2") == "b\nc\n"
    cli.make("dated.bin", b"a\nb\nc", content_type="application/octet-stream")
    assert ok(cli, "read", "dated.bin", "-n", "2") == "b\nc\n", "its lines are counted here"


def test_several_streams_are_selected_from_too(cli: Cli, dated: tuple[str, int]) -> None:
    _, moment = dated
    assert ok(cli, "read", "dated/*", "-n", "1") == "dated/a: 3\ndated/b: 7\n"
    assert ok(cli, "read", "dated/b", "dated/*", "--since", str(moment)) == (
        "dated/b: 7\ndated/a: 2\ndated/a: 3\n"
    )
    assert ok(cli, "read", "dated/*", "--until", str(moment)) == "dated/a: 0\ndated/a: 1\n"


def test_following_several_streams_starts_there(cli: Cli, dated: tuple[str, int]) -> None:
    cli.client.stream("dated/a").close()
    cli.client.stream("dated/b").close()
    lines = ok(cli, "read", "-f", "dated/a", "dated/b", "-n", "1", "-c", "2").splitlines()
    assert sorted(lines) == ["dated/a: 3", "dated/b: 7"]


EVENTS: list[Any] = [
    insert("user", "1", {"name": "Ada"}, timestamp="2026-01-02T03:04:05Z"),
    insert("order", "1", 5),
    insert("user", "2", {"name": "Bob"}),
]


def test_types_and_keys_are_selected_by_the_server(cli: Cli) -> None:
    cli.make("selected/team", *EVENTS)
    assert [
        json.loads(line)["key"]
        for line in ok(cli, "read", "selected/team", "--type", "user").split()
    ] == ["1", "2"]
    pattern = r"%y/%k %T\n"
    assert ok(cli, "read", "selected/team", "--key", "1", "--format", pattern) == (
        "user/1 2026-01-02T03:04:05Z\norder/1 \n"
    )
    last = ok(cli, "read", "selected/team", "--type", "user", "-n", "1", "--format", "%k")
    assert last == "2", "the last one that matches"


def test_a_delimiter_ends_each_message(cli: Cli) -> None:
    cli.make("selected/lines", 1, [2])
    assert run(cli, "read", "selected/lines", "-D", r"\0")[1] == b"1\0[2]\0"
    code, shown, _ = run(cli, "read", "selected/lines", "--json", "--delimiter", "--\\n")
    assert (code, shown.count(b"--\n")) == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a", "--since", "soon"), "'soon' is not a time such as 2h"),
        (("a", "--since", "1h", "--until", "2h"), "--until is before --since"),
        (("a", "--since", "1h", "-n", "1"), "--since and --tail each say where to start"),
        (("a", "-o", "end", "--since", "1h"), "--offset and --since each say where to start"),
        (("a", "-f", "--until", "1h"), "--until ends a read"),
        (("a", "-n", "1", "--checkpoint", "x"), "--tail cannot be used with --checkpoint"),
        (("a", "b", "-f", "--key", "x"), "follow one stream"),
        (("a", "-D", ""), "it is empty"),
        (("a", "-D", "\\q"), "is not an escape sequence"),
        (("a", "-D", "x", "--format", "%s"), "--format cannot be used"),
        (("no", "--since", "1h"), "There is no stream no"),
        (("no", "--until", "1h"), "There is no stream no"),
        (("no", "-n", "3"), "There is no stream no"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    cli: Cli, arguments: tuple[str, ...], words: str
) -> None:
    code, _, error = run(cli, "read", *arguments)
    assert code != 0
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-01T10:00Z", "2026-11-01T10:00:00+00:00"),
        ("2026-11-01T10:00:00.5+02:00", "2026-11-01T08:00:00.500000+00:00"),
        ("1700000000000", "2023-11-14T22:13:20+00:00"),
    ],
)
def test_times_as_people_write_them(text: str, expected: str) -> None:
    moment = Moment().convert(text, None, None)
    assert datetime.fromtimestamp(moment / 1000, UTC).isoformat() == expected


def test_ages_and_days(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time() * 1000
    convert = Moment().convert
    for text, age_s in (("90s", 90), ("2h", 7200), ("1d12h", 129_600), ("1w", 604_800)):
        assert abs(now - age_s * 1000 - convert(text, None, None)) < 60_000
    monkeypatch.setitem(os.environ, "TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert convert("2026-11-01", None, None) == 1_793_458_800_000
        assert convert("today", None, None) - convert("yesterday", None, None) == 86_400_000
        assert convert("today", None, None) <= now
    finally:
        monkeypatch.undo()
        time.tzset()


def test_fields_of_what_is_no_event_are_empty() -> None:
    write = compile_format("[%k%y%T]")
    for data in (b"1", b'"x"', b"{", b'{"key":1,"headers":[]}', b"\xff"):
        assert write(Message("a", data, "", "", 0)) == b"[]"


# -- aliases


def test_aliases_are_other_names_of_commands(cli: Cli, dated: tuple[str, int]) -> None:
    name, _ = dated
    assert ok(cli, "cat", name) == "0\n1\n2\n3\n"
    stream = cli.make("selected/long", *range(20))
    stream.close()
    assert ok(cli, "tail", "selected/long").split() == [str(n) for n in range(10, 20)]
    assert ok(cli, "tail", "selected/long", "-n", "2") == "18\n19\n"
    assert "dated/a\n" in ok(cli, "list", "dated/")
    overview = ok(cli, "--help")
    assert "read --follow --tail 10" in overview


def test_aliases_are_completed(cli: Cli) -> None:
    env = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": "penstock ta", "COMP_CWORD": "1"}
    result = CliRunner().invoke(main, [], env={**cli.env, **env}, prog_name="penstock")
    assert {"plain,tail", "plain,table"} <= set(result.stdout.split())


# -- appends


def test_lines_with_another_end(cli: Cli) -> None:
    cli.make("files")
    cli.ok("append", "files", "--text", "-D", r"\0", stdin=b"a\nb\0c\0")
    assert cli.client.stream("files").read_json() == ["a\nb", "c"]
    cli.make("files.txt", content_type="text/plain")
    cli.ok("append", "files.txt", "-D", "||", stdin=b"a|b||c")
    assert cli.client.stream("files.txt").read_text() == "a|b||c||"


def test_keyed_lines_are_change_events(cli: Cli) -> None:
    cli.make("keyed")
    stdin = '7:{"name": "Ada"}\n\nключ:1\n7:\n'.encode()
    cli.ok("append", "keyed", "--type", "user", "-K", ":", stdin=stdin)
    events = cli.client.stream("keyed").read_json(types="user")
    assert [(e["key"], e["headers"]["operation"], e.get("value")) for e in events] == [
        ("7", "upsert", {"name": "Ada"}),
        ("ключ", "upsert", 1),
        ("7", "delete", None),
    ]
    code, _, error = run(cli, "append", "keyed", "no key", "--type", "user", "-K", ":")
    assert code != 0
    assert "Value 1 has no key" in error
    for arguments in (("--type", "user"), ("-K", ":"), ("--type", "", "-K", ":")):
        assert run(cli, "append", "keyed", "a:1", *arguments)[0] == 2
    run(cli, "append", "keyed", "8:some text", "--type", "note", "-K", ":", "--text")
    assert cli.client.stream("keyed").read_json(types="note")[0]["value"] == "some text"
