"""`penstock retention` against a server process that has a rule for a path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.cli import Cli
from tests.helpers.server import running_server


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    args = ["--retention", "logs/=7d,4x"]
    with running_server(memory=True, args=args) as server, Cli(server.url, tmp_path) as cli:
        yield cli


def test_limits_are_set_shown_and_taken_away(cli: Cli) -> None:
    earliest = cli.make("logs/web").head().earliest
    path = {"stream": "logs/web", "age": 604800, "bytes": None, "compact": 4, "own": False}
    assert cli.json("retention", "show", "logs/web") == {**path, "earliest": earliest}
    output = cli.ok("retention", "show", "logs/web")
    assert output == (
        "logs/web deletes messages older than 7d, is compacted at 4 times its live state "
        f"(limits of its path); it starts at {earliest}\n"
    )
    own = cli.json("retention", "set", "logs/web", "--bytes", "512k", "--age", "36h")
    assert own == {
        **path, "age": 129600, "bytes": 524288, "compact": None, "own": True, "earliest": earliest,
    }  # fmt: skip
    assert cli.json("retention", "show", "logs/web") == own
    assert "older than 36h, deletes messages before its last 512KiB (its own limits)" in (
        cli.ok("retention", "show", "logs/web")
    )
    forever = cli.json("retention", "set", "logs/web", "--forever")
    assert forever == {**path, "age": None, "compact": None, "own": True, "earliest": earliest}
    assert "logs/web keeps all messages (its own limits)" in cli.ok("retention", "show", "logs/web")
    assert cli.json("retention", "rm", "logs/web") == {**path, "earliest": earliest}
    assert cli.json("retention", "rm", "logs/web")["own"] is False  # again is no error


def test_limits_are_kept_to(cli: Cli) -> None:
    stream = cli.make("other")
    assert cli.json("retention", "set", "other", "--compact", "3")["compact"] == 3
    assert stream.retention().compact == 3


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--forever", "--age", "1d"],
        ["--age", "0s"],
        ["--age", "7"],
        ["--age", "1w"],
        ["--bytes", "0"],
        ["--bytes", "much"],
        ["--compact", "1"],
    ],
)
def test_what_is_no_limit_is_refused(cli: Cli, options: list[str]) -> None:
    cli.make("some")
    code, error = cli.failed("retention", "set", "some", *options)
    assert code == 2
    assert "Error:" in error
    assert cli.json("retention", "show", "some")["own"] is False


def test_a_stream_that_is_not_there(cli: Cli) -> None:
    for words in (["show"], ["set", "--forever"], ["rm"]):
        code, error = cli.failed("retention", words[0], "nowhere", *words[1:])
        assert code != 0
        assert "nowhere" in error
