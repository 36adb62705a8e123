"""The `penstock` command. Each subcommand is a file of its own, loaded when it is asked for.

To add one: write `cli/<name>.py` with a click command called `command`, and name it in COMMANDS.
"""

from __future__ import annotations

import errno
from importlib import import_module
from typing import Any

import click

from penstock.errors import PenstockError

COMMANDS = ("serve", "demo", "verify", "inspect", "config", "version")


class LazyGroup(click.Group):
    """Knows its subcommands by name and imports them late: the server takes time to load."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"penstock.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """What went wrong is one line for a person, never a traceback."""
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            raise click.ClickException(error.detail) from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click ends quietly when the reader of its output has gone
            raise click.ClickException(plain(error)) from None


def plain(error: OSError) -> str:
    """What the system said, without its number."""
    reason = (error.strerror or str(error)).strip()
    return f"{error.filename}: {reason}" if error.filename else reason


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Durable, replayable streams over HTTP."""
