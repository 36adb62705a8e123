"""`penstock verify`: checks the data folder of a stopped server.

The exit code is 0 without problems, 1 with problems, and 2 if the folder cannot be checked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli import system_message
from penstock.cli.text import aligned, amount, size
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.log.offline.report import Report


class CannotCheck(click.ClickException):
    exit_code = 2


@click.command("verify")
@click.argument("data_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--cold", is_flag=True, help="Read cold segments from the object store, too.")
@click.pass_context
def command(context: click.Context, data_dir: Path, as_json: bool, cold: bool) -> None:
    """Check every byte of the data folder of a stopped server.

    The command changes nothing. The exit code is 0 without problems, 1 with problems, and 2 if the
    folder cannot be checked.
    """
    from penstock.log.offline.verify import verify  # here, so that `--help` does not load the store

    with refusals(), _progress() as on_progress:
        report = verify(data_dir, cold=cold, progress=on_progress)
    if as_json:
        click.echo(as_indented_json(report))
    else:
        click.echo("\n".join(_text(data_dir, report)))
    context.exit(1 if report.problem_count else 0)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn a folder that cannot be opened into one line and exit code 2."""
    try:
        yield
    except PenstockError as error:
        raise CannotCheck(error.detail) from None
    except OSError as error:
        raise CannotCheck(system_message(error)) from None


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Show the percentage on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    shown = -1

    def show(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // max(total, 1)
        if percent != shown:
            shown = percent
            click.echo(f"\rchecked {percent}%", nl=False, err=True)

    try:
        yield show
    finally:
        click.echo("\r" + " " * 16 + "\r", nl=False, err=True)


def as_indented_json(value: object) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _text(data_dir: Path, report: Report) -> Iterator[str]:
    stopped = {True: "stopped cleanly", False: "not stopped cleanly", None: "state unknown"}
    waiting = report.last_lsn - report.checkpoint_lsn
    rows = [
        ("folder", f"{data_dir} (format {report.format or 'unknown'}, {stopped[report.clean]})"),
        (
            "streams",
            f"{amount(report.streams, 'stream')}, {amount(report.messages, 'message')}, "
            f"{size(report.bytes)}",
        ),
        (
            "stored in",
            f"{amount(report.segments, 'segment')} ({amount(report.blocks, 'block')}), "
            f"{amount(report.inline, 'catalog row')}"
            + (f"; {report.cold_segments:,} of the segments are cold" * bool(report.cold_segments)),
        ),
        (
            "journal",
            f"{amount(report.journal_files, 'file')}, "
            f"{amount(report.journal_batches, 'batch', 'batches')}, "
            f"{amount(report.journal_records, 'record')}, {max(waiting, 0):,} not in the catalog",
        ),
    ]
    yield from aligned(rows)
    for note in report.notes:
        yield f"note: {note}"
    for problem in report.problems:
        yield f"problem: {problem}"
    hidden = report.problem_count - len(report.problems)
    if hidden:
        yield f"and {amount(hidden, 'more problem')}"
    count = amount(report.problem_count, "problem") if report.problem_count else "no problems"
    yield f"{count} found"
