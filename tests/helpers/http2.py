"""A small HTTP/2 client for tests: many streams on one connection, each read as it comes.

httpx2 has one as well, but it reads events of one response only when another one gets something,
and takes no response while it still sends.
"""

from __future__ import annotations

import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions

TIMEOUT_S = 30.0


class Http2:
    """One connection. Responses are by the numbers that `request` returns."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        context.set_alpn_protocols(["h2"])
        raw = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket = context.wrap_socket(raw, server_hostname="127.0.0.1")
        assert self._socket.selected_alpn_protocol() == "h2"
        self._authority = f"127.0.0.1:{port}"
        config = h2.config.H2Configuration(client_side=True)
        self._h2 = h2.connection.H2Connection(config)
        self._h2.initiate_connection()
        self._flush()
        self.statuses: dict[int, int] = {}
        self.bodies: defaultdict[int, bytes] = defaultdict(bytes)
        self.ended: set[int] = set()
        self.is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> int:
        """Send a request, as much of its body as the server takes; return its number."""
        number = self._h2.get_next_available_stream_id()
        fields = [(":method", method), (":path", path), (":scheme", "https")]
        fields += [(":authority", self._authority), *headers.items()]
        if body:
            fields.append(("content-length", str(len(body))))
        self._h2.send_headers(number, fields, end_stream=not body)
        self._flush()
        while body and number not in self.statuses and number not in self.ended:
            size = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
            if size == 0:
                self._receive()
                continue
            piece, body = body[:size], body[size:]
            self._h2.send_data(number, piece, end_stream=not body)
            self._flush()
        return number

    def until(self, condition: Callable[[], bool]) -> None:
        """Receive until `condition` holds."""
        while not condition():
            assert not self.is_closed, "the server has closed the connection"
            self._receive()

    def status(self, number: int) -> int:
        self.until(lambda: number in self.statuses)
        return self.statuses[number]

    def body(self, number: int) -> bytes:
        self.until(lambda: number in self.ended)
        return self.bodies[number]

    def _receive(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            self.is_closed = True
            raise ConnectionError("the server has closed the connection")
        for event in self._h2.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                self.statuses[event.stream_id] = int(dict(event.headers)[b":status"])
            elif isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] += event.data
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                self.ended.add(event.stream_id)
        self._flush()

    def _flush(self) -> None:
        self._socket.sendall(self._h2.data_to_send())
