"""The commands of the adapter protocol, carried out by one of the clients.

Every handler is written once for both: see `shells`.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import penstock
from penstock import errors
from tests.conformance.adapter.bench import measure
from tests.conformance.adapter.dynamic import Dynamic
from tests.conformance.adapter.results import Result, chunks_of, describe, failure
from tests.conformance.adapter.shells import each, settle
from tests.conformance.adapter.validation import check

Command = Mapping[str, Any]
Handler = Callable[[Command], Awaitable[Result]]

OCTETS: Final = "application/octet-stream"
FEATURES: Final = (
    "batching",
    "sse",
    "longPoll",
    "auto",
    "streaming",
    "dynamicHeaders",
    "retryOptions",
    "batchItems",
    "strictZeroValidation",
)
READ_TIMEOUT_MS: Final = 5000
CHUNKS_MAX: Final = 100
# The suite expects plain appends to be repeated after a 500 or a broken connection.
RETRY: Final = penstock.Retry(attempts_max=8, factor=1.5, resend_appends=True)


class Adapter:
    """What one run of the suite has set up: a client, content types, producers, dynamic values."""

    def __init__(self, make_client: Callable[..., Any]) -> None:
        self._make_client = make_client
        self._url = ""
        self._client: Any = None
        self._types: dict[str, str] = {}
        self._producers: dict[tuple[str, str, int], Any] = {}
        self._headers: dict[str, Dynamic] = {}
        self._params: dict[str, Dynamic] = {}
        self._open = AsyncExitStack()
        self._handlers: dict[str, Handler] = {
            "init": self._init,
            "create": self._create,
            "connect": self._connect,
            "append": self._append,
            "read": self._read,
            "head": self._head,
            "delete": self._delete,
            "close": self._close,
            "idempotent-append": self._idempotent_append,
            "idempotent-append-batch": self._idempotent_append_batch,
            "idempotent-close": self._idempotent_close,
            "idempotent-detach": self._idempotent_detach,
            "set-dynamic-header": self._set_dynamic,
            "set-dynamic-param": self._set_dynamic,
            "clear-dynamic": self._clear_dynamic,
            "validate": self._validate,
            "benchmark": self._benchmark,
            "shutdown": self._shutdown,
        }

    async def answer(self, line: bytes) -> Result:
        """The result of one command; a failure is a result too."""
        kind = "init"
        try:
            command = json.loads(line)
            kind = command["type"]
            handler = self._handlers.get(kind)
            if handler is None:
                return failure(kind, "NOT_SUPPORTED", f"there is no command {kind!r}")
            result = {"type": kind, "success": True, **await handler(command)}
        except Exception as error:  # noqa: BLE001 - the suite judges it
            return describe(kind, error)
        return {name: value for name, value in result.items() if value is not None}

    # -- streams

    async def _init(self, command: Command) -> Result:
        await self._reset()
        self._url = command["serverUrl"]
        timeout_ms = command.get("timeoutMs") or 30_000
        self._client = await self._new_client(timeout_s=timeout_ms / 1000)
        return {
            "clientName": "penstock",
            "clientVersion": penstock.__version__,
            "features": dict.fromkeys(FEATURES, True),
        }

    async def _create(self, command: Command) -> Result:
        path = command["path"]
        content_type = command.get("contentType") or OCTETS
        data = command.get("data")
        async with self._stream(command) as stream:
            created = await settle(
                stream.create(
                    content_type,
                    ttl_s=command.get("ttlSeconds"),
                    expires_at=command.get("expiresAt"),
                    closed=bool(command.get("closed")),
                    body=None if data is None else data.encode(),
                    exist_ok=True,
                )
            )
        self._types[path] = content_type
        return {"status": 201 if created.created else 200, "offset": created.offset}

    async def _connect(self, command: Command) -> Result:
        found = await self._head(command)
        return {"status": 200, "offset": found["offset"]}

    async def _head(self, command: Command) -> Result:
        async with self._stream(command) as stream:
            head = await settle(stream.head())
        self._types[command["path"]] = head.content_type
        return {
            "status": 200,
            "offset": head.offset,
            "contentType": head.content_type,
            "ttlSeconds": head.ttl_s,
            "expiresAt": head.expires_at,
            "streamClosed": head.closed,
        }

    async def _delete(self, command: Command) -> Result:
        async with self._stream(command) as stream:
            await settle(stream.delete())
        self._types.pop(command["path"], None)
        return {"status": 200}

    async def _append(self, command: Command) -> Result:
        data = command.get("data") or ""
        seq = command.get("seq")
        producer = None
        if command.get("producerId") is not None:
            epoch, number = command.get("producerEpoch"), command.get("producerSeq")
            producer = (command["producerId"], epoch or 0, number or 0)
        async with self._stream(command, dynamic=True) as stream:
            appended = await settle(
                stream.append(
                    base64.b64decode(data) if command.get("binary") else data.encode(),
                    seq=None if seq is None else str(seq),
                    producer=producer,
                )
            )
        return {
            "status": 204 if appended.duplicate else 200,
            "offset": appended.offset,
            "duplicate": None if producer is None else appended.duplicate,
            "producerEpoch": appended.producer_epoch,
            "producerSeq": appended.producer_seq,
            **self._sent(),
        }

    async def _close(self, command: Command) -> Result:
        data = command.get("data")
        content_type = command.get("contentType")
        async with self._stream(command) as stream:
            closed = await settle(
                stream.close(None if data is None else data.encode(), content_type=content_type)
            )
        return {"finalOffset": closed.offset}

    async def _read(self, command: Command) -> Result:
        offset = command.get("offset") or "-1"
        async with self._stream(command, dynamic=True) as stream:
            if command.get("live"):
                found = await self._follow(stream, offset, command)
            else:
                read = await settle(stream.read(offset))
                found = {
                    "status": 200,
                    "chunks": chunks_of(read),
                    "offset": read.next_offset,
                    "upToDate": read.up_to_date,
                    "streamClosed": read.closed,
                }
        return {**found, **self._sent()}

    async def _follow(self, stream: Any, offset: str, command: Command) -> Result:
        timeout_s = (command.get("timeoutMs") or READ_TIMEOUT_MS) / 1000
        chunks_max = command.get("maxChunks") or CHUNKS_MAX
        live = command["live"]
        follow = stream.follow(
            offset,
            mode=live if live in ("sse", "long-poll") else "auto",
            idle_timeout_s=timeout_s,
            protocol_errors_max=0,
        )
        chunks: list[Result] = []
        status = 200
        up_to_date = closed = False
        ends_at = time.monotonic() + timeout_s
        try:
            async for batch in each(follow):
                chunks += chunks_of(batch)
                up_to_date, closed = batch.up_to_date, batch.closed
                is_over = len(chunks) >= chunks_max or time.monotonic() >= ends_at
                if is_over or (up_to_date and command.get("waitForUpToDate")):
                    break
            else:
                up_to_date = True  # it has been silent for that long, or is closed
                if follow.mode == "long-poll" and not (chunks or closed):
                    status = 204  # the answer to a long-poll that waited in vain
        finally:
            await settle(follow.close())
        return {
            "status": status,
            "chunks": chunks,
            "offset": follow.offset,
            "upToDate": up_to_date,
            "streamClosed": closed,
        }

    # -- producers

    async def _idempotent_append(self, command: Command) -> Result:
        try:
            async with self._producer(command) as producer:
                await settle(producer.append(command["data"].encode()))
                await settle(producer.flush())
                seq = producer.next_seq - 1
                return {"status": 200, "offset": producer.offset, "producerSeq": seq}
        except errors.StaleEpoch as error:
            return _duplicate(error, command)

    async def _idempotent_append_batch(self, command: Command) -> Result:
        in_flight_max = command.get("maxInFlight") or 1
        # Requests overtake each other only if there are many: one for each message.
        alone = in_flight_max > 1
        producer = self._new_producer(
            command,
            in_flight_max=in_flight_max,
            linger_ms=0 if alone else 1000,
            batch_bytes_max=1 if alone else 1024 * 1024,
        )
        try:
            for item in command["items"]:
                await settle(producer.append(item.encode()))
            await settle(producer.flush())
            return {"status": 200, "producerSeq": producer.next_seq - 1}
        except errors.StaleEpoch as error:
            return _duplicate(error, command)
        finally:
            await settle(producer.detach())

    async def _idempotent_close(self, command: Command) -> Result:
        data = command.get("data")
        async with self._producer(command) as producer:
            final = None if data is None else data.encode()
            closed = await settle(producer.close_stream(final))
            return {"status": 200, "finalOffset": closed.offset}

    async def _idempotent_detach(self, command: Command) -> Result:
        async with self._producer(command) as producer:
            await settle(producer.detach())
        self._producers.pop(_producer_key(command), None)
        return {"status": 200}

    @asynccontextmanager
    async def _producer(self, command: Command) -> AsyncIterator[Any]:
        """The producer of that id and epoch, which lives until it is detached or has failed."""
        key = _producer_key(command)
        producer = self._producers.get(key)
        if producer is None:
            producer = self._producers[key] = self._new_producer(
                command, in_flight_max=1, linger_ms=0
            )
        try:
            yield producer
        except Exception:
            self._producers.pop(key, None)
            await settle(producer.detach())
            raise

    def _new_producer(self, command: Command, **options: Any) -> Any:
        stream = self._client.stream(
            self._url + command["path"],
            content_type=self._types.get(command["path"], OCTETS),
        )
        return stream.producer(
            command["producerId"],
            epoch=command.get("epoch") or 0,
            auto_claim=bool(command.get("autoClaim")),
            retry=RETRY,
            **options,
        )

    # -- dynamic values, validation, the end

    async def _set_dynamic(self, command: Command) -> Result:
        group = self._headers if command["type"] == "set-dynamic-header" else self._params
        group[command["name"]] = Dynamic(command["valueType"], command.get("initialValue"))
        return {}

    async def _clear_dynamic(self, command: Command) -> Result:
        self._headers.clear()
        self._params.clear()
        return {}

    async def _validate(self, command: Command) -> Result:
        check(command["target"], self._client.stream(f"{self._url}/validation"))
        return {}

    async def _shutdown(self, command: Command) -> Result:
        await self._reset()
        return {}

    async def _reset(self) -> None:
        producers, self._producers = self._producers, {}
        for producer in producers.values():
            await settle(producer.detach())
        await self._open.aclose()
        self._types.clear()
        await self._clear_dynamic({})

    async def _benchmark(self, command: Command) -> Result:
        operation = command["operation"]
        path = operation["path"]
        content_type = operation.get("contentType") or self._types.get(path, OCTETS)
        stream = self._client.stream(self._url + path, content_type=content_type)
        measured = await measure(stream, operation)
        return {"iterationId": command["iterationId"], **measured}

    # -- clients

    async def _new_client(self, **options: Any) -> Any:
        client = self._make_client(self._url, retry=RETRY, **options)

        async def close() -> None:
            await settle(client.close())

        self._open.push_async_callback(close)
        return client

    @asynccontextmanager
    async def _stream(self, command: Command, *, dynamic: bool = False) -> AsyncIterator[Any]:
        """The command's stream, on a client of its own if it has headers or parameters of its own.

        A content type that is not known is not asked for: each command is one request.
        """
        headers: dict[str, Any] = {}
        params: dict[str, Any] = {}
        if dynamic:
            for value in (*self._headers.values(), *self._params.values()):
                value.sent = None
            headers |= self._headers
            params |= self._params
        headers |= command.get("headers") or {}
        client = self._client
        own = bool(headers or params)
        if own:
            client = self._make_client(self._url, retry=RETRY, headers=headers, params=params)
        content_type = self._types.get(command["path"], OCTETS)
        try:
            yield client.stream(self._url + command["path"], content_type=content_type)
        finally:
            if own:
                await settle(client.close())

    def _sent(self) -> Result:
        """The dynamic values that have really gone out with the last command."""
        groups = {"headersSent": self._headers, "paramsSent": self._params}
        return {
            name: {key: value.sent for key, value in group.items() if value.sent is not None}
            for name, group in groups.items()
            if group
        }


def _producer_key(command: Command) -> tuple[str, str, int]:
    return command["path"], command["producerId"], command.get("epoch") or 0


def _duplicate(error: errors.StaleEpoch, command: Command) -> Result:
    """What the protocol calls a success: the server has that epoch's messages already.

    Our producers raise it, since the messages of this run are then not stored.
    """
    if error.epoch != (command.get("epoch") or 0):
        raise error
    return {"status": 200, "duplicate": True}
