"""Heads and header blocks seen before: what comes again byte for byte is not parsed again.

A client sends the same headers with every request of one kind; only the request line and the body
change, and for a writer to one stream only the body. Kept here is what a whole head means, with
the route that was found for it, and what a block of headers means. Only whole requests with a plain
Content-Length, or none, take this way; all others, and every line or block that is not known to be
harmless, go through the parser.
"""

from __future__ import annotations

import re

from penstock.http.native.request_head import Received

KNOWN_MAX = 1024  # of heads, and of blocks
# When there are more heads than that, keeping each new one costs more than it saves: what is kept
# stays for this many misses before it begins anew.
MISSES_MAX = 64 * KNOWN_MAX
HEAD_BYTES_MAX = 2048
_END = b"\r\n\r\n"
# Narrower than HTTP allows: what the parser would find to be the same, and nothing to refuse.
_LINE = re.compile(
    rb"(GET|HEAD|POST|PUT|DELETE) (/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)"
    rb"(?:\?([A-Za-z0-9._~!$&'()*+,;=:@%/?-]*))? HTTP/1\.1\r\n"
)
_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE")}
# With these the body does not simply follow, or the block comes only once: it names a place in a
# sequence.
_PARSED = (b"transfer-encoding", b"expect", b"producer-seq", b"stream-seq", b"if-match")


class Heads:
    """One per server. Bounded: when it is full it begins anew."""

    __slots__ = ("_blocks", "_known", "_line_bytes_max", "_misses")

    def __init__(self, *, line_bytes_max: int) -> None:
        self._line_bytes_max = min(line_bytes_max, HEAD_BYTES_MAX)
        self._known: dict[bytes, tuple[int, Received]] = {}
        self._misses = 0
        self._blocks: dict[bytes, tuple[int, dict[bytes, bytes]]] = {}

    def recall(self, data: bytes) -> Received | None:
        """The request that `data` is, whole and alone; None if its headers are not known.

        One with a route is the same as one that was let in before.
        """
        end = data.find(_END, 0, HEAD_BYTES_MAX) + 4
        known = self._known.get(data[:end])
        if known is None:
            return self._read_line(data, end)
        length, first = known
        if len(data) != end + length:
            return None
        request = Received.__new__(Received)
        request.method = first.method
        request.path = first.path
        request.query = first.query
        request.headers = first.headers
        request.body = data[end:]
        request.route = first.route
        request.http_1_0 = False
        request.keep_alive = True
        request.refusal = None
        return request

    def _read_line(self, data: bytes, end: int) -> Received | None:
        line = _LINE.match(data, 0, self._line_bytes_max)
        if line is None:
            return None
        known = self._blocks.get(data[line.end() : end])
        if known is None or len(data) != end + known[0]:
            return None
        method, path, query = line.groups(b"")
        request = Received.__new__(Received)
        request.method = _METHODS[method]
        request.path = path
        request.query = query
        request.headers = known[1]
        request.body = data[end:]
        request.route = None
        request.http_1_0 = False
        request.keep_alive = True
        request.refusal = None
        return request

    def keep(self, data: bytes, request: Received | None) -> None:
        """`request` was the last in `data`, which began with a head: remember it.

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
        block = data[data.index(b"\r\n") + 2 : end]
        if block not in self._blocks:
            if len(self._blocks) >= KNOWN_MAX:
                self._blocks.clear()
            self._blocks[block] = (length, headers)
        self._keep_whole(data[:end], length, request)

    def keep_again(self, data: bytes, request: Received) -> None:
        """`data` was `request`, found by its headers: from now on by its whole head."""
        if request.refusal is None:
            body_bytes = len(request.body)
            self._keep_whole(data[: len(data) - body_bytes], body_bytes, request)

    def _keep_whole(self, head: bytes, length: int, request: Received) -> None:
        if request.route is None:
            return
        if len(self._known) >= KNOWN_MAX:
            self._misses += 1
            if self._misses < MISSES_MAX:
                return
            self._misses = 0
            self._known.clear()
        self._known[head] = (length, request)
