"""create, append, read, head, ls, close and rm as processes, one question after the other."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.helpers.cli import Cli, read_line
from tests.helpers.server import running_server


def test_the_life_of_a_json_stream(cli: Cli) -> None:
    assert cli.ok("create", "life/a") == "created life/a (application/json)\n"
    code, error = cli.failed("create", "life/a")
    assert (code, "exists already" in error) == (4, True)
    assert cli.json("create", "life/a", "--exist-ok")["created"] is False

    summary = json.loads(cli.ok("append", "life/a", '{"id": 1}', "[2, 3]", "--summary"))
    assert summary["appended"] == 2
    assert cli.ok("append", "life/a", stdin=b'"three"\n\n4.50') == ""

    # A list is one message, blank lines are none, and what is read is what was written.
    everything = '{"id": 1}\n[2, 3]\n"three"\n4.50\n'
    assert cli.ok("read", "life/a") == everything
    assert cli.ok("read", "life/a", "--offset", summary["offset"]) == '"three"\n4.50\n'
    assert cli.ok("read", "life/a", "--tail", "0") == ""
    assert cli.ok("read", "life/a", "--tail", "3", "--count", "1") == "[2, 3]\n"

    head = cli.json("head", "life/a")
    assert (head["content_type"], head["closed"]) == ("application/json", False)
    assert head["offset"] in cli.ok("head", "life/a")

    closed = cli.json("close", "life/a", '"end"')
    assert closed["closed"] is True
    assert cli.failed("append", "life/a", "5")[0] == 4
    # A closed stream has an end, so following it ends too.
    assert cli.ok("read", "life/a", "--until-closed") == everything + '"end"\n'
    assert cli.ok("rm", "life/a") == "deleted life/a\n"
    assert cli.failed("read", "life/a")[0] == 3
    assert cli.ok("rm", "--force", "life/a") == ""


def test_text_and_bytes_come_out_as_they_went_in(cli: Cli) -> None:
    cli.ok("append", "text/a", "--create", "text/plain", "one", "two")
    cli.ok("append", "text/a", stdin=b"three\r\n\nfive")
    assert cli.ok("read", "text/a") == "one\ntwo\nthree\r\n\nfive\n"
    assert cli.ok("read", "text/a", "-n", "2") == "\nfive\n"
    assert cli.ok("read", "text/a", "-c", "2", "--format", "%i=%s;") == "0=one;1=two;"

    blob = bytes(range(256)) * 20
    cli.ok("append", "bytes/a", "--create", "image/png", "--whole", stdin=blob)
    assert cli.ok("read", "bytes/a").encode("utf-8", "surrogateescape") == blob


def test_whole_bodies_and_strings(cli: Cli) -> None:
    cli.ok("create", "whole/a", "--body", "[1, [2]]")
    cli.ok("append", "whole/a", "--whole", stdin=b'[\n {"a":\n 1}, 4]')
    cli.ok("append", "whole/a", "--text", stdin=b'say "hi"\n')
    assert cli.ok("read", "whole/a").splitlines() == [
        "1",
        "[2]",
        '{"a":  1}',
        "4",
        '"say \\"hi\\""',
    ]
    cli.ok("create", "whole/b", "--closed", "--ttl", "2h", "--body", "-", stdin=b"7")
    head = cli.client.stream("whole/b").head()
    assert (head.ttl_s, head.closed) == (7200, True)


def test_a_bad_line_is_named_and_what_came_before_it_is_appended(cli: Cli) -> None:
    cli.make("bad/a")
    code, error = cli.failed("append", "bad/a", "--batch", "2", stdin=b"1\n2\n3\n{oops\n5\n")
    assert code == 1
    assert error.startswith("Error: Line 4 is not valid JSON: ")
    assert error.endswith(". The 3 lines before it were appended.\n")
    assert cli.client.stream("bad/a").read_json() == [1, 2, 3]
    code, error = cli.failed("append", "bad/a", "1,2")
    assert "Value 1 is not valid JSON" in error
    assert error.endswith("Nothing was appended.\n")
    assert (
        "Line 1" in cli.failed("append", "text/bad", "--create", "text/x", "--json", stdin=b"x")[1]
    )


def test_a_producer_appends_only_what_is_missing(cli: Cli) -> None:
    stream = cli.make("once/a")
    command = ("append", "once/a", "--producer", "numbers", "--summary", "--batch", "3")
    assert json.loads(cli.ok(*command, stdin=b"1\n2\n3\n4\n"))["appended"] == 4
    # Somebody else's data in between changes nothing.
    stream.append("other")
    again = cli.run(*command, stdin=b"1\n2\n3\n4\n\n5\n6\n")
    assert json.loads(again.stdout) | {"offset": ""} == {"appended": 2, "skipped": 4, "offset": ""}
    assert "4 messages skipped" in again.stderr
    assert stream.read_json() == [1, 2, 3, 4, "other", 5, 6]
    assert (
        json.loads(cli.ok("append", "once/a", "--producer", "x", "--summary", "7"))["appended"] == 1
    )
    assert (
        json.loads(cli.ok("append", "once/a", "--producer", "x", "--summary", "7"))["skipped"] == 1
    )


def test_formats_and_exact_offsets(cli: Cli) -> None:
    cli.make("format/a", "ä", 22, 3)
    assert cli.ok("read", "format/a", "--format", r"%t[%i] %S %%\x41\t%s%n") == (
        'format/a[0] 4 %A\t"ä"\nformat/a[1] 2 %A\t22\nformat/a[2] 1 %A\t3\n'
    )
    lines = cli.ok("read", "format/a", "--format", "%o %O %s\n").splitlines()
    offsets = [line.split() for line in lines]
    assert [offset for offset, _, _ in offsets[1:]] == [after for _, after, _ in offsets[:-1]]
    assert cli.ok("read", "format/a", "-o", offsets[1][0]) == "22\n3\n"
    objects = [json.loads(line) for line in cli.ok("read", "format/a", "--json").splitlines()]
    assert [each["message"] for each in objects] == ["ä", 22, 3]
    assert objects[2]["offset"] == offsets[2][0]
    code, error = cli.failed("read", "format/a", "--format", "%q")
    assert (code, "%q is not a field." in error) == (2, True)


def test_text_that_is_not_utf8_is_refused_with_its_position(cli: Cli) -> None:
    stream = cli.make("utf8/a")
    code, error = cli.failed("append", "utf8/a", "--text", stdin=b"ok\nab\xe4c\nno\n")
    assert code == 1
    assert error.startswith("Error: Line 2 is not text: its byte 3 (0xe4) is not UTF-8.")
    assert error.endswith("The 1 line before it was appended.\n")
    assert stream.read_json() == ["ok"]
    latin = os.fsdecode(b"\xe4")
    for command in (("append", "utf8/a", "--text", latin), ("append", "utf8/a", f'"{latin}"')):
        code, error = cli.failed(*command)
        assert (code, "UTF-8" in error, "Nothing was appended" in error) == (1, True, True)
    for command in (("close", "utf8/a", f'"{latin}"'), ("create", "utf8/b", "--body", latin)):
        code, error = cli.failed(*command)
        assert (code, "UTF-8" in error) == (1, True)

    # Streams that are not JSON take bytes as they are, and give them back.
    cli.ok("append", "utf8/text", "--create", "text/plain", "--text", latin)
    cli.ok("close", "utf8/text", latin)
    assert cli.ok("read", "utf8/text") == f"{latin}\n{latin}\n"
    line = json.loads(cli.ok("read", "utf8/text", "--json").splitlines()[0])
    assert (line["base64"], "message" in line) == ("5A==", False)


def test_messages_of_a_tail_are_numbered_from_zero(cli: Cli) -> None:
    stream = cli.make("numbers/a", *range(500))
    assert cli.ok("read", "numbers/a", "--tail", "3", "--format", "%i=%s;") == "0=497;1=498;2=499;"
    with cli.start("read", "-f", "numbers/a", "--tail", "2", "--format", "%i=%s%n") as reader:
        assert [read_line(reader), read_line(reader)] == ["0=498", "1=499"]
        stream.append(500)
        assert read_line(reader) == "2=500"


def test_tail_of_a_stream_that_is_many_chunks_long(cli: Cli) -> None:
    numbers = "".join(f"{number}\n" for number in range(5000)).encode()
    cli.make("tail/json", *range(5000))
    cli.ok("append", "tail/text", "--create", "text/plain", "--batch", "70", stdin=numbers)
    for name, count in [("json", 7), ("json", 800), ("json", 6000), ("text", 7), ("text", 6000)]:
        expected = numbers.splitlines(keepends=True)[-count:]
        assert cli.ok("read", f"tail/{name}", "--tail", count).encode() == b"".join(expected)


def test_reading_goes_on_from_a_checkpoint(cli: Cli) -> None:
    stream = cli.make("checkpoint/a", 1, 2)
    command = ("read", "checkpoint/a", "--checkpoint", "offset.json")
    assert cli.ok(*command) == "1\n2\n"
    assert cli.ok(*command) == ""
    stream.append(3)
    assert cli.ok(*command) == "3\n"


def test_ls(cli: Cli) -> None:
    for name in ("ls/a", "ls/b", "ls/c"):
        cli.make(name, 1)
    assert cli.ok("ls", "ls/").split() == ["ls/a", "ls/b", "ls/c"]
    assert cli.ok("ls", "ls/", "--limit", "2").split() == ["ls/a", "ls/b"]
    head, *rows = cli.ok("ls", "-l", "ls/").splitlines()
    assert head.split()[:3] == ["MESSAGES", "SIZE", "STATE"]
    assert rows[1].split()[0] == "1"
    assert rows[1].endswith("application/json  ls/b")
    assert json.loads(cli.ok("ls", "ls/c", "--json"))["path"] == "ls/c"


def test_failures_have_their_exit_codes(cli: Cli, tmp_path: Path) -> None:
    nobody = ("--url", "http://127.0.0.1:9")
    for command in (("read", "x"), ("bench", "append", "-n", "1")):
        code, error = cli.failed(*command, *nobody)
        assert (code, "Is it running (`penstock serve`)" in error) == (5, True)
    code, error = cli.failed("append", "absent", "1")
    assert (code, "penstock create absent" in error) == (3, True)
    assert cli.failed("ls", "--url", "localhost")[0] == 2
    assert cli.failed("read", "x", "--tail", "1", "--offset", "end")[0] == 2
    assert cli.failed("create", "a/../b")[0] == 1
    with (
        running_server(memory=True, env={"PENSTOCK_TOKEN": "s3cret"}) as guarded,
        Cli(guarded.url, tmp_path) as there,
    ):
        assert there.failed("ls")[0] == 6
        assert there.ok("ls", "--token", "s3cret") == ""
        assert there.run("ls", env={"PENSTOCK_TOKEN": "s3cret"}).returncode == 0


def test_fork_and_trim(cli: Cli) -> None:
    cli.ok("create", "tree/a", "--body", "[1, 2]")
    tail = cli.json("head", "tree/a")["offset"]
    cli.ok("append", "tree/a", "3")
    assert cli.ok("fork", "tree/a", "tree/b", "--at", tail).startswith("forked tree/b from tree/a")
    cli.ok("append", "tree/b", "30")
    assert cli.ok("read", "tree/b") == "1\n2\n30\n"
    assert cli.json("fork", "tree/a", "tree/c", "--at", tail, "--skip", "1")["created"] is True
    assert cli.ok("read", "tree/c") == "1\n2\n3\n"
    assert cli.failed("fork", "tree/a", "tree/b")[0] == 4
    assert cli.json("fork", "tree/a", "tree/b", "--exist-ok")["created"] is False
    assert cli.failed("fork", "tree/none", "tree/d")[0] == 3

    assert cli.ok("trim", "tree/a", "--before", tail) == f"tree/a starts at {tail}\n"
    assert cli.json("trim", "tree/a", "--before", tail)["earliest"] == tail
    assert cli.ok("read", "tree/a") == "3\n"
    assert cli.ok("read", "tree/b") == "1\n2\n30\n", "a fork keeps what its source trims"
    assert ["starts", "at", tail] in [line.split() for line in cli.ok("head", "tree/a").split("\n")]
    code, error = cli.failed("read", "tree/a", "--offset", tail[:17] + "0" * 15 + "3")
    assert code != 0
    assert "earliest retained" in error
    cli.ok("rm", "tree/a")
    assert "kept only for" in cli.failed("read", "tree/a")[1]
