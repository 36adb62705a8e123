"""state and schema as processes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers.cli import Cli

DOCUMENT = {"types": {"user": {"schema": {"type": "object", "required": ["name"]}}}}


def event(key: str, value: object, operation: str = "upsert") -> dict[str, object]:
    return {"type": "user", "key": key, "value": value, "headers": {"operation": operation}}


def test_a_stream_is_declared_checked_and_shown(cli: Cli) -> None:
    cli.make("team")
    assert cli.failed("schema", "get", "team")[0] == 3
    (cli.folder / "team.json").write_text(json.dumps(DOCUMENT))
    assert cli.ok("schema", "set", "team", "team.json") == "version 1 of team, mode reject\n"
    assert json.loads(cli.ok("schema", "get", "team"))["types"] == DOCUMENT["types"]
    code, error = cli.failed("append", "team", json.dumps(event("1", {})))
    assert (code, "name" in error) == (1, True)
    code, error = cli.failed("schema", "set", "team", "-", stdin=b'{"types": {"a": {}}}')
    assert (code, "types.a" in error) == (1, True)

    lines = "\n".join(json.dumps(event(str(n), {"name": n} if n else 1)) for n in range(3))
    done = cli.run("schema", "check", "team", "-", stdin=lines.encode())
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].startswith("0: user '0': value: 1 is not of type")
    assert "(/value, type)" in done.stdout
    assert done.stdout.splitlines()[1] == "3 events, 1 invalid"
    assert cli.ok("schema", "check", "team") == "0 events, 0 invalid\n"


def test_state_is_shown_as_it_is_and_as_it_was(cli: Cli) -> None:
    stream = cli.make("people", event("1", {"name": "Ann"}), event("2", {"name": "Bob"}))
    before = stream.head().offset
    delete = {"type": "user", "key": "2", "headers": {"operation": "delete"}}
    stream.append_many([event("1", {"name": "Anna"}), delete, event("3", {"name": "Cy"})])

    assert cli.ok("state", "get", "people", "user", "1") == '{"name":"Anna"}\n'
    assert cli.ok("state", "get", "people", "user", "1", "--at", before) == '{"name":"Ann"}\n'
    whole = {"type": "user", "key": "1", "value": {"name": "Ann"}, "offset": before}
    assert cli.json("state", "get", "people", "user", "1", "--at", before) == whole
    assert (
        cli.ok("state", "show", "people", "--at", "2100-01-01T00:00:00Z", "--json").count("\n") == 2
    )
    assert cli.ok("state", "show", "people", "--at", "2001-01-01T00:00:00Z") == ""
    code, error = cli.failed("state", "get", "people", "user", "2")
    assert (code, "There is no user '2'" in error) == (3, True)
    assert cli.ok("state", "show", "people").splitlines() == [
        "TYPE  KEY  VALUE",
        'user  1    {"name":"Anna"}',
        'user  3    {"name":"Cy"}',
    ]
    shown = cli.ok("state", "show", "people", "user", "--prefix", "3", "--json")
    assert json.loads(shown) == {"type": "user", "key": "3", "value": {"name": "Cy"}}
    assert cli.ok("state", "diff", "people", before).splitlines() == [
        '~ user 1  {"name":"Ann"} -> {"name":"Anna"}',
        '- user 2  {"name":"Bob"}',
        '+ user 3  {"name":"Cy"}',
    ]
    steps = cli.ok("state", "history", "people", "user", "2", "--json").splitlines()
    assert [json.loads(step)["operation"] for step in steps] == ["upsert", "delete"]
    assert "delete" in cli.ok("state", "history", "people", "user", "2").splitlines()[2]
    assert cli.failed("state", "show", "nothing")[0] == 3


def test_a_declaration_is_taken_back(cli: Cli) -> None:
    cli.make("loose")
    document = json.dumps(DOCUMENT).encode()
    cli.ok("schema", "set", "loose", "-", stdin=document)
    assert cli.ok("schema", "rm", "loose") == "undeclared loose\n"
    cli.ok("append", "loose", '{"any": "thing"}')
    code, error = cli.failed("schema", "rm", "loose")
    assert (code, "not declared" in error) == (3, True)
    assert cli.failed("schema", "rm", "absent")[0] == 3


def test_the_state_takes_the_place_of_the_history(cli: Cli) -> None:
    cli.make("visits")
    code, error = cli.failed("compact", "visits")
    assert (code, "declare it" in error) == (4, True)
    cli.ok("schema", "set", "visits", "-", stdin=b'{"types": {}}')
    for number in range(3):
        cli.ok("append", "visits", json.dumps(event("1", number)))
    tail = cli.json("head", "visits")["offset"]
    assert cli.ok("compact", "visits") == f"visits starts at {tail}\n"
    rows = [json.loads(line) for line in cli.ok("read", "visits").splitlines()]
    assert rows[1] == event("1", 2, "insert")
    assert [row["headers"].get("control") for row in rows] == [
        "snapshot-start",
        None,
        "snapshot-end",
    ]
    assert cli.json("compact", "visits")["earliest"] > tail


def test_the_schema_commands_show_and_check_restrictions(cli: Cli, tmp_path: Path) -> None:
    cli.make("restricted")
    document = tmp_path / "declaration.json"
    types = {"user": {"schema": {}, "key_pattern": "user:[0-9]+"}}
    document.write_text(json.dumps({"types": types, "unknown_types": "refuse"}))
    done = cli.ok("schema", "set", "restricted", document)
    assert done == "version 1 of restricted, mode reject, unknown types refused\n"
    shown = json.loads(cli.ok("schema", "get", "restricted"))
    assert (shown["unknown_types"], shown["types"]) == ("refuse", types)
    invalid = [
        {"type": type, "key": "x", "value": 1, "headers": {"operation": "insert"}}
        for type in ("role", "user")
    ]
    stdin = "\n".join(map(json.dumps, invalid)).encode()
    checked = cli.run("schema", "check", "restricted", "-", stdin=stdin)
    assert checked.returncode == 1
    assert "(/type, unknown-type)" in checked.stdout
    assert "(/key, pattern)" in checked.stdout
    code, error = cli.failed("append", "restricted", json.dumps(invalid[0]))
    assert (code, "'role'" in error) == (1, True)


def test_a_stream_without_events_has_no_state(cli: Cli) -> None:
    cli.make("orders-plain", {"id": 1}, 2, "three")
    for command in (
        ("show", "orders-plain"),
        ("show", "orders-plain", "user", "--json"),
        ("get", "orders-plain", "user", "1"),
        ("history", "orders-plain", "user", "1"),
        ("diff", "orders-plain", "start"),
    ):
        code, error = cli.failed("state", *command)
        assert (code, "none of its messages is a state event" in error) == (4, True)
        assert "penstock read orders-plain" in error
    cli.make("orders-text", b"x", content_type="text/plain")
    code, error = cli.failed("state", "show", "orders-text")
    assert (code, "text/plain" in error) == (4, True)


def test_an_empty_state_is_no_error_and_says_that_it_is_empty(cli: Cli) -> None:
    cli.make("fresh")
    done = cli.run("state", "show", "fresh")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "There are no entities in the state of fresh.\n"
    cli.make("few", event("1", 1))
    done = cli.run("state", "show", "few", "usr", "--json")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "No entity matches in the state of few.\n"
    code, error = cli.failed("state", "history", "few", "user", "2")
    assert (code, "no user '2'" in error) == (3, True)


def test_values_are_printed_with_all_their_digits(cli: Cli) -> None:
    stream = cli.make("digits")
    digits = "7" * 999
    message = json.dumps(event("1", 0)).replace('"value": 0', f'"value": [1e999, {digits}]')
    stream.append(message.encode())
    assert cli.ok("state", "get", "digits", "user", "1") == f"[1e999,{digits}]\n"
    shown = cli.ok("state", "show", "digits", "--json")
    assert shown == f'{{"type":"user","key":"1","value":[1e999,{digits}]}}\n'
    steps = cli.ok("state", "history", "digits", "user", "1", "--json")
    assert f'"value":[1e999,{digits}]' in steps
