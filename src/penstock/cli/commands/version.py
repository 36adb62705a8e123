"""`penstock version` and the line of `penstock --version`."""

from __future__ import annotations

import json
import platform

import click

from penstock import DISTRIBUTION, __version__, plain_modules
from penstock.cli.connection import json_option


@click.command("version")
@json_option
def command(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        versions = {
            "version": __version__,
            "distribution": DISTRIBUTION,
            "python": platform.python_version(),
            "form": plain_modules.form(),
        }
        click.echo(json.dumps(versions))
    else:
        click.echo(version_line())


def version_line() -> str:
    python = platform.python_version()
    return f"penstock {__version__} ({DISTRIBUTION}, Python {python}, {plain_modules.form()})"
