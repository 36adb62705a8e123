"""Heads of requests and blocks of headers seen before: what comes again byte for byte is not parsed
again.

A client sends the same headers with every request of one kind; only the request line and the body
change, and for a writer to one stream only the body. The cache holds the meaning of whole heads,
with their routes, and of blocks of headers. Only whole requests with a plain Content-Length, or
none, are matched; all others, and every line or block that might not be harmless, go through the
parser.
"""

from __future__ import annotations

import re

from mypy_extensions import mypyc_attr

from penstock.http.native.request_head import NativeRequest
from penstock.http.sender import NOWHERE

ENTRIES_MAX = 1024  # of heads, and of blocks
# When there are more heads than that, adding each new one costs more than it saves: a full cache
# stays as it is for this many misses before it begins anew.
MISSES_MAX = 64 * ENTRIES_MAX
HEAD_BYTES_MAX = 2048
_END = b"\r\n\r\n"
# Narrower than HTTP allows: only lines that the parser would read in the same way and not refuse.
_LINE = re.compile(
    rb"(GET|HEAD|POST|PUT|DELETE) (/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)"
    rb"(?:\?([A-Za-z0-9._~!$&'()*+,;=:@%/?-]*))? HTTP/1\.1\r\n"
)
_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE")}
# With these the body does not simply follow, or the block comes only once: it has a position in a
# sequence.
_LINK = b"link="
_PARSED = (b"transfer-encoding", b"expect", b"producer-seq", b"stream-seq", b"if-match")


@mypyc_attr(allow_interpreted_subclasses=True)  # tests count what it matches
class HeadCache:
    """One per server. Bounded: when it is full it begins anew."""

    __slots__ = ("_blocks", "_heads", "_line_bytes_max", "_misses")

    def __init__(self, *, line_bytes_max: int) -> None:
        self._line_bytes_max = min(line_bytes_max, HEAD_BYTES_MAX)
        self._heads: dict[bytes, tuple[int, NativeRequest]] = {}
        self._misses = 0
        self._blocks: dict[bytes, tuple[int, dict[bytes, bytes]]] = {}

    def match(self, data: bytes) -> NativeRequest | None:
        """Return the request that `data` is, whole and alone; None if its headers are not cached.

        A request with a route is the same as one that was let in before.
        """
        end = data.find(_END, 0, HEAD_BYTES_MAX) + 4
        if end < 4:
            return None
        cached = self._heads.get(data[:end])
        if cached is None:
            return self._match_block(data, end)
        length, first = cached
        if len(data) != end + length:
            return None
        request = NativeRequest(
            first.method, first.path, first.query, first.headers, data[end:], NOWHERE
        )
        request.route = first.route
        request.principal = first.principal
        return request

    def _match_block(self, data: bytes, end: int) -> NativeRequest | None:
        line = _LINE.match(data, 0, min(self._line_bytes_max, end))
        if line is None:
            return None
        cached = self._blocks.get(data[line.end() : end])
        if cached is None or len(data) != end + cached[0]:
            return None
        method, path, query = line.groups(b"")
        return NativeRequest(_METHODS[method], path, query, cached[1], data[end:], NOWHERE)

    def add(self, data: bytes, request: NativeRequest | None, *, is_shared: bool = True) -> None:
        """Add the head and the block of `request`, the last one in `data`, if that is all of it.

        A head that is not shared is not added: more than its bytes has decided on it.

        The lengths add up only where `data` is one head and one body: other requests before this
        one would make it longer. An empty line before the head would not, so the first line has to
        be the one that `match` knows.
        """
        if request is None or request.refusal is not None:
            return
        headers = request.headers
        end = data.find(_END, 0, HEAD_BYTES_MAX) + 4
        if end < 4:
            return
        length = int(headers.get(b"content-length", b"0"))
        if end + length != len(data) or request.http_1_0 or not request.keep_alive:
            return
        if any(name in headers for name in _PARSED):
            return
        line = _LINE.match(data, 0, min(self._line_bytes_max, end))
        if line is None:
            return
        block = data[line.end() : end]
        if block not in self._blocks:
            if len(self._blocks) >= ENTRIES_MAX:
                self._blocks.clear()
            self._blocks[block] = (length, headers)
        if is_shared:
            self._add_head(data[:end], length, request)

    def add_head(self, data: bytes, request: NativeRequest) -> None:
        """Add the whole head of `request`, which was matched by its block and is all of `data`."""
        if request.refusal is None:
            body_bytes = len(request.body)
            self._add_head(data[: len(data) - body_bytes], body_bytes, request)

    def _add_head(self, head: bytes, length: int, request: NativeRequest) -> None:
        # A head with a signed link is decided each time: what is cached has none in its query.
        if request.principal is None or _LINK in head:
            return
        if len(self._heads) >= ENTRIES_MAX:
            self._misses += 1
            if self._misses < MISSES_MAX:
                return
            self._misses = 0
            self._heads.clear()
        self._heads[head] = (length, request)
