# Generated from client/aio/stream.py by scripts/unasync.py; do not edit.
"""A stream of the blocking client: each method runs a flow of `client/operations`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from penstock.client.answers import Appended, Created, Head, Retention, StateSnapshot, StateStep
from penstock.client.batches import Batch, Read
from penstock.client.checkpoint import Checkpoint
from penstock.client.endurance import OnOutage
from penstock.client.follow import Follower, FollowOptions, Mode, OnReset
from penstock.client.operations import AppendOptions, Operations, Producer, ReadOptions
from penstock.client.requests import (
    JSON,
    CreateOptions,
    Filter,
    ForkAt,
    Start,
    Time,
    state_params,
    stream_url,
)
from penstock.client.retry import Retry
from penstock.client.sync.runtime import Items
from penstock.client.writing import (
    QUEUE_BYTES_MAX,
    OnSourceError,
    WriteOptions,
    WriteProgress,
    Written,
)
from penstock.protocol.offsets import START

if TYPE_CHECKING:
    from penstock.client.sync import producer as producers
    from penstock.client.sync.client import Client


class Stream:
    """A stream by its URL. It holds no connection, and making one sends nothing."""

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
        """The stream's content type, if it was passed or an answer has named it."""
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
        """Create the stream, with `body` as its first message if there is one.

        Raises StreamExists if it exists; with `exist_ok`, only if it differs in content type,
        expiry or being closed. Without a content type it holds JSON. A stream `forked_from` another
        begins with the messages of that up to `fork_offset`, or its tail, and has the content type
        and lifetime of its source unless you pass others.
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
        """Create a stream that begins with the messages of this one up to the offset `at`, or its
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
        """Create the stream unless it exists; `body` is stored only if it is created."""
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
        """Delete the messages before an offset; return the earliest offset (a feature of Penstock
        servers). Forks keep their messages."""
        return self.client.run(self._operations.trim(before))

    def compact(self) -> str:
        """Replace the history of a declared state stream by its live state; return the earliest
        offset (a feature of Penstock servers)."""
        return self.client.run(self._operations.compact())

    def retention(self) -> Retention:
        """Return the limits in force, its own or those of its path (a feature of Penstock
        servers)."""
        return self.client.run(self._operations.retention())

    def set_retention(
        self, *, age_s: int | None = None, bytes: int | None = None, compact: int | None = None
    ) -> None:
        """Delete messages that are older than `age_s` or before the last `bytes`; compact a state
        stream whose log is `compact` times its live state (a feature of Penstock servers). Without
        limits nothing is deleted."""
        self.client.run(self._operations.set_retention(age_s, bytes, compact, own=True))

    def reset_retention(self) -> None:
        """Return to the limits that the server has for the stream's path."""
        self.client.run(self._operations.set_retention(None, None, None, own=False))

    def state(
        self,
        *,
        offset: str | None = None,
        at: datetime | str | None = None,
        type: str | None = None,
        prefix: str | None = None,
    ) -> StateSnapshot:
        """Return the state that the stream folds to (a feature of Penstock servers): at its tail,
        at an `offset`, or before the first message appended `at` a time or later. `type` and
        `prefix` choose entities by their type and the beginning of their keys."""
        params = state_params(offset=offset, at=at, type=type, prefix=prefix)
        return self.client.run(self._operations.state(params))

    def history(
        self, type: str, key: str, *, offset: str | None = None, at: datetime | str | None = None
    ) -> list[StateStep]:
        """Return the changes of one entity, oldest first, up to the tail or to an `offset` (a
        feature of Penstock servers)."""
        params = state_params(offset=offset, at=at, type=type, key=key)
        return self.client.run(self._operations.history(params))

    def head(self) -> Head:
        """Return the properties of the stream and its tail."""
        return self.client.run(self._operations.head())

    def start_offset(self, *, at: Time | None = None, tail: int | None = None) -> str:
        """Return the offset at which a read from a time, or of the last messages, starts (a feature
        of Penstock servers)."""
        start = Start.of(START, at, tail)
        if start is None:
            raise ValueError("Pass `at` or `tail`.")
        return self.client.run(self._operations.start_offset(start))

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

        The content type is the stream's; the first append asks the server for it if need be. With
        `if_match` the stream must end at that offset, else TailMoved is raised.
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
        """Close the stream for good, after a last message if there is one."""
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
        at: Time | None = None,
        tail: int | None = None,
        until: str | None = None,
        count: int | None = None,
        types: str | Iterable[str] = (),
        keys: str | Iterable[str] = (),
        decode: bool = True,
        message_type: Any = None,
    ) -> Read:
        """Read everything from `offset` to the tail into memory.

        Instead of at an offset it starts `at` a time, or with the last `tail` messages of a JSON
        stream, or lines of text. `until` (an offset) and `count` (messages of a JSON stream) end it
        earlier. Of a state stream, `types` and `keys` select change events; control events always
        come. These are extensions of Penstock servers. With `message_type` msgspec decodes messages
        as that type; with `decode=False` there is only `data`.
        """
        options = ReadOptions(
            offset=offset,
            start=Start.of(offset, at, tail),
            until=until,
            count=count,
            filter=Filter.of(types, keys),
            decode=decode,
            message_type=message_type,
        )
        return self.client.run(self._operations.read(options))

    def read_json(
        self,
        offset: str = START,
        *,
        at: Time | None = None,
        tail: int | None = None,
        until: str | None = None,
        count: int | None = None,
        types: str | Iterable[str] = (),
        keys: str | Iterable[str] = (),
        message_type: Any = None,
    ) -> list[Any]:
        """Read the messages of a JSON stream. Raises ContentTypeMismatch if it holds anything
        else."""
        options = ReadOptions(
            offset=offset,
            start=Start.of(offset, at, tail),
            until=until,
            count=count,
            filter=Filter.of(types, keys),
            message_type=message_type,
            json_only=True,
        )
        return self.client.run(self._operations.read(options)).messages

    def read_bytes(self, offset: str = START, **options: Any) -> bytes:
        return self.read(offset, decode=False, **options).data

    def read_text(self, offset: str = START, **options: Any) -> str:
        """Read a stream of any type as UTF-8 text."""
        return self.read(offset, decode=False, **options).data.decode("utf-8", "replace")

    def iter_batches(
        self,
        offset: str = START,
        *,
        at: Time | None = None,
        tail: int | None = None,
        until: str | None = None,
        count: int | None = None,
        types: str | Iterable[str] = (),
        keys: str | Iterable[str] = (),
        decode: bool = True,
        message_type: Any = None,
    ) -> Iterator[Batch]:
        """Like `read`, but batch by batch, as the server cuts them."""
        options = ReadOptions(
            offset=offset,
            start=Start.of(offset, at, tail),
            until=until,
            count=count,
            filter=Filter.of(types, keys),
            decode=decode,
            message_type=message_type,
        )
        return self.client.iterate(self._operations.batches(options))

    def follow(
        self,
        offset: str = START,
        *,
        at: Time | None = None,
        tail: int | None = None,
        types: str | Iterable[str] = (),
        keys: str | Iterable[str] = (),
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
        on_outage: OnOutage | None = None,
    ) -> Follow:
        """Iterate over batches from `offset` on, existing and new, until the stream is closed.

        After a failure that may pass it resumes from the last whole batch. The guide explains each
        option.
        """
        options = FollowOptions(
            offset=offset,
            start=Start.of(offset, at, tail),
            filter=Filter.of(types, keys),
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
            on_outage=on_outage,
        )
        return Follow(self.client, self._operations.follow(options))

    def producer(self, id: str, **options: Any) -> producers.Producer:
        """Return a producer, which batches, pipelines and repeats appends safely: see
        `Producer`."""
        from penstock.client.sync.producer import Producer

        return Producer(self, id, **options)

    def write_from(
        self,
        items: Items,
        *,
        close: bool = True,
        on_error: OnSourceError = "close",
        error_record: Callable[[BaseException], Any] | None = None,
        producer_id: str | None = None,
        skip: int = 0,
        progress: WriteProgress | None = None,
        linger_ms: float = 5.0,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
    ) -> Written:
        """Write what a generator yields as it comes, each item once and in order, and close the
        stream; return the tail and the number of items.

        The generator waits while `queue_bytes_max` are not stored yet. If it raises or is
        cancelled, what it has yielded is stored, the stream is closed with an error record and the
        error goes on; with `on_error="leave"` the stream stays open. To go on after that, pass the
        same `producer_id` and `skip` the items that `progress` has as stored. The guide explains
        each option.
        """
        from penstock.client.sync.producer import Producer
        from penstock.client.sync.writing import write_from

        progress = WriteProgress() if progress is None else progress
        options = WriteOptions(close, on_error, error_record, skip, progress)
        options.check()
        producer = Producer(
            self,
            producer_id or f"write-from-{uuid4()}",
            auto_claim="start",
            linger_ms=linger_ms,
            queue_bytes_max=queue_bytes_max,
        )
        return write_from(self, items, producer, options)


class Follow:
    """The batches of `follow`. `close()`, or the end of `with`, ends the connection."""

    def __init__(self, client: Client, follower: Follower) -> None:
        self._follower = follower
        self._batches = client.iterate(follower.flow())

    @property
    def offset(self) -> str:
        """The offset at which the next batch starts."""
        return self._follower.offset

    @property
    def mode(self) -> str:
        """The current mode: catch-up, sse or long-poll."""
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
