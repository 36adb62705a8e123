"""`penstock doctor`: checks the machine, the data folder, the settings and the server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from penstock.cli.commands.doctor.finding import ERROR, NOTE, OK, WARNING, Finding
from penstock.cli.connection import Server, json_option, server_options
from penstock.cli.exits import FAILURE
from penstock.cli.terminal import printable, styled
from penstock.errors import PenstockError

_MARKS: Final = {OK: "ok", NOTE: "-", WARNING: "!", ERROR: "error"}
_COLOURS: Final = {OK: "green", NOTE: "bright_black", WARNING: "yellow", ERROR: "red"}


@click.command("doctor")
@click.option(
    "--config", "config_path", metavar="FILE", help="Settings file, as for `penstock serve`."
)
@click.option("--data-dir", metavar="DIR", help="Folder that holds the streams.")
@json_option
@server_options
@click.pass_context
def command(
    ctx: click.Context,
    server: Server,
    config_path: str | None,
    data_dir: str | None,
    as_json: bool,
) -> None:
    """Check the machine, the data folder, the settings and the server, and say what to do.

    It checks free space, the speed of syncs, the file system, the limit of open files, the clock,
    Java, the versions of packages, the settings with their files, the port, and whether the server
    is ready. The settings are those of `penstock serve` in this folder and environment. Nothing is
    changed: a file for the measurement is removed again.

    The exit code is 1 if there is an error; warnings do not count.

    \b
    Examples:
      penstock doctor
      penstock doctor --data-dir /var/lib/penstock --url https://streams.example.com
      penstock doctor --json | jq '.findings[] | select(.state != "ok")'
    """
    findings = []
    for finding in _findings(server, config_path, data_dir):
        findings.append(finding)
        if not as_json:
            _print(finding)
    errors = sum(each.state == ERROR for each in findings)
    if as_json:
        import msgspec

        content = {"ok": not errors, "findings": [each._asdict() for each in findings]}
        click.echo(msgspec.json.encode(content).decode())
    else:
        warnings = sum(each.state == WARNING for each in findings)
        click.echo(f"\n{_count(errors, 'error')}, {_count(warnings, 'warning')}")
    ctx.exit(FAILURE if errors else 0)


def _findings(server: Server, config_path: str | None, data_dir: str | None) -> Iterator[Finding]:
    from penstock.cli.commands.doctor.machine import machine
    from penstock.cli.commands.doctor.serving import configuration, port, server_checks
    from penstock.config.load import resolve
    from penstock.config.settings import Settings

    path = None if config_path is None else Path(config_path)
    try:
        settings = resolve({"data_dir": data_dir}, os.environ, path).settings
    except PenstockError as error:
        yield Finding("settings", ERROR, error.detail, "`penstock config` shows every setting.")
        settings = Settings()
    else:
        yield from configuration(settings)
    yield from machine(settings)
    findings, url = server_checks(server)
    yield port(settings, is_ours=url is not None and url.endswith(f":{settings.port}"))
    yield from findings


def _print(finding: Finding) -> None:
    mark = styled(f"{_MARKS[finding.state]:>5}", fg=_COLOURS[finding.state])
    click.echo(f"{mark}  {finding.check}: {printable(finding.text)}")
    if finding.advice:
        click.echo(f"       {printable(finding.advice)}")


def _count(number: int, name: str) -> str:
    return f"{number or 'no'} {name}{'' if number == 1 else 's'}"
