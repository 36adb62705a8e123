"""`penstock version`."""

from __future__ import annotations

import click

from penstock import __version__


@click.command("version")
def command() -> None:
    """Print the version."""
    click.echo(f"penstock {__version__}")
