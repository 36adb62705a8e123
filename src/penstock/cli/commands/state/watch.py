"""`penstock state watch`: a state that follows its stream; a table, or one change a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock.cli.commands.state.screen import Screen, output
from penstock.cli.connection import Server, server_options, stream_argument
from penstock.cli.entities import Change, Place, of_page, pages, text
from penstock.cli.system import broken_pipe_noticed
from penstock.cli.terminal import note
from penstock.cli.text import amount
from penstock.cli.values import offset_of

if TYPE_CHECKING:
    from penstock.cli.formats import Message
    from penstock.client.batches import Batch
    from penstock.client.sync.stream import Stream
    from penstock.state.live.plan import Plan, Position


@click.command("watch")
@stream_argument()
@click.option("--type", "type", metavar="TEXT", help="Only this type.")
@click.option("--key", metavar="TEXT", help="Only this entity; needs --type.")
@click.option("--prefix", metavar="TEXT", help="Only keys that begin so; needs --type.")
@click.option(
    "--at",
    metavar="OFFSET",
    default="end",
    help="Begin with the state at this offset (or `start`) instead of the state now.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a change.")
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
    """Show a state and follow it, until the stream is closed or Ctrl-C.

    A terminal gets a table that changes with the state: green is new, yellow has changed, red goes.
    Otherwise each change is a line, as in `diff`: `+` came, `-` went, `~` has another value. A
    server that restarts is waited for, and nothing is missed or repeated.

    --json prints type, key, operation, old, new and offset of each change; `old` or `new` is left
    out where there is no entity, and a reset is a change of every entity that it clears.

    \b
    Examples:
      penstock state watch team
      penstock state watch team --type user --prefix a
      penstock state watch team --json --at start | jq -c '[.key, .new]'
    """
    if type is None and (key is not None or prefix is not None):
        raise click.UsageError("--key and --prefix need --type")
    if key is not None and prefix is not None:
        raise click.UsageError("give either --key or --prefix")
    with server.stream(stream) as found, broken_pipe_noticed():
        watched = Watched(found, Filter(type, key, prefix or ""))
        watched.load(offset_of(at))
        with output(stream, as_json=as_json) as screen:
            watched.follow(screen)
    if watched.skipped:
        was = "was no event" if watched.skipped == 1 else "were no events"
        note(f"{amount(watched.skipped, 'message')} {was}")


class Filter(NamedTuple):
    """Which entities are looked at."""

    type: str | None
    key: str | None
    prefix: str

    def takes(self, entity: Place) -> bool:
        type, key = entity
        if self.type not in (None, type) or self.key not in (None, key):
            return False
        return key.startswith(self.prefix)

    @property
    def query(self) -> dict[str, str]:
        given = {"type": self.type, "key": self.key, "prefix": self.prefix or None}
        return {name: word for name, word in given.items() if word is not None}


class Watched:
    """The entities that a filter takes, as of an offset that moves on."""

    def __init__(self, stream: Stream, wanted: Filter) -> None:
        from penstock.protocol.offsets import START
        from penstock.state.live.rules import Rules

        self._stream = stream
        self._filter = wanted
        self._rules = Rules()
        self.offset = START
        self.values: dict[Place, str] = {}
        self.skipped = 0
        self._left: set[str] = set()  # streams that have led on to another one, without a rest

    def load(self, offset: str) -> None:
        from penstock.protocol.offsets import NOW

        for page in pages(self._stream, offset, self._filter.query):
            self.offset = page["offset"]
            for type, key, value in of_page(page):
                self.values[type, key] = text(value)
        if offset == NOW:
            successor = self._stream.head().successor
            if successor is not None:
                self._move(successor)

    def _move(self, location: str) -> None:
        """Go on with the state of the stream that this one has led on to."""
        from penstock import limits
        from penstock.errors import StateMoved
        from penstock.protocol.offsets import NOW
        from penstock.state.live.moves import resolved

        url = resolved(self._stream.url, location)
        self._left.add(self._stream.url)
        if url in self._left or len(self._left) > limits.LIVE_MOVES_MAX:
            raise StateMoved(f"{url} and the streams before it lead in a circle.", location=url)
        self._stream = self._stream.client.stream(url)
        self.values = {}
        self.load(NOW)
        if self._stream.url == url:  # not one that has moved in turn
            note(f"it goes on in {url}")

    def _moved(self, location: str) -> Iterator[Change]:
        """Move, as changes: only what is different there."""
        before = self.values
        self._move(location)
        for entity in sorted(before.keys() | self.values.keys()):
            old, new = before.get(entity), self.values.get(entity)
            if old is None or new is None or json.loads(old) != json.loads(new):
                yield Change(*entity, "reset", old, new, self.offset)

    def follow(self, screen: Screen) -> None:
        """Until the stream is closed; outages are waited out."""
        from penstock.errors import Gone

        screen.show(self.values, [], self.offset)
        while True:
            try:
                if self._follow(screen):
                    return
            except Gone as error:  # made anew at the same path, or trimmed
                plan = self._rules.gone(error, self._position)
                screen.show(self.values, list(self._clear(self.offset)), plan.position.offset)
                self.offset = plan.position.offset

    def _follow(self, screen: Screen) -> bool:
        """False if the stream has to be read on from somewhere else."""
        from penstock.cli.messages import Splitter

        splitter = Splitter("")
        with self._stream.follow(self.offset, decode=False) as batches:
            for batch in batches:
                changes: list[Change] = []
                reached = self._take(splitter, batch, changes)
                if reached:
                    self._left.clear()
                screen.show(self.values, changes, self.offset)
                if not reached:
                    return False
        return True

    def _take(self, splitter: Any, batch: Batch, changes: list[Change]) -> bool:
        """Apply a batch; false at a reset that leads away from it."""
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
                changes.extend(self._moved(plan.moves_to))
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
        if not self._filter.takes(entity):
            return
        old = self.values.get(entity)
        new = None
        if event.operation == "delete":
            self.values.pop(entity, None)
        else:
            new = self.values[entity] = event.raw_value.decode()
        yield Change(*entity, event.operation, old, new, offset)

    def _clear(self, offset: str) -> Iterator[Change]:
        gone, self.values = self.values, {}
        for entity in sorted(gone):
            yield Change(*entity, "reset", gone[entity], None, offset)

    @property
    def _position(self) -> Position:
        from penstock.state.live.plan import Position

        return Position(self.offset)

    def _control(self, message: Message, batch: Batch) -> Plan:
        """What a live state would do with a control event: the same rules decide."""
        import msgspec

        single = msgspec.structs.replace(
            batch,
            offset=message.offset,
            next_offset=message.next_offset,
            data=b"[" + message.data + b"]",
        )
        planning = self._rules.plan(single, self._position, None)
        answer: Any = None
        while True:
            try:
                question = planning.send(answer)
            except StopIteration as stop:
                plan: Plan = stop.value
                return plan
            answer = self._exists(question)

    def _exists(self, question: Any) -> bool | None:
        """Whether the stream can be read from there; within one message nothing can."""
        from penstock.errors import BadRequest, Gone, StreamNotFound
        from penstock.state.live.plan import Exists

        if not isinstance(question, Exists):
            return None
        try:
            with self._stream.follow(question.offset, decode=False) as batches:
                next(batches)
        except (BadRequest, Gone, StreamNotFound):
            return None
        return True
