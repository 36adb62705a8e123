"""Heads seen before: a client that repeats a head byte for byte is not parsed again.

Writers send the same head with every append of one size. What follows from a head alone (its
parts, its route, that it was let in) is kept here and given to the next request that begins with
the same bytes. Only whole requests with a plain Content-Length, or none, take this way; all others
go through the parser.
"""

from __future__ import annotations

from penstock.http.head import Received

HEADS_MAX = 1024
HEAD_BYTES_MAX = 1024
_END = b"\r\n\r\n"
# With these the body does not simply follow, or the head comes only once: it names a place in a
# sequence.
_PARSED = (b"transfer-encoding", b"expect", b"producer-seq", b"stream-seq", b"if-match")


class Heads:
    """One per server. Bounded: when it is full it begins anew."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[int, Received]] = {}

    def recall(self, data: bytes) -> Received | None:
        """The request that `data` is, whole and alone; None if its head is not known."""
        end = data.find(_END, 0, HEAD_BYTES_MAX) + 4
        known = self._known.get(data[:end])
        if known is None or len(data) != end + known[0]:
            return None
        first = known[1]
        request = Received.__new__(Received)
        request.method = first.method
        request.path = first.path
        request.query = first.query
        request.headers = first.headers
        request.body = data[end:]
        request.peer = ""
        request.route = first.route
        request.http_1_0 = False
        request.keep_alive = True
        request.refusal = None
        return request

    def keep(self, data: bytes, request: Received | None) -> None:
        """`request` was the last in `data`, which began with a head: remember that, if it is its.

        The lengths add up only where `data` is one head and one body. Other requests before this
        one, or a blank line, would make it longer.
        """
        if request is None or request.refusal is not None:
            return
        headers = request.headers
        end = data.find(_END, 0, HEAD_BYTES_MAX) + 4
        length = int(headers.get(b"content-length", b"0"))
        if end + length != len(data) or request.http_1_0 or not request.keep_alive:
            return
        if any(name in headers for name in _PARSED):
            return
        if len(self._known) >= HEADS_MAX:
            self._known.clear()
        first = Received(request.method, request.path, request.query, headers)
        first.route = request.route
        self._known[data[:end]] = (length, first)
