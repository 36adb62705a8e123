# Generated from client/aio/stream.py by scripts/unasync.py; do not edit.
"""One stream, for the blocking client: each method runs a flow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from penstock.client.answers import Appended, Created, Head, Retention
from penstock.client.batches import Batch, Read
from penstock.client.checkpoint import Checkpoint
from penstock.client.follow import Follower, FollowOptions, Mode, OnReset
from penstock.client.operations import AppendOptions, Operations, Producer, ReadOptions
from penstock.client.requests import JSON, CreateOptions, ForkAt, stream_url
from penstock.client.retry import Retry
from penstock.protocol.offsets import START

if TYPE_CHECKING:
    from penstock.client.sync import producer as producers
    from penstock.client.sync.client import Client


class Stream:
    """A stream by its URL. Making one sends nothing; it holds no connection."""

    def __init__(
        self, client: Client, path_or_url: str, *, content_type: str | None = None
    ) -> None:
        self.client = client
        self._operations = Operations(
            stream_url(client.url, path_or_url), client.retry, content_type
        )

    @property
    def url(self) -> str:
        return self._operations.url

    @property
    def content_type(self) -> str | None:
        """The stream's content type, if it was given or an answer has told it."""
        return self._operations.content_type

    def create(
        self,
        content_type: str | None = None,
        *,
        ttl_s: int | None = None,
        expires_at: datetime | str | None = None,
        closed: bool = False,
        body: Any = None,
        exist_ok: bool = False,
        forked_from: str | Stream | None = None,
        fork_offset: str | None = None,
        fork_sub_offset: int = 0,
    ) -> Created:
        """Create the stream, with `body` as its first message if one is given.

        StreamExists is raised if there is one already; with `exist_ok`, only if it differs in
        content type, expiry or being closed. Without a content type it holds JSON. A stream
        `forked_from` another begins with what that has up to `fork_offset`, or up to its tail, and
        has the content type and lifetime of its source unless others are given.
        """
        options = CreateOptions(
            content_type=content_type,
            ttl_s=ttl_s,
            expires_at=expires_at,
            closed=closed,
            body=body,
            exist_ok=exist_ok,
            fork=self._fork_at(forked_from, fork_offset, fork_sub_offset),
        )
        return self.client.run(self._operations.create(options))

    def fork(
        self,
        path_or_url: str,
        *,
        at: str | None = None,
        sub_offset: int = 0,
        ttl_s: int | None = None,
        expires_at: datetime | str | None = None,
        closed: bool = False,
        body: Any = None,
        exist_ok: bool = False,
    ) -> Stream:
        """A new stream that begins with what this one has up to the offset `at`, or up to its
        tail. Nothing is copied."""
        forked = Stream(self.client, path_or_url, content_type=self.content_type)
        options = CreateOptions(
            ttl_s=ttl_s,
            expires_at=expires_at,
            closed=closed,
            body=body,
            exist_ok=exist_ok,
            fork=ForkAt(self.url, at, sub_offset),
        )
        self.client.run(forked._operations.create(options))
        return forked

    def _fork_at(
        self, source: str | Stream | None, offset: str | None, sub_offset: int
    ) -> ForkAt | None:
        if source is None:
            return None
        url = stream_url(self.client.url, source) if isinstance(source, str) else source.url
        return ForkAt(url, offset, sub_offset)

    def ensure(
        self,
        content_type: str = JSON,
        *,
        ttl_s: int | None = None,
        expires_at: datetime | str | None = None,
        closed: bool = False,
        body: Any = None,
    ) -> Created:
        """Create the stream unless it is there; `body` is stored only if it is created."""
        options = CreateOptions(
            content_type=content_type,
            ttl_s=ttl_s,
            expires_at=expires_at,
            closed=closed,
            body=body,
            exist_ok=True,
        )
        return self.client.run(self._operations.create(options))

    def trim(self, before: str) -> str:
        """Keep nothing before an offset; the earliest one that is left (a feature of Penstock
        servers). Forks keep what they have."""
        return self.client.run(self._operations.trim(before))

    def compact(self) -> str:
        """Put the live state of a declared state stream in the place of its history; the earliest
        offset that is left (a feature of Penstock servers)."""
        return self.client.run(self._operations.compact())

    def retention(self) -> Retention:
        """The limits in force, its own or those of its path (a feature of Penstock servers)."""
        return self.client.run(self._operations.retention())

    def set_retention(
        self, *, age_s: int | None = None, bytes: int | None = None, compact: int | None = None
    ) -> None:
        """Let go of what is older, and of what is before the last so many bytes; compact a state
        stream whose log is so many times its live state (a feature of Penstock servers). Without
        limits everything is kept."""
        self.client.run(self._operations.set_retention(age_s, bytes, compact, own=True))

    def reset_retention(self) -> None:
        """Back to the limits that the server has for the stream's path."""
        self.client.run(self._operations.set_retention(None, None, None, own=False))

    def head(self) -> Head:
        """What the stream is and where it ends."""
        return self.client.run(self._operations.head())

    def exists(self) -> bool:
        return self.client.run(self._operations.exists())

    def append(
        self,
        data: Any,
        *,
        content_type: str | None = None,
        seq: str | None = None,
        if_match: str | None = None,
        producer: Producer | None = None,
    ) -> Appended:
        """Append one message: any JSON value to a JSON stream, bytes or str to others.

        The content type is the stream's; if it is not known yet it is asked for once. `if_match`
        is the offset at which the stream has to end for the append to happen, else TailMoved.
        """
        return self.append_many(
            [data], content_type=content_type, seq=seq, if_match=if_match, producer=producer
        )

    def append_many(
        self,
        values: Iterable[Any],
        *,
        content_type: str | None = None,
        seq: str | None = None,
        if_match: str | None = None,
        producer: Producer | None = None,
    ) -> Appended:
        """Append several messages in one request: all of them or none."""
        options = AppendOptions(
            content_type=content_type, seq=seq, if_match=if_match, producer=producer
        )
        return self.client.run(self._operations.append(values, options))

    def close(
        self,
        data: Any = None,
        *,
        content_type: str | None = None,
        seq: str | None = None,
        if_match: str | None = None,
        producer: Producer | None = None,
    ) -> Appended:
        """Close the stream for good, after a last message if one is given."""
        options = AppendOptions(
            content_type=content_type, seq=seq, if_match=if_match, producer=producer, close=True
        )
        messages = [] if data is None else [data]
        return self.client.run(self._operations.append(messages, options))

    def delete(self) -> None:
        self.client.run(self._operations.delete())

    def read(
        self,
        offset: str = START,
        *,
        until: str | None = None,
        count: int | None = None,
        decode: bool = True,
        message_type: Any = None,
    ) -> Read:
        """Everything from `offset` to the end, held in memory.

        `until` (an offset) and `count` (messages of a JSON stream) end it earlier; they are
        extensions of Penstock servers. With `message_type` messages are decoded as that type by
        msgspec; with `decode=False` there is only `data`.
        """
        options = ReadOptions(
            offset=offset, until=until, count=count, decode=decode, message_type=message_type
        )
        return self.client.run(self._operations.read(options))

    def read_json(self, offset: str = START, **options: Any) -> list[Any]:
        """The messages of a JSON stream."""
        return self.read(offset, **options).messages

    def read_bytes(self, offset: str = START, **options: Any) -> bytes:
        return self.read(offset, decode=False, **options).data

    def read_text(self, offset: str = START, **options: Any) -> str:
        """The bytes of a stream of any type, as UTF-8 text."""
        return self.read(offset, decode=False, **options).data.decode("utf-8", "replace")

    def iter_batches(
        self,
        offset: str = START,
        *,
        until: str | None = None,
        count: int | None = None,
        decode: bool = True,
        message_type: Any = None,
    ) -> Iterator[Batch]:
        """Like `read`, but chunk by chunk, as the server cuts them."""
        options = ReadOptions(
            offset=offset, until=until, count=count, decode=decode, message_type=message_type
        )
        return self.client.iterate(self._operations.batches(options))

    def follow(
        self,
        offset: str = START,
        *,
        mode: Mode = "auto",
        checkpoint: Checkpoint | None = None,
        checkpoint_key: str | None = None,
        on_reset: OnReset = "raise",
        idle_timeout_s: float | None = None,
        stop_when_up_to_date: bool = False,
        decode: bool = True,
        message_type: Any = None,
        retry: Retry | None = None,
        protocol_errors_max: int = 3,
    ) -> Follow:
        """Everything from `offset` on, and then what is appended, until the stream is closed.

        Any failure that may pass is waited out and the reading goes on from the last whole batch;
        see the guide for each option.
        """
        options = FollowOptions(
            offset=offset,
            mode=mode,
            checkpoint=checkpoint,
            checkpoint_key=checkpoint_key,
            on_reset=on_reset,
            idle_timeout_s=idle_timeout_s,
            stop_when_up_to_date=stop_when_up_to_date,
            decode=decode,
            message_type=message_type,
            retry=retry,
            protocol_errors_max=protocol_errors_max,
        )
        return Follow(self.client, self._operations.follow(options))

    def producer(self, id: str, **options: Any) -> producers.Producer:
        """A producer that batches, pipelines and repeats appends safely; see `Producer`."""
        from penstock.client.sync.producer import Producer

        return Producer(self, id, **options)


class Follow:
    """The batches of `follow`. `close()`, or the end of `with`, ends the connection."""

    def __init__(self, client: Client, follower: Follower) -> None:
        self._follower = follower
        self._batches = client.iterate(follower.flow())

    @property
    def offset(self) -> str:
        """Where the next batch starts."""
        return self._follower.offset

    @property
    def mode(self) -> str:
        """How it reads at the moment: catch-up, sse or long-poll."""
        return self._follower.mode

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        batch: Batch = next(self._batches)
        return batch

    def close(self) -> None:
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
