"""`penstock mirror`: a stream copied into another, exactly once, resumed from what is there."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import TYPE_CHECKING

import click

from penstock.cli.connection import Server, json_option, patient, server_options, stream_argument
from penstock.cli.producer_marks import known_epoch, seekable
from penstock.cli.terminal import Progress, printable
from penstock.cli.text import size
from penstock.errors import (
    Conflict,
    ContentTypeMismatch,
    StaleEpoch,
    StreamNotFound,
    StreamRecreated,
    TailMoved,
)
from penstock.protocol.headers import is_json, media_type
from penstock.protocol.offsets import START

if TYPE_CHECKING:
    from penstock.client.batches import Batch
    from penstock.client.sync.stream import Stream


@click.command("mirror")
@stream_argument("source")
@stream_argument("destination")
@click.option("--once", is_flag=True, help="Stop when DESTINATION has all that SOURCE holds.")
@json_option
@server_options
def command(server: Server, source: str, destination: str, once: bool, as_json: bool) -> None:
    """Copy SOURCE into DESTINATION, exactly once, and go on with what is appended.

    Both are streams of any server: URLs, CONTEXT:STREAM, or names on the server in use. DESTINATION
    is created if it is absent, and closed when SOURCE is; nobody else should write to it. How far
    it has come is kept in DESTINATION itself: kill the mirror at any moment and start it again,
    here or elsewhere, and nothing is lost or doubled.

    \b
    Examples:
      penstock mirror prod:orders backup:orders
      penstock mirror --once https://a.example/v1/stream/x http://127.0.0.1:4437/v1/stream/x
    """
    with server.stream(source) as src, server.stream(destination) as dst:
        if src.url == dst.url:
            raise click.UsageError("SOURCE and DESTINATION are the same stream")
        mirror = _Mirror(src, dst)
        with Progress(f"mirror {source}") as progress:
            mirror.run(progress, follow=not once)
    if as_json:
        fields = {"bytes": mirror.copied, "position": mirror.reached, "closed": mirror.closed}
        click.echo(json.dumps({"source": src.url, "destination": dst.url, **fields}))
    elif sys.stdout.isatty():
        closed = ", which is closed now" if mirror.closed else ""
        click.echo(printable(f"{size(mirror.copied)} copied to {destination}{closed}"))


class _Mirror:
    """One run. `reached` is the position in the source, or the number of messages (bytes, if it is
    not JSON) where the offsets of its server are no positions."""

    def __init__(self, source: Stream, destination: Stream) -> None:
        head = source.head()
        end = seekable(head.offset)
        self._generation = None if end is None else end.generation
        self._is_json = is_json(head.content_type)
        life = f"{source.url}\n{self._generation}"
        self._id = f"penstock-mirror-{hashlib.sha256(life.encode()).hexdigest()[:32]}"
        self._prepare(destination, head.content_type)
        self._source, self._destination = patient(source), patient(destination)
        self._tail = ""
        self.reached = 0
        self.copied = 0
        self.closed = False

    def _prepare(self, destination: Stream, content_type: str) -> None:
        try:
            found = destination.head().content_type
        except StreamNotFound:
            destination.ensure(content_type)
            return
        if media_type(found) != media_type(content_type):
            raise ContentTypeMismatch(
                f"{destination.url} holds {found}, and the source {content_type}."
            )

    def run(self, progress: Progress, *, follow: bool) -> None:
        self._find()
        while True:
            try:
                return self._copy(progress, follow=follow)
            except (TailMoved, StaleEpoch) as error:
                # A request of a mirror that was killed, or another mirror, was faster than we are.
                before = self.reached
                self._find()
                if self.reached == before:
                    raise Conflict(
                        f"Somebody else writes to {self._destination.url}, which is a mirror of "
                        f"{self._source.url}: give the mirror a stream of its own."
                    ) from error

    def _find(self) -> None:
        """Where the destination stands: asked for its tail first, to notice what comes after."""
        self._tail = self._destination.head().offset
        known = known_epoch(self._destination, self._id)
        if known is None and self._holds_something():
            # Unless a request of a killed mirror came between the two questions.
            known = known_epoch(self._destination, self._id)
        if known is None and self._holds_something():
            raise Conflict(
                f"{self._destination.url} holds data that is not from this mirror (or the source "
                "was made anew): mirror into another stream."
            )
        self.reached = known or 0

    def _holds_something(self) -> bool:
        first = next(iter(self._destination.iter_batches(START, decode=False)))
        return bool(first.data)

    def _copy(self, progress: Progress, *, follow: bool) -> None:
        counted, offset = 0, START
        if self._generation is not None and self.reached:
            offset = f"{self._generation}_{self.reached:016d}"
        with self._source.follow(
            offset,
            decode=False,
            stop_when_up_to_date=not follow,
            retry=None if follow else self._source.client.retry,
        ) as batches:
            for batch in batches:
                if self._generation is None:
                    data, counted = self._uncopied(batch.data, counted)
                    reached = counted
                else:
                    data, reached = batch.data, self._position(batch)
                if data:
                    self._append(data, reached)
                progress.bytes(self.copied, "up to date" if batch.up_to_date else "")
                if batch.closed:
                    self._destination.close()
                    self.closed = True

    def _position(self, batch: Batch) -> int:
        end = seekable(batch.next_offset)
        if end is None or end.generation != self._generation:
            raise StreamRecreated(f"{self._source.url} was made anew while it was mirrored.")
        return end.position

    def _uncopied(self, data: bytes, counted: int) -> tuple[bytes, int]:
        """The part of a batch that is not copied yet, and how much there is up to its end."""
        from penstock.cli.messages import json_messages

        if not self._is_json:
            end = counted + len(data)
            return data[max(self.reached - counted, 0) :], end
        messages = json_messages(data)
        left = messages[max(self.reached - counted, 0) :]
        return (b"[" + b",".join(left) + b"]" if left else b""), counted + len(messages)

    def _append(self, data: bytes, reached: int) -> None:
        # The client puts an array around what it is given.
        body = data.strip()[1:-1] if self._is_json else data
        answer = self._destination.append_many(
            [body], if_match=self._tail, producer=(self._id, reached, 0)
        )
        self._tail, self.reached = answer.offset, reached
        self.copied += len(body)
