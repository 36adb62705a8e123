"""The `penstock` command. Each subcommand is a module of its own that is imported when it runs.

To add one, write `cli/commands/<name>.py` with a click command called `command`, and add it to
SECTIONS with its line of the overview: `penstock --help` imports no command.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.exits import HAS_TOKEN, INTERRUPTED, OK, USAGE, exit_code
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SECTIONS = {
    "Streams": {
        "create": "Create a stream.",
        "append": "Append values or the lines of stdin.",
        "read": "Read a stream to its end, or follow it.",
        "head": "Show the properties and the end of a stream.",
        "ls": "List the streams of a server.",
        "close": "Close a stream permanently.",
        "fork": "Create a stream that starts with the data of another.",
        "trim": "Delete messages before an offset.",
        "retention": "Show or change how long a stream keeps its data.",
        "rm": "Delete streams.",
    },
    "State": {
        "state": "Show the state of a stream of events.",
        "schema": "Declare a JSON Schema for each type of a state stream.",
        "compact": "Replace the history of a state stream with its state.",
    },
    "Subscriptions": {
        "subscription": "Create, list, show and delete subscriptions.",
        "work": "Run a command for each pending wake.",
    },
    "STP": {
        "table": "Create, write, read and follow STP tables.",
        "notify": "Notify a server that a table may have new rows.",
        "stp": "Make a server follow tables of other servers.",
    },
    "Access": {
        "token": "Create, list and revoke tokens.",
        "link": "Print a URL that needs no token.",
    },
    "Pipeline": {
        "pipeline": "Run and query a Spark pipeline from streams to tables.",
    },
    "Copies": {
        "export": "Write a stream, or its new messages, to a file.",
        "import": "Append a file to a stream, each line exactly once.",
        "mirror": "Copy a stream to another, each message exactly once.",
    },
    "Server": {
        "serve": "Run the server.",
        "proxy": "Run a server that records responses of language models.",
        "demo": "Start a server with a demo stream and follow it.",
        "cluster": "Show, demonstrate and move a cluster: nodes over PostgreSQL.",
        "backup": "Back up a server, and list and check backups.",
        "restore": "Restore a backup into an empty folder.",
        "scrub": "Let a server check its stored data.",
        "verify": "Check every byte of the data folder of a stopped server.",
        "reshard": "Change the number of workers of a stopped folder.",
        "inspect": "Show the data folder of a stopped server.",
        "config": "Show every setting, its value and where the value comes from.",
        "audit": "Show who has changed what on a server.",
        "top": "Show what a server does now, and its busiest streams.",
        "doctor": "Check the machine, the data folder and the server.",
        "bench": "Measure the appends, reads and fan-out of a server.",
    },
    "Set-up": {
        "context": "Name servers and choose the current one.",
        "completion": "Print the completion script for a shell.",
        "version": "Print the version.",
    },
}
COMMANDS = tuple(name for names in SECTIONS.values() for name in names)
ALIASES = {
    "tail": ("read", "--follow", "--tail", "10"),
    "cat": ("read",),
    "list": ("ls",),
}
"""Other names of commands, with the options that they add."""


class Failure(click.ClickException):
    """A failure: one line for a person and an exit code for a program."""

    def __init__(self, message: str, code: int) -> None:
        from penstock.cli.terminal import printable

        # A server wrote part of the text, so it must not bring line ends or control characters.
        super().__init__(printable(" ".join(message.split())))
        setattr(self, "exit_code", code)  # noqa: B010 - click declares it for the class alone


class LazyGroup(click.Group):
    """A group that imports a subcommand when it runs, because the server takes time to load."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        aliases = [
            CompletionItem(name, help=f"The same as {' '.join(words)}.")
            for name, words in ALIASES.items()
            if name.startswith(incomplete)
        ]
        return [*super().shell_complete(ctx, incomplete), *aliases]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALIASES.get(cmd_name, (cmd_name,))[0]
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
        with formatter.section("Other names"):
            formatter.write_dl([(name, " ".join(words)) for name, words in ALIASES.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in ALIASES:
            args = [*ALIASES[args[0]], *args[1:]]
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from penstock.cli.suggestions import unknown_command

            raise click.UsageError(unknown_command(args[0], COMMANDS), ctx)
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **options: Any) -> Any:
        from penstock.cli.system import open_missing_streams

        open_missing_streams()
        return super().main(*args, **options)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with _failures_on_one_line():
            try:
                return super().make_context(info_name, args, parent, **extra)
            except click.NoSuchOption as error:
                raise click.UsageError(
                    f"{error.option_name} is no option of `penstock` itself. Options follow the "
                    "command, as in `penstock ls --url URL`.",
                    error.ctx,
                ) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. A failure becomes one line for a person, never a traceback."""
        try:
            with _failures_on_one_line():
                return super().invoke(ctx)
        except PenstockError as error:
            from penstock.cli.error_text import message_of

            has_token = bool(ctx.meta.get(HAS_TOKEN))
            raise Failure(message_of(error, has_token=has_token), exit_code(error)) from None
        except KeyboardInterrupt:
            return ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            from penstock.cli.system import silence_stdout

            silence_stdout()  # the reader has closed the pipe, as `| head` does
            return ctx.exit(OK)


@contextmanager
def _failures_on_one_line() -> Iterator[None]:
    """Raise a mistake on the command line, and a failure of the operating system, as one line."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        command = "penstock" if error.ctx is None else error.ctx.command_path
        message = error.format_message().rstrip()
        end = "" if message.endswith((".", "?", "?)")) else "."
        raise Failure(f"{message}{end} See `{command} --help`.", USAGE) from None
    except UnicodeEncodeError as error:
        if error.encoding.lower().replace("-", "") == "utf8":  # of an argument
            raise Failure("An argument is not valid UTF-8.", USAGE) from None
        raise click.ClickException(
            f"The output cannot be written as {error.encoding}: set PYTHONUTF8=1."
        ) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise click.ClickException(system_message(error)) from None


def system_message(error: OSError) -> str:
    """Return the text of the operating system's error, with the file but without its number."""
    reason = (error.strerror or str(error)).strip()
    if isinstance(error, FileExistsError):
        reason = "It exists and is not a folder"
    return f"{error.filename}: {reason}." if error.filename else f"{reason}."


def _print_version(ctx: click.Context, param: click.Parameter, is_set: bool) -> None:
    if is_set and not ctx.resilient_parsing:
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

    The commands of the sections Streams, State, Subscriptions, STP, Access and Copies use a server:
    the first that is set of --url, --context, PENSTOCK_URL and the current context (`penstock
    context use`), or else http://127.0.0.1:4437.
    """
