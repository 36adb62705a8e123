"""Contexts, tokens, completion scripts and the bench, as processes."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.helpers.cli import Cli
from tests.helpers.relay import Answered, Asked, Forward, Relay
from tests.helpers.server import Server


def test_contexts_name_servers(cli: Cli, server: Server, tmp_path: Path) -> None:
    cli.make("context/a", 1)
    file = tmp_path / "config" / "penstock" / "contexts.json"
    without = {"PENSTOCK_URL": ""}
    assert cli.run("context", "list", env=without).stderr.startswith("There are no contexts. ")
    added = cli.run("context", "add", "home", server.url, "--token-stdin", stdin=b"s3cret\n")
    assert added.stdout == f"added home ({server.url}), the current context\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    cli.ok("context", "add", "away", "http://127.0.0.1:9")

    shown = cli.run("context", "list")
    assert "s3cret" not in shown.stdout
    assert shown.stdout.splitlines()[2].split() == ["*", "home", server.url, "set"]
    # The context in use, a named one, and one in front of a stream.
    assert cli.run("ls", "context/", env=without).stdout == "context/a\n"
    assert cli.run("ls", "--context", "away", env=without).returncode == 5
    assert cli.run("read", "home:context/a", env={"PENSTOCK_URL": "http://127.0.0.1:9"}).stdout == (
        "1\n"
    )
    cli.ok("context", "use", "away")
    assert cli.run("ls", env=without).returncode == 5
    assert cli.ok("ls", "context/") == "context/a\n"  # PENSTOCK_URL wins over the context in use
    code, error = cli.failed("context", "use", "nowhere")
    assert (code, "contexts: away, home" in error) == (1, True)
    cli.ok("context", "rm", "away")
    assert [each["name"] for each in cli.json("context", "list")] == ["home"]
    assert cli.failed("context", "add", "a:b", server.url)[0] == 2
    file.write_text("{")
    assert "Repair or remove it." in cli.failed("context", "list")[1]


def test_a_token_goes_only_to_its_own_server(cli: Cli, server: Server) -> None:
    """The token of the current server is not sent to another server, named by a full URL."""
    cli.make("token/a", 1)
    seen: list[str | None] = []

    def look(asked: Asked, forward: Forward) -> Answered | None:
        seen.append(asked.headers.get("Authorization"))
        return forward()

    with Relay(server.port).serving() as other:
        other.fate = look
        url = f"{other.url}/v1/stream/token/a"
        token = {"PENSTOCK_TOKEN": "mine"}
        assert cli.run("head", url, env=token).returncode == 0
        assert cli.run("head", url, env=token | {"PENSTOCK_URL": other.url}).returncode == 0
        cli.ok("context", "add", "other", other.url, "--token", "theirs")
        assert cli.run("head", url).returncode == 0
        assert cli.run("head", url, "--token", "flag").returncode == 0
    assert seen == [None, "Bearer mine", "Bearer theirs", "Bearer flag"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_come_out(cli: Cli, shell: str) -> None:
    script = cli.ok("completion", shell)
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in script


def test_commands_streams_and_contexts_are_completed(cli: Cli) -> None:
    cli.make("complete/me")
    cli.ok("context", "add", "there", "http://127.0.0.1:9")

    def completed(words: str) -> list[str]:
        env = {
            "_PENSTOCK_COMPLETE": "bash_complete",
            "COMP_WORDS": f"penstock {words}",
            "COMP_CWORD": str(words.count(" ") + 1),
        }
        return [line.partition(",")[2] for line in cli.run(env=env).stdout.splitlines()]

    assert completed("mi") == ["mirror"]
    assert completed("read comp") == ["complete/me"]
    assert completed("ls --context th") == ["there"]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (("append", "-n", "30", "--batch", "2"), 30),
        (("read", "-n", "10", "--messages", "50"), 10),
        (("fanout", "-n", "5", "--readers", "3", "--rate", "500"), 15),
    ],
)
def test_the_bench_prints_percentiles_and_cleans_up(
    cli: Cli, arguments: tuple[object, ...], count: int
) -> None:
    result = json.loads(cli.ok("bench", *arguments, "--json"))
    assert result["count"] == count
    latency = result["latency_ms"]
    assert list(latency) == ["p50", "p90", "p99", "p99.9", "max"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    assert cli.ok("ls", "penstock-bench/") == ""
