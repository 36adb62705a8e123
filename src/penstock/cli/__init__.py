"""The `penstock` command. Each subcommand is a file of its own, loaded when it is asked for.

To add one: write `cli/<name>.py` with a click command called `command`, and name it in SECTIONS,
with the words of the overview: `penstock --help` loads no command at all.
"""

from __future__ import annotations

import errno
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click

from penstock.cli.exits import INTERRUPTED, OK, exit_code
from penstock.errors import ConnectionFailed, PenstockError

SECTIONS = {
    "Streams": {
        "create": "Create a stream.",
        "append": "Append values, or the lines of stdin.",
        "read": "Read a stream to its end, or follow it.",
        "head": "Show what a stream is and where it ends.",
        "ls": "List the streams of a server.",
        "close": "Close a stream for good.",
        "fork": "Create a stream that begins with what another has.",
        "trim": "Let go of the beginning of a stream.",
        "retention": "What is kept of a stream: show, set and rm its limits.",
        "rm": "Delete streams and all they hold.",
    },
    "State": {
        "state": "Show the state that a stream of events stands for.",
        "schema": "Declare state streams: a JSON Schema for each type.",
        "compact": "Put the state of a stream in the place of its history.",
    },
    "Subscriptions": {
        "subscription": "Durable cursors that wake workers: create, ls, show, rm.",
        "work": "Run a command for what a subscription has to be done.",
    },
    "STP": {
        "table": "Tables of STP: create, put, rm, read, tail, follow, state.",
        "notify": "Tell a Notify URL that a table has news.",
        "stp": "Let a server follow tables of other servers.",
    },
    "Pipeline": {
        "pipeline": "Streams into tables and back: run, look at and check a pipeline.",
    },
    "Copies": {
        "export": "Write a stream to a file, or what is new in it.",
        "import": "Append a file to a stream, each line once.",
        "mirror": "Copy a stream into another, exactly once.",
    },
    "Server": {
        "serve": "Run the server.",
        "demo": "Start a server with a small demo stream and tail it live.",
        "verify": "Check every byte of a data folder that no server is using.",
        "inspect": "Show a data folder that no server is using.",
        "config": "Show every setting, its value and where the value came from.",
        "bench": "Measure a server: appends, reads, or fan-out to live readers.",
    },
    "Set-up": {
        "context": "Name servers and choose the one to use.",
        "completion": "Print the completion script of a shell.",
        "version": "Print the version.",
    },
}
COMMANDS = tuple(name for names in SECTIONS.values() for name in names)


class Failure(click.ClickException):
    """One line for a person and a code for a program."""

    def __init__(self, message: str, code: int) -> None:
        from penstock.cli.terminal import printable

        # A server wrote part of this: it gets one line and no control characters.
        super().__init__(printable(" ".join(message.split())))
        setattr(self, "exit_code", code)  # noqa: B010 - click declares it for the class alone


class LazyGroup(click.Group):
    """Knows its subcommands by name and imports them late: the server takes time to load."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command = import_module(f"penstock.cli.commands.{module}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(names.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """What went wrong is one line for a person, never a traceback."""
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            raise Failure(advice(error), exit_code(error)) from None
        except KeyboardInterrupt:
            return ctx.exit(INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:
                from penstock.cli.system import silence_stdout

                silence_stdout()  # whoever read the output has gone, as `| head` does
                return ctx.exit(OK)
            raise click.ClickException(plain(error)) from None


def advice(error: PenstockError) -> str:
    """What went wrong, and for the most common cause also what to do."""
    if isinstance(error, ConnectionFailed) and not error.sent:
        return (
            f"{error.detail.rstrip('.')}; is the server running (`penstock serve`), and is it the "
            "one you mean (--url, --context)?"
        )
    return error.detail


def plain(error: OSError) -> str:
    """What the system said, without its number."""
    reason = (error.strerror or str(error)).strip()
    return f"{error.filename}: {reason}" if error.filename else reason


def _print_version(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from penstock.cli.commands.version import version_line

        click.echo(version_line())
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def main() -> None:
    """Durable, replayable streams over HTTP.

    The commands below Streams, State, Subscriptions and Copies talk to a server: the one of --url,
    of --context, of PENSTOCK_URL, of the context in use (`penstock context use`), or
    http://127.0.0.1:4437, in this order.
    """
