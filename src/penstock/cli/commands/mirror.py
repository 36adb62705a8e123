"""`penstock mirror`: copies a stream to another, each message exactly once."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import TYPE_CHECKING

import click

from penstock.cli.connection import (
    Server,
    json_option,
    outage_notes,
    patient,
    server_options,
    stream_argument,
)
from penstock.cli.producer_marks import seekable, stored_epoch
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
@click.option("--once", is_flag=True, help="Stop at the end of SOURCE.")
@json_option
@server_options
def command(server: Server, source: str, destination: str, once: bool, as_json: bool) -> None:
    """Copy SOURCE to DESTINATION, each message exactly once, and continue with new messages.

    Both are streams of any server: URLs, CONTEXT:STREAM, or names on the current server.
    DESTINATION is created if it does not exist, and closed when SOURCE is closed. No other writer
    may append to it. DESTINATION itself stores how much is copied: stop the mirror at any time and
    start it again, on any machine, and no message is lost or repeated.

    \b
    Examples:
      penstock mirror prod:orders backup:orders
      penstock mirror --once https://a.example/v1/stream/x http://127.0.0.1:4437/v1/stream/x
    """
    with server.stream(source) as src, server.stream(destination) as dst:
        if src.url == dst.url:
            raise click.UsageError("SOURCE and DESTINATION are the same stream.")
        mirror = _Mirror(src, dst)
        with Progress(f"mirror {source}") as progress:
            mirror.run(progress, follow=not once)
    if as_json:
        fields = {"bytes": mirror.copied, "position": mirror.reached, "closed": mirror.closed}
        click.echo(json.dumps({"source": src.url, "destination": dst.url, **fields}))
    elif sys.stdout.isatty():
        closed = ", which is now closed" if mirror.closed else ""
        click.echo(printable(f"{size(mirror.copied)} copied to {destination}{closed}"))


class _Mirror:
    """One run. `reached` is the position in the source. If the offsets of its server are not
    positions, it is the number of messages, or of bytes if the stream is not JSON."""

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
            existing = destination.head().content_type
        except StreamNotFound:
            destination.ensure(content_type)
            return
        if media_type(existing) != media_type(content_type):
            raise ContentTypeMismatch(
                f"{destination.url} has content type {existing}, but the source has "
                f"{content_type}. Mirror to another stream."
            )

    def run(self, progress: Progress, *, follow: bool) -> None:
        self._resume()
        while True:
            try:
                return self._copy(progress, follow=follow)
            except (TailMoved, StaleEpoch) as error:
                # A request of a killed mirror, or of another mirror, was stored first.
                before = self.reached
                self._resume()
                if self.reached == before:
                    raise Conflict(
                        f"Another writer appends to {self._destination.url}, which is a mirror of "
                        f"{self._source.url}. Mirror to a stream without other writers."
                    ) from error

    def _resume(self) -> None:
        """Ask the destination how much is copied, and for its tail, to detect later appends."""
        self._tail = self._destination.head().offset
        epoch = stored_epoch(self._destination, self._id)
        if epoch is None and self._has_data():
            # A request of a killed mirror may have been stored between the two requests.
            epoch = stored_epoch(self._destination, self._id)
        if epoch is None and self._has_data():
            raise Conflict(
                f"{self._destination.url} holds data that is not from this mirror, or the source "
                "was recreated. Mirror to another stream."
            )
        self.reached = epoch or 0

    def _has_data(self) -> bool:
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
            on_outage=outage_notes(progress.note) if follow else None,
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
            raise StreamRecreated(
                f"{self._source.url} was recreated while it was mirrored. Mirror to another stream."
            )
        return end.position

    def _uncopied(self, data: bytes, counted: int) -> tuple[bytes, int]:
        """Return the part of a batch that is not copied yet, and the count at its end."""
        from penstock.cli.messages import json_messages

        if not self._is_json:
            end = counted + len(data)
            return data[max(self.reached - counted, 0) :], end
        messages = json_messages(data)
        missing = messages[max(self.reached - counted, 0) :]
        return (b"[" + b",".join(missing) + b"]" if missing else b""), counted + len(messages)

    def _append(self, data: bytes, reached: int) -> None:
        # The client adds an array around the messages.
        body = data.strip()[1:-1] if self._is_json else data
        answer = self._destination.append_many(
            [body], if_match=self._tail, producer=(self._id, reached, 0)
        )
        self._tail, self.reached = answer.offset, reached
        self.copied += len(body)
