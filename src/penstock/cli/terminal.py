"""Output for a person at a terminal: colours, a progress line, a full screen, no control
characters."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self, TextIO

import click

from penstock.cli.text import aligned, clock_text, size

PROGRESS_INTERVAL_S = 0.1
SPEED_SAMPLES = 50  # five seconds
LABEL_WIDTH_MAX = 28
BAR_WIDTH_MAX = 24
BAR_WIDTH_MIN = 4
_WIDTH_MIN = 20

# Surrogates are bytes of an argument that are not UTF-8; they cannot be printed.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_CLEAR = "\r\x1b[2K"
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # the alternate screen, no cursor, no wrapped lines
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_TO_LINE_END = "\x1b[K"
_TO_SCREEN_END = "\x1b[J"


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


class Screen:
    """What is on a full screen: the last `lines` stay when it is left."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def draw(self, lines: Sequence[str]) -> None:
        """Replace what is on the screen; lines that are too long are cut."""
        from penstock.cli.system import columns

        self.lines = [_cut(line, columns()) for line in lines]
        drawn = "".join(f"{line}{_TO_LINE_END}\n" for line in self.lines)
        click.echo(f"{_HOME}{drawn}{_TO_SCREEN_END}", nl=False)


@contextmanager
def full_screen() -> Iterator[Screen]:
    """Use the alternate screen of the terminal; what was there before is there again afterwards."""
    screen = Screen()
    click.echo(_ENTER, nl=False)
    try:
        yield screen
    finally:
        click.echo(_LEAVE, nl=False)
        for line in screen.lines:
            click.echo(line)


def _cut(line: str, width: int) -> str:
    """Cut a line to the width of the terminal. Colour codes have no width and stay whole."""
    plain = click.unstyle(line)
    if len(plain) <= width:
        return line
    if plain not in line:  # several colours
        line = plain
    return line.replace(plain, plain[: max(width - 1, 0)] + "…", 1)


class Progress:
    """A progress line on stderr, on a terminal only. It is removed at the end."""

    def __init__(
        self,
        label: str,
        *,
        total: int | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = printable(label)
        self._label = _shortened(self._name, LABEL_WIDTH_MAX)
        self._phase = ""
        self._total = total
        self._shown = has_cursor(sys.stderr)
        self._now_s = now_s
        self._next_s = 0.0
        self._is_drawn = False
        # The speed is that of the last seconds: (time, bytes done), the oldest first.
        self._samples: deque[tuple[float, int]] = deque(maxlen=SPEED_SAMPLES)

    def begin(self, phase: str, *, done: int = 0) -> None:
        """Begin another pass, with `done` bytes that do not count for its speed."""
        self._phase = phase
        self._next_s = 0.0
        self._samples.clear()
        self.bytes(done)

    def bytes(self, done: int, detail: str = "") -> None:
        """Show that `done` bytes of the total are done."""
        if not self._due():
            return
        now_s = self._now_s()
        if not self._samples:
            self._samples.append((now_s, done))
        first_s, first = self._samples[0]
        per_s = (done - first) / (now_s - first_s) if now_s > first_s else 0.0
        self._samples.append((now_s, done))
        parts = [size(done)]
        if per_s > 0:
            parts.append(f"{size(int(per_s))}/s")
            if self._total is not None and done < self._total:
                parts.append(f"{clock_text((self._total - done) / per_s)} left")
        if detail:
            parts.append(detail)
        self._write(self._with_bar("  ".join(parts), done))

    def _with_bar(self, rest: str, done: int) -> str:
        """Return the line, with a bar as wide as there is room for it."""
        from penstock.cli.system import columns

        label = f"{self._label}  {self._phase}" if self._phase else self._label
        if not self._total:
            return f"{label}  {rest}"
        share = min(max(done / self._total, 0.0), 1.0)
        percent = f" {share:4.0%}"
        width = min(columns() - len(f"{label}  []{percent}  {rest}") - 2, BAR_WIDTH_MAX)
        if width < BAR_WIDTH_MIN:
            return f"{label}{percent}  {rest}"
        filled = int(share * width)
        return f"{label}  [{'#' * filled}{'.' * (width - filled)}]{percent}  {rest}"

    def text(self, text: str) -> None:
        if self._due():
            self._write(f"{self._label}  {text}")

    def note(self, text: str) -> None:
        """Print a line that stays, above the progress line."""
        if self._is_drawn:
            sys.stderr.write(_CLEAR)
        note(f"{self._name}: {text}")

    def _due(self) -> bool:
        now_s = self._now_s()
        if not self._shown or now_s < self._next_s:
            return False
        self._next_s = now_s + PROGRESS_INTERVAL_S
        return True

    def _write(self, line: str) -> None:
        from penstock.cli.system import columns

        self._is_drawn = True
        sys.stderr.write(_CLEAR + line[: columns() - 1])
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_drawn:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
