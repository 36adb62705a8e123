"""The output of `penstock state watch`: a table that is redrawn, or one line per change."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from penstock.cli.commands.state.entities import Change, EntityId, on_one_line, text
from penstock.cli.system import terminal_size
from penstock.cli.terminal import Screen as FullScreen
from penstock.cli.terminal import full_screen, has_cursor, printable, styled
from penstock.cli.text import aligned, amount

if TYPE_CHECKING:
    from penstock.state.live.changes import StateChange

COLOURS = {"+": "green", "-": "red", "~": "yellow"}

_FRAME_LINES = 4  # the title, the head, the count of hidden rows, and the cursor


class Screen(Protocol):
    """The output of a state that changes."""

    def show(self, changes: Sequence[StateChange], offset: str) -> None:
        """Show the changes since the last call, and the state at an offset."""


@contextmanager
def output(stream: str, *, as_json: bool) -> Iterator[Screen]:
    """Open the output for stdout: a table on a terminal, lines elsewhere."""
    if as_json or not has_cursor(sys.stdout):
        yield Lines(as_json=as_json)
        return
    with full_screen() as screen:
        yield Table(stream, screen)


class Lines:
    """One line per change, for pipes and files."""

    def __init__(self, *, as_json: bool) -> None:
        self._form = _json if as_json else _line

    def show(self, changes: Sequence[StateChange], offset: str) -> None:
        shown = [Change.of(change) for change in changes if change.operation != "load"]
        if shown:
            lines = "".join(f"{self._form(change)}\n" for change in shown)
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
    # Values are printed as they were written: a number keeps its digits.
    return "{" + ",".join(f'"{name}":{value}' for name, value in members.items() if value) + "}"


def _line(change: Change) -> str:
    values = [value for value in (change.old, change.new) if value is not None]
    if not values:  # the deleted entity did not exist
        values = ["(none)"]
    entity = " ".join(map(on_one_line, change.entity))
    return printable(f"{change.mark} {entity}  {' -> '.join(values)}")


class Table:
    """A table that is redrawn for each batch. It shows the entities that changed last."""

    def __init__(self, stream: str, screen: FullScreen) -> None:
        self._stream = stream
        self._screen = screen
        self._values: dict[EntityId, str] = {}
        self._recent: dict[EntityId, None] = {}

    def show(self, changes: Sequence[StateChange], offset: str) -> None:
        # One change per entity: from the value on the screen to the current value.
        last: dict[EntityId, Change] = {}
        values = self._values
        for change in map(Change.of, changes):
            if change.new is None:
                values.pop(change.entity, None)
            else:
                values[change.entity] = change.new
            if change.operation != "load":
                before = last[change.entity].old if change.entity in last else change.old
                last[change.entity] = change._replace(old=before)
        if not self._recent:
            self._recent = dict.fromkeys(sorted(values, reverse=True))
        for entity in last:
            self._recent.pop(entity, None)
            if entity in values:
                self._recent[entity] = None
        _, height = terminal_size()
        self._screen.draw(self._compose(values, last, offset, max(height - _FRAME_LINES, 1)))

    def _compose(
        self,
        values: Mapping[EntityId, str],
        last: Mapping[EntityId, Change],
        offset: str,
        rows: int,
    ) -> list[str]:
        deleted = [entity for entity in last if entity not in values][:rows]
        current = _last(self._recent, rows - len(deleted))
        shown = sorted([*deleted, *current])
        cells = [
            (
                printable(on_one_line(type)),
                printable(on_one_line(key)),
                _value(values, last, (type, key)),
            )
            for type, key in shown
        ]
        head, *lines = aligned([("TYPE", "KEY", "VALUE"), *cells])
        title = f"{self._stream}  {amount(len(values), 'entity', 'entities')} at {offset}"
        drawn = [printable(title), styled(head, bold=True)]
        for entity, line in zip(shown, lines, strict=True):
            change = last.get(entity)
            colour = None if change is None else COLOURS[change.mark]
            drawn.append(line if colour is None else styled(line, fg=colour))
        hidden = len(values) - len(current)
        if hidden:
            drawn.append(f"… and {hidden:,} more, which changed earlier")
        return drawn


def _value(
    values: Mapping[EntityId, str], last: Mapping[EntityId, Change], entity: EntityId
) -> str:
    if entity in values:
        return printable(values[entity])
    return printable(last[entity].old or "")


def _last(recent: dict[EntityId, None], count: int) -> list[EntityId]:
    return list(islice(reversed(recent), max(count, 0)))
