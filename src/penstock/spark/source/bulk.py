"""Reads of ranges over one connection, received into one buffer each: a third of the processor time
that a general HTTP client takes. Small ranges are pipelined: sent before earlier answers have
arrived, so that ten thousand streams with one message each take a second, not half a minute.

Only success is handled here. Everything else is returned as None, and the caller repeats the read
with the client, which knows errors and retries.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Final, cast
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import numpy as np

from penstock import __version__
from penstock.client.answers import Answer
from penstock.limits import SPARK_TIMEOUT_S
from penstock.protocol.headers import is_json
from penstock.spark.offsets import Position

IN_FLIGHT_MAX: Final = 32
_RECEIVE_BYTES: Final = 256 * 1024
_HEAD_BYTES_MAX: Final = 64 * 1024
_PEEK_BYTES: Final = 4 * 1024  # of a head that is looked at before it is taken
_END_OF_HEAD: Final = b"\r\n\r\n"
_SEPARATOR: Final = b",\n"  # between the messages of an array
_SPARE_MAX: Final = 4
# Buffers of reads that have ended, for those to come: the kernel clears each page of a new one,
# which takes as long as receiving it. A task has two.
_spare: Final[list[memoryview]] = []


class Read:
    """One bounded read."""

    __slots__ = ("offset", "until", "url")

    def __init__(self, url: str, offset: str, until: str) -> None:
        self.url, self.offset, self.until = url, offset, until


class BulkReads:
    """One connection to one server, opened with the first read. One thread at a time uses it."""

    def __init__(self, token: str | None, *, timeout_s: float = SPARK_TIMEOUT_S) -> None:
        self._token = token
        self._timeout_s = timeout_s
        self._connection: _Connection | None = None
        self._is_usable = not getproxies()
        self._buffers: list[memoryview] = []  # the next one first

    def read(self, read: Read) -> Answer | None:
        """The answer to a read; None if it is not a plain success."""
        return next(self.read_all([read]), None)

    def read_on(self, read: Read, size: int) -> Answer | None:
        """The answer to a read. Of a JSON stream also those that continue it, as one array, up to
        about so many bytes: Spark takes a few large batches with less work than many small ones.

        The body of such an answer is a view of bytes, which change with the next call but one, and
        after `close`.
        """
        if not self._is_usable:
            return None
        try:
            connection = self._connected(read.url)
            connection.send([read])
            answer = connection.receive_joined(read, self._buffer(size)[:size])
            if connection.is_closing:
                self._disconnect()
        except (OSError, ValueError):
            self._disconnect()
            return None
        return answer if answer.status == 200 else None

    def read_all(self, reads: Sequence[Read]) -> Iterator[Answer | None]:
        """The answers in the order of the reads, all to one server; None for a failed one."""
        answers = self._pipelined(reads) if reads and self._is_usable else iter(())
        try:
            for _ in reads:
                yield next(answers, None)
        finally:
            if len(reads) > 1:
                self._disconnect()  # Answers that nobody has taken may be on their way.

    def close(self) -> None:
        self._disconnect()
        while self._buffers and len(_spare) < _SPARE_MAX:
            _spare.append(self._buffers.pop())
        self._buffers.clear()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _buffer(self, size: int) -> memoryview:
        """The buffer that was not used for the last answer."""
        used = self._buffers if len(self._buffers) > 1 else _spare
        try:
            buffer = used.pop(0)
        except IndexError:
            buffer = memoryview(b"")
        if len(buffer) < size:
            buffer = np.empty(size, np.uint8).data
        self._buffers.append(buffer)
        return buffer

    def _pipelined(self, reads: Sequence[Read]) -> Iterator[Answer | None]:
        try:
            yield from self._exchange(reads)
        except (OSError, ValueError):
            # What has arrived cannot be told from the answer to the next read.
            self._disconnect()

    def _exchange(self, reads: Sequence[Read]) -> Iterator[Answer | None]:
        connection = self._connected(reads[0].url)
        sent = 0
        for done in range(len(reads)):
            if sent - done <= IN_FLIGHT_MAX // 2 and sent < len(reads):
                upto = min(len(reads), done + IN_FLIGHT_MAX)
                connection.send(reads[sent:upto])
                sent = upto
            answer = connection.receive() if len(reads) > 1 else connection.receive_alone()
            yield answer if answer.status == 200 else None
            if connection.is_closing:
                self._disconnect()
                return

    def _connected(self, url: str) -> _Connection:
        if self._connection is None:
            self._connection = _Connection(url, self._token, self._timeout_s)
        return self._connection


class _Connection:
    """Sends reads, and receives answers whose length their head says. ValueError for others."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        parts = urlsplit(url)
        self._origin_length = len(f"{parts.scheme}://{parts.netloc}")
        lines = [
            f"Host: {parts.netloc.rpartition('@')[2]}",
            f"User-Agent: penstock/{__version__}",
            "Accept-Encoding: identity",
        ]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        self._headers = "\r\n".join(["", *lines, "", ""])
        self._socket = _connect(parts.scheme, parts.hostname or "", parts.port, timeout_s)
        self._received = bytearray()
        self._can_wait = _waits_in_the_kernel(self._socket, timeout_s)
        self.is_closing = False

    def close(self) -> None:
        self._socket.close()

    def send(self, reads: Sequence[Read]) -> None:
        requests = (
            f"GET {each.url[self._origin_length :]}?offset={quote(each.offset)}"
            f"&until={quote(each.until)} HTTP/1.1{self._headers}"
            for each in reads
        )
        self._socket.sendall("".join(requests).encode("latin-1"))

    def receive_alone(self) -> Answer:
        """The answer to the only read that was sent. A large body arrives in the object that is
        returned, without a copy."""
        parsed = self._take_head()
        if parsed is None:
            return self.receive()
        return Answer(*parsed, self._take(self._size(*parsed)))

    def receive_joined(self, read: Read, buffer: memoryview) -> Answer:
        """The answer to the only read that was sent, and those to the reads that continue it.

        The next read is sent while a body arrives. All bodies arrive in the buffer, where the
        brackets between two of them become the separator that the log has there. ValueError if a
        later answer is not what the first one was.
        """
        parsed = self._take_head()
        if parsed is None:
            return self.receive()
        status, headers = parsed
        size, end, size_max = self._size(*parsed), Position(read.until).byte, len(buffer)

        def goes_on(filled: int) -> bool:
            after = Position(headers.get("stream-next-offset", read.until))
            return not self.is_closing and after.byte < end and filled + 2 * size <= size_max

        is_array = is_json(headers.get("content-type", "")) and size > 2
        if status != 200 or not is_array or not goes_on(0):
            return Answer(status, headers, self._take(size))
        at = 0
        while True:
            is_last = not goes_on(at)
            if not is_last:
                self.send([Read(read.url, headers["stream-next-offset"], read.until)])
            self._take_into(buffer[at : at + size])
            if at:
                buffer[at - 1 : at + 1] = _SEPARATOR
            at += size
            if is_last:
                # Everything that reads the body takes a view as well.
                return Answer(status, headers, cast("bytes", buffer[:at]))
            following = self._take_head()
            if following is None or following[0] != 200:
                raise ValueError("not to be joined")
            size, headers = self._size(*following), following[1]
            if not 2 < size <= size_max - at:
                raise ValueError("not to be joined")

    def _take_head(self) -> tuple[int, dict[str, str]] | None:
        """The head of the next answer, without a byte of its body; None if it cannot be had so."""
        if not self._can_wait or self._received:
            return None
        end, head = -1, b""
        while end < 0:
            seen = len(head)
            head = self._socket.recv(_PEEK_BYTES, socket.MSG_PEEK)
            end = head.find(_END_OF_HEAD)
            if end < 0 and len(head) in (seen, _PEEK_BYTES):
                return None  # a head in pieces, a long one, or none at all
        self._take(end + len(_END_OF_HEAD))
        return _parse_head(head[:end])

    def _take_into(self, target: memoryview) -> None:
        """Fill it with the next bytes."""
        at = 0
        while at < len(target):
            count = self._socket.recv_into(target[at:], 0, socket.MSG_WAITALL)
            if count == 0:
                raise ValueError("cut off")
            at += count

    def _take(self, size: int) -> bytes:
        """The next bytes, all of them."""
        data = self._socket.recv(size, socket.MSG_WAITALL) if size else b""
        if len(data) == size:
            return data
        parts, missing = [data], size - len(data)
        while missing:  # it took longer than the server may be silent, but did not stop
            if not parts[-1]:
                raise ValueError("cut off")
            parts.append(self._socket.recv(missing, socket.MSG_WAITALL))
            missing -= len(parts[-1])
        return b"".join(parts)

    def receive(self) -> Answer:
        while (end := self._received.find(_END_OF_HEAD)) < 0:
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data or len(self._received) > _HEAD_BYTES_MAX:
                raise ValueError("no head")
            self._received += data
        parsed = _parse_head(bytes(self._received[:end]))
        size = self._size(*parsed)
        return Answer(*parsed, self._body(end + len(_END_OF_HEAD), size))

    def _size(self, _: int, headers: dict[str, str]) -> int:
        """The length of the body that follows a head."""
        self.is_closing = headers.get("connection", "").lower() == "close"
        if "content-encoding" in headers:
            raise ValueError("encoded")
        size = int(headers["content-length"]) if "content-length" in headers else -1
        if size < 0:
            raise ValueError("no length")
        return size

    def _body(self, start: int, size: int) -> bytes:
        if len(self._received) >= start + size:
            body = bytes(self._received[start : start + size])
            del self._received[: start + size]
            return body
        whole = bytearray(size)
        at = len(self._received) - start
        whole[:at] = self._received[start:]
        self._received.clear()
        view = memoryview(whole)
        while at < size:
            count = self._socket.recv_into(view[at:])
            if count == 0:
                raise ValueError("cut off")
            at += count
        return bytes(whole)


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    version, status, *_ = lines[0].split(" ")
    if version != "HTTP/1.1":
        raise ValueError(version)
    pairs = (line.partition(":") for line in lines[1:])
    return int(status), {name.lower(): value.strip() for name, _, value in pairs}


def _connect(scheme: str, host: str, port: int | None, timeout_s: float) -> socket.socket:
    address = (host, port or (443 if scheme == "https" else 80))
    connection = socket.create_connection(address, timeout_s)
    try:
        if scheme != "https":
            return connection
        return ssl.create_default_context().wrap_socket(connection, server_hostname=host)
    except OSError:
        connection.close()
        raise


def _waits_in_the_kernel(connection: socket.socket, timeout_s: float) -> bool:
    """Let the kernel wait for whole bodies, which Python's own timeouts do not allow. False if this
    socket cannot."""
    if isinstance(connection, ssl.SSLSocket) or sys.platform != "linux":
        return False
    seconds, microseconds = divmod(round(timeout_s * 1_000_000), 1_000_000)
    connection.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, microseconds))
    return True
