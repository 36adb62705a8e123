"""Output for a person at a terminal: colours, a progress line, no control characters."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Self, TextIO

import click

from penstock.cli.text import aligned, size

PROGRESS_INTERVAL_S = 0.1
_WIDTH_MIN = 20

# Surrogates are bytes of an argument that are not UTF-8; they cannot be printed.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_CLEAR = "\r\x1b[2K"


def printable(text: str) -> str:
    """Return the text without control characters. Tabs and line ends stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def has_cursor(stream: TextIO) -> bool:
    """Whether the output can be overwritten in place."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def has_colour(stream: TextIO) -> bool:
    return has_cursor(stream) and not os.environ.get("NO_COLOR")


def styled(text: str, **style: object) -> str:
    """Return the text with colours if stdout is a terminal that shows them."""
    if not has_colour(sys.stdout):
        return text
    # click has no type for "any of its style arguments".
    return click.style(text, **style)  # type: ignore[arg-type]


def note(text: str) -> None:
    """Print a line for people to stderr."""
    click.echo(printable(text), err=True)


def print_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns, cut to the width of a terminal. The last column may be long."""
    from penstock.cli.system import columns

    cells = [[printable(cell) for cell in row] for row in rows]
    first, *lines = aligned([head, *cells])
    width = max(columns(), _WIDTH_MIN) if sys.stdout.isatty() else None
    click.echo(styled(first, bold=True))
    for line in lines:
        click.echo(line[:width])


class Progress:
    """A progress line on stderr, on a terminal only. It is removed at the end."""

    def __init__(self, label: str, *, total: int | None = None) -> None:
        self._label = printable(label)
        self._total = total
        self._shown = has_cursor(sys.stderr)
        self._started_s = time.monotonic()
        self._next_s = 0.0
        self._first: int | None = None

    def bytes(self, done: int, detail: str = "") -> None:
        """Show that `done` bytes of the total are done."""
        if not self._due():
            return
        if self._first is None:
            self._first = done  # the bytes of an earlier run do not count for the speed
        passed_s = max(time.monotonic() - self._started_s, 1e-3)
        parts = [self._label]
        if self._total:
            share = min(max(done / self._total, 0.0), 1.0)
            filled = int(share * 24)
            parts.append(f"[{'#' * filled}{'.' * (24 - filled)}] {share:4.0%}")
        parts.append(size(done))
        parts.append(f"{size(int((done - self._first) / passed_s))}/s")
        if detail:
            parts.append(detail)
        self._write("  ".join(parts))

    def text(self, text: str) -> None:
        if self._due():
            self._write(f"{self._label}  {text}")

    def note(self, text: str) -> None:
        """Print a line that stays, above the progress line."""
        if self._shown and self._next_s:
            sys.stderr.write(_CLEAR)
        note(f"{self._label}: {text}")

    def _due(self) -> bool:
        now_s = time.monotonic()
        if not self._shown or now_s < self._next_s:
            return False
        self._next_s = now_s + PROGRESS_INTERVAL_S
        return True

    def _write(self, line: str) -> None:
        from penstock.cli.system import columns

        sys.stderr.write(_CLEAR + line[: columns() - 1])
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown and self._next_s:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
