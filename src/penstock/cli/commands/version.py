"""`penstock version`."""

from __future__ import annotations

import json

import click

from penstock import __version__
from penstock.cli.connection import json_option


@click.command("version")
@json_option
def command(as_json: bool) -> None:
    """Print the version."""
    click.echo(json.dumps({"version": __version__}) if as_json else f"penstock {__version__}")
