"""`penstock context`: names for servers, with their URLs and tokens."""

from __future__ import annotations

import json
import re

import click

from penstock.cli import context_file
from penstock.cli.connection import check_token, complete_context, json_option
from penstock.cli.context_file import Context, Contexts, server_url
from penstock.cli.system import stdin_bytes
from penstock.cli.terminal import styled
from penstock.cli.text import aligned

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@click.group("context")
def command() -> None:
    """Name servers and choose the current one.

    Contexts are stored in penstock/contexts.json below $XDG_CONFIG_HOME (or ~/.config), which only
    you can read. Every command that uses a server has --context NAME, and accepts NAME:STREAM as
    the name of a stream.

    \b
    Examples:
      penstock context add prod https://streams.example.com --token-stdin < token
      penstock context use prod
      penstock ls
      penstock read prod:orders --tail 5
    """


@command.command("add")
@click.argument("name")
@click.argument("url")
@click.option("--token", metavar="TEXT", help="Bearer token. It is visible in the process list.")
@click.option("--token-stdin", is_flag=True, help="Read the token from stdin.")
@click.option("--use", is_flag=True, help="Make it the current context.")
def add(name: str, url: str, token: str | None, token_stdin: bool, use: bool) -> None:
    """Add the context NAME for the server at URL, or replace the existing one.

    The first context becomes the current one.
    """
    if _NAME.fullmatch(name) is None:
        raise click.BadParameter(
            "A name consists of letters, digits, dots, dashes and underscores."
        )
    if token_stdin:
        token = stdin_bytes().decode("utf-8", "replace").strip()
    if token is not None:
        check_token(token)
    contexts = context_file.load()
    contexts.named[name] = Context(server_url(url, "URL"), token)
    current = name if use or not contexts.named.keys() - {name} else contexts.current
    context_file.save(Contexts(contexts.named, current))
    click.echo(f"added {name} ({url}){', the current context' if current == name else ''}")


@command.command("use")
@click.argument("name", shell_complete=complete_context)
def use(name: str) -> None:
    """Make NAME the current context."""
    contexts = context_file.load()
    context = contexts.get(name)
    context_file.save(Contexts(contexts.named, name))
    click.echo(f"using {name} ({context.url})")


@command.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """List the contexts. A star marks the current one. Tokens are not shown."""
    contexts = context_file.load()
    if as_json:
        rows = [
            {
                "name": name,
                "url": context.url,
                "token": context.token is not None,
                "current": name == contexts.current,
            }
            for name, context in sorted(contexts.named.items())
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    if not contexts.named:
        click.echo("There are no contexts. Add one with `penstock context add NAME URL`.", err=True)
        return
    lines = [("", "NAME", "URL", "TOKEN")]
    for name, context in sorted(contexts.named.items()):
        star = "*" if name == contexts.current else ""
        lines.append((star, name, context.url, "set" if context.token else ""))
    head, *rest = aligned(lines)
    click.echo("\n".join([styled(head, bold=True), *rest]))


@command.command("rm")
@click.argument("name", shell_complete=complete_context)
def remove(name: str) -> None:
    """Remove the context NAME."""
    contexts = context_file.load()
    contexts.get(name)
    del contexts.named[name]
    current = None if contexts.current == name else contexts.current
    context_file.save(Contexts(contexts.named, current))
    click.echo(f"removed {name}")
