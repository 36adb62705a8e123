"""What `penstock state watch` shows: a table that is drawn again, or a line for each change."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import click

from penstock.cli.entities import Change, Place, text, word
from penstock.cli.system import terminal_size
from penstock.cli.terminal import has_cursor, printable, styled
from penstock.cli.text import aligned, amount

COLOURS = {"+": "green", "-": "red", "~": "yellow"}

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # a screen of its own, no cursor, no wrapped lines
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_TO_LINE_END = "\x1b[K"
_TO_SCREEN_END = "\x1b[J"
_FRAME_LINES = 4  # the title, the head, what is not shown, and room for the cursor


class Screen(Protocol):
    def show(self, values: Mapping[Place, str], changes: Sequence[Change], offset: str) -> None:
        """The state at an offset, and what has changed since the last call."""


@contextmanager
def output(stream: str, *, as_json: bool) -> Iterator[Screen]:
    """The form that suits stdout."""
    if as_json or not has_cursor(sys.stdout):
        yield Lines(as_json=as_json)
        return
    table = Table(stream)
    click.echo(_ENTER, nl=False)
    try:
        yield table
    finally:
        click.echo(_LEAVE, nl=False)
        for line in table.lines:  # so that the last state stays in sight
            click.echo(line)


class Lines:
    """A line for each change, for pipes and files."""

    def __init__(self, *, as_json: bool) -> None:
        self._form = _json if as_json else _line

    def show(self, values: Mapping[Place, str], changes: Sequence[Change], offset: str) -> None:
        if changes:
            lines = "".join(f"{self._form(change)}\n" for change in changes)
            sys.stdout.buffer.write(lines.encode("utf-8", "replace"))
            sys.stdout.buffer.flush()


def _json(change: Change) -> str:
    members = {
        "type": text(change.type),
        "key": text(change.key),
        "operation": text(change.operation),
        "old": change.old,
        "new": change.new,
        "offset": text(change.offset),
    }
    # Values go out as they were written: a number keeps its digits.
    return "{" + ",".join(f'"{name}":{value}' for name, value in members.items() if value) + "}"


def _line(change: Change) -> str:
    values = [value for value in (change.old, change.new) if value is not None]
    if not values:  # what was not there has been deleted
        values = ["(none)"]
    place = f"{word(change.type)} {word(change.key)}"
    return printable(f"{change.mark} {place}  {' -> '.join(values)}")


class Table:
    """Drawn anew for each batch. With more entities than lines it has those that changed last."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._recent: dict[Place, None] = {}
        self.lines: list[str] = []

    def show(self, values: Mapping[Place, str], changes: Sequence[Change], offset: str) -> None:
        # One for each entity: from what was drawn before to what is now.
        last: dict[Place, Change] = {}
        for change in changes:
            before = last[change.place].old if change.place in last else change.old
            last[change.place] = change._replace(old=before)
        if not self._recent:
            self._recent = dict.fromkeys(sorted(values, reverse=True))
        for entity in last:
            self._recent.pop(entity, None)
            if entity in values:
                self._recent[entity] = None
        width, height = terminal_size()
        self._compose(values, last, offset, max(height - _FRAME_LINES, 1))
        self.lines = [_cut(line, width) for line in self.lines]
        drawn = "".join(f"{line}{_TO_LINE_END}\n" for line in self.lines)
        click.echo(f"{_HOME}{drawn}{_TO_SCREEN_END}", nl=False)

    def _compose(
        self, values: Mapping[Place, str], last: Mapping[Place, Change], offset: str, rows: int
    ) -> None:
        gone = [entity for entity in last if entity not in values][:rows]
        kept = _last(self._recent, rows - len(gone))
        shown = sorted([*gone, *kept])
        cells = [
            (printable(word(type)), printable(word(key)), _value(values, last, (type, key)))
            for type, key in shown
        ]
        head, *lines = aligned([("TYPE", "KEY", "VALUE"), *cells])
        title = f"{self._stream}  {amount(len(values), 'entity', 'entities')} at {offset}"
        self.lines = [printable(title), styled(head, bold=True)]
        for entity, line in zip(shown, lines, strict=True):
            change = last.get(entity)
            colour = None if change is None else COLOURS[change.mark]
            self.lines.append(line if colour is None else styled(line, fg=colour))
        hidden = len(values) - len(kept)
        if hidden:
            self.lines.append(f"… and {hidden:,} more, which changed earlier")


def _value(values: Mapping[Place, str], last: Mapping[Place, Change], entity: Place) -> str:
    if entity in values:
        return printable(values[entity])
    return printable(last[entity].old or "")


def _last(recent: dict[Place, None], count: int) -> list[Place]:
    found: list[Place] = []
    for entity in reversed(recent):
        if len(found) >= count:
            break
        found.append(entity)
    return found


def _cut(line: str, width: int) -> str:
    """No longer than the terminal is wide; colour codes take no room and stay whole."""
    plain = click.unstyle(line)
    if len(plain) <= width:
        return line
    return line.replace(plain, plain[: max(width - 1, 0)] + "…", 1)
