"""`penstock scrub`: lets a server check its stored data."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli import Failure
from penstock.cli.commands.backup import POLL_S, percentage
from penstock.cli.connection import Server, json_option, server_options
from penstock.cli.exits import FAILURE
from penstock.cli.terminal import printable
from penstock.cli.text import amount, size

if TYPE_CHECKING:
    from penstock.client.sync.client import Client

PATH: Final = "/v1/scrub"


@click.command("scrub")
@click.option("--wait", is_flag=True, help="Wait for the end, and show the result.")
@click.option("--status", is_flag=True, help="Begin none: show the one that runs, or the last one.")
@json_option
@server_options
def command(server: Server, wait: bool, status: bool, as_json: bool) -> None:
    """Let a server compare all stored data with its checksums, in the background.

    The server does that by itself, too (`scrub_interval_s`), at the pace of `scrub_bytes_per_s`.
    The exit code is 1 if there are problems. The folder of a stopped server is checked with
    `penstock verify`. It needs a token with admin:__ds/scrub, if the server has access rules.
    """
    with server.client() as client:
        run = _ask(client, "GET" if status else "POST")
        if wait:
            with percentage("checked") as show:
                while run["state"] == "running":
                    time.sleep(POLL_S)  # the server tells of progress only when asked
                    run = _ask(client, "GET")
                    show(run["bytes_done"], run["bytes_total"])
    if as_json:
        click.echo(json.dumps(run))
    else:
        click.echo(_text(run))
        for problem in run["problems"]:
            click.echo(printable(f"problem: {_problem(problem)}"))
    if run["error"] is not None:
        raise Failure(f"The scrub failed: {run['error']['detail']}", FAILURE)
    if run["problem_count"]:
        raise Failure(f"{amount(run['problem_count'], 'problem')} found.", FAILURE)


def _ask(client: Client, method: str) -> dict[str, Any]:
    from penstock.client.requests import Request

    request = Request(method, client.url.rstrip("/") + PATH, repeatable=True)
    run: dict[str, Any] = json.loads(client.request(request).body)
    return run


def _text(run: dict[str, Any]) -> str:
    done = f"{amount(run['streams'], 'stream')} and {size(run['bytes_done'])} of segments checked"
    match run["state"]:
        case "idle":
            return "There was no scrub since the server started."
        case "running":
            return f"A scrub is running: {done}, of {size(run['bytes_total'])}."
        case "done":
            return f"{done}, no problems found" if not run["problem_count"] else done
    return f"The scrub was stopped: {done}."


def _problem(problem: dict[str, Any]) -> str:
    where = problem["file"]
    if problem["position"] is not None:
        where += f", byte {problem['position']}"
    whose = "" if problem["stream"] is None else f" (stream {problem['stream']})"
    return f"{where}{whose}: {problem['what']}; {problem['advice']}"
