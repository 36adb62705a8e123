"""`penstock state watch`: shows a state that follows its stream, as a table or one change per line.

It is not a `LiveState`: a line has the operation and the offset of each event, also of one that
changes nothing, and a filter fetches and holds only the entities that it selects. The rules for
control events are those of a live state.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock.cli.commands.state.entities import Change, EntityId, page_entities, pages, text
from penstock.cli.commands.state.screen import Screen, output
from penstock.cli.connection import Server, outage_notes, server_options, stream_argument
from penstock.cli.system import broken_pipe_noticed
from penstock.cli.terminal import has_cursor, note
from penstock.cli.text import amount
from penstock.cli.values import offset_of

if TYPE_CHECKING:
    from penstock.cli.formats import Message
    from penstock.client.batches import Batch
    from penstock.client.sync.stream import Stream
    from penstock.state.live.plan import Plan, Position


@click.command("watch")
@stream_argument()
@click.option("--type", "type", metavar="TEXT", help="Only entities of this type.")
@click.option("--key", metavar="TEXT", help="Only this entity; needs --type.")
@click.option("--prefix", metavar="TEXT", help="Only keys that start with TEXT; needs --type.")
@click.option(
    "--at",
    metavar="OFFSET",
    default="end",
    help="Start with the state at this offset, or at `start`.  [default: the current state]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per change.")
@server_options
def watch(
    server: Server,
    stream: str,
    type: str | None,
    key: str | None,
    prefix: str | None,
    at: str,
    as_json: bool,
) -> None:
    """Show a state and follow it until the stream is closed, or until Ctrl-C.

    On a terminal, the output is a table: green entities are new, yellow ones have changed, red ones
    were deleted. Elsewhere, each change is a line as in `diff`: `+` is a new entity, `-` a deleted
    one, `~` one with another value. The command waits for a server that restarts, and no change is
    lost or repeated.

    --json prints type, key, operation, old, new and offset of each change. `old` or `new` is
    omitted if the entity did not or does not exist. A reset is a change of every entity it deletes.

    \b
    Examples:
      penstock state watch team
      penstock state watch team --type user --prefix a
      penstock state watch team --json --at start | jq -c '[.key, .new]'
    """
    if type is None and (key is not None or prefix is not None):
        raise click.UsageError("--key and --prefix need --type.")
    if key is not None and prefix is not None:
        raise click.UsageError("Set either --key or --prefix.")
    with server.stream(stream) as remote, broken_pipe_noticed():
        watched = Watched(remote, Filter(type, key, prefix or ""))
        watched.load(offset_of(at))
        with output(stream, as_json=as_json) as screen:
            watched.follow(screen)
    if watched.skipped:
        verb = "is not an event" if watched.skipped == 1 else "are not events"
        note(f"{amount(watched.skipped, 'message')} {verb}")


class Filter(NamedTuple):
    """Selects the entities to watch."""

    type: str | None
    key: str | None
    prefix: str

    def selects(self, entity: EntityId) -> bool:
        type, key = entity
        if self.type not in (None, type) or self.key not in (None, key):
            return False
        return key.startswith(self.prefix)

    @property
    def query(self) -> dict[str, str]:
        options = {"type": self.type, "key": self.key, "prefix": self.prefix or None}
        return {name: value for name, value in options.items() if value is not None}


class Watched:
    """The entities that a filter selects, at an offset that advances."""

    def __init__(self, stream: Stream, filter: Filter) -> None:
        from penstock.protocol.offsets import START
        from penstock.state.live.rules import Rules

        self._stream = stream
        self._filter = filter
        self._rules = Rules()
        self.offset = START
        self.values: dict[EntityId, str] = {}
        self.skipped = 0
        self._redirected: set[str] = set()  # streams that redirected since the last batch

    def load(self, offset: str) -> None:
        """Fetch the state at an offset. The current state may be in another stream."""
        from penstock.protocol.offsets import NOW

        for page in pages(self._stream, offset, self._filter.query):
            self.offset = page.offset
            for type, key, value in page_entities(page):
                self.values[type, key] = text(value)
        if offset == NOW:
            successor = self._stream.head().successor
            if successor is not None:
                self._move(successor)

    def _move(self, location: str) -> None:
        """Continue with the state of the stream that this one redirects to."""
        from penstock import limits
        from penstock.errors import StateMoved
        from penstock.protocol.offsets import NOW
        from penstock.state.live.moves import resolved

        url = resolved(self._stream.url, location)
        self._redirected.add(self._stream.url)
        if url in self._redirected or len(self._redirected) > limits.LIVE_MOVES_MAX:
            raise StateMoved(
                f"The redirects to {url} form a circle. Append the state to one of the streams.",
                location=url,
            )
        self._stream = self._stream.client.stream(url)
        self.values = {}
        self.load(NOW)
        if self._stream.url == url:  # that stream does not redirect in turn
            note(f"The stream redirects to {url}.")

    def _redirect(self, location: str) -> Iterator[Change]:
        """Follow a redirect. Yield only the entities that differ."""
        from penstock.state.json import same_raw

        before = self.values
        self._move(location)
        for entity in sorted(before.keys() | self.values.keys()):
            old, new = before.get(entity), self.values.get(entity)
            if old is None or new is None or not same_raw(old.encode(), new.encode()):
                yield Change(*entity, "reset", old, new, self.offset)

    def follow(self, screen: Screen) -> None:
        """Follow the stream until it is closed. Outages are waited for."""
        from penstock.errors import Gone

        screen.show(self.values, [], self.offset)
        while True:
            try:
                if self._follow(screen):
                    return
            except Gone as error:  # recreated at the same path, or trimmed
                plan = self._rules.gone(error, self._position)
                screen.show(self.values, list(self._clear(self.offset)), plan.position.offset)
                self.offset = plan.position.offset

    def _follow(self, screen: Screen) -> bool:
        """Follow from the current offset. Return False if the read has to continue elsewhere."""
        from penstock.cli.messages import Splitter

        splitter = Splitter("")
        # A note would be in the middle of a table.
        tell = None if has_cursor(sys.stdout) else outage_notes(note)
        with self._stream.follow(self.offset, decode=False, on_outage=tell) as batches:
            for batch in batches:
                changes: list[Change] = []
                is_complete = self._apply(splitter, batch, changes)
                if is_complete:
                    self._redirected.clear()
                screen.show(self.values, changes, self.offset)
                if not is_complete:
                    return False
        return True

    def _apply(self, splitter: Any, batch: Batch, changes: list[Change]) -> bool:
        """Apply a batch. Return False at a reset that continues somewhere else."""
        from penstock.errors import InvalidEvent
        from penstock.state.events import ChangeEvent, parse

        for message in splitter.split(batch):
            self.offset = message.next_offset
            try:
                event = parse(message.data, strict_timestamp=False)
            except InvalidEvent:
                self.skipped += 1
                continue
            if isinstance(event, ChangeEvent):
                changes.extend(self._write(event, message.next_offset))
                continue
            plan = self._control(message, batch)
            if plan.moves_to is not None:
                changes.extend(self._redirect(plan.moves_to))
                return False
            if plan.clears:
                changes.extend(self._clear(message.next_offset))
            if plan.skips:
                self.offset = plan.position.offset
                return False
        self.offset = batch.next_offset
        return True

    def _write(self, event: Any, offset: str) -> Iterator[Change]:
        entity = (event.type, event.key)
        if not self._filter.selects(entity):
            return
        old = self.values.get(entity)
        new = None
        if event.operation == "delete":
            self.values.pop(entity, None)
        else:
            new = self.values[entity] = event.raw_value.decode()
        yield Change(*entity, event.operation, old, new, offset)

    def _clear(self, offset: str) -> Iterator[Change]:
        deleted, self.values = self.values, {}
        for entity in sorted(deleted):
            yield Change(*entity, "reset", deleted[entity], None, offset)

    @property
    def _position(self) -> Position:
        from penstock.state.live.plan import Position

        return Position(self.offset)

    def _control(self, message: Message, batch: Batch) -> Plan:
        """Return the plan of a control event, by the rules of a live state."""
        import msgspec

        from penstock.state.live.questions import answered

        single = msgspec.structs.replace(
            batch,
            offset=message.offset,
            next_offset=message.next_offset,
            data=b"[" + message.data + b"]",
        )
        planning = self._rules.plan(single, self._position, None)
        client = self._stream.client
        return client.run(answered(planning, self._stream.url, client.retry))
