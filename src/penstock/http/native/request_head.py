"""The head of a request: the rules of HTTP/1.1 that httptools does not enforce.

Pure: bytes in, a decision out.
"""

from __future__ import annotations

import re

from penstock.errors import BadRequest
from penstock.http.message import Request, Response
from penstock.http.sender import NOWHERE, Sender

# Repeated, these let two servers disagree on where one request ends or goes.
SINGLE = frozenset({b"host", b"content-length", b"transfer-encoding"})
_METHODS = {m.encode(): m for m in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")}
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]+)(?::[0-9]*)?")
_HOP = frozenset({b"upgrade", b"http2-settings", b"connection"})


class NativeRequest(Request):
    """A request of a native connection, with what its response depends on."""

    __slots__ = ("http_1_0", "keep_alive", "refusal")

    def __init__(
        self,
        method: str,
        path: bytes,
        query: bytes = b"",
        headers: dict[bytes, bytes] | None = None,
        body: bytes = b"",
        sender: Sender = NOWHERE,
    ) -> None:
        super().__init__(method, path, query, headers, body, sender)
        self.http_1_0 = False
        self.keep_alive = True
        self.refusal: Response | None = None


def method_name(raw: bytes) -> str:
    return _METHODS.get(raw) or raw.decode("latin-1")


def check_head(method: str, url: bytes, version: str, headers: dict[bytes, bytes]) -> None:
    """Raise BadRequest for a head that another server on the way could understand differently."""
    if version not in ("1.1", "1.0"):
        raise BadRequest("Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    if (url[:1] != b"/" or b"#" in url) and not (url == b"*" and method == "OPTIONS"):
        raise BadRequest("The request target must be a path that starts with `/`.")
    host = headers.get(b"host")
    if host is None:
        if version == "1.1":
            raise BadRequest("A Host header is required.")
    elif _HOST.fullmatch(host) is None:
        raise BadRequest("The Host header is not a host.")
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked" or b"content-length" in headers:
            raise BadRequest("Transfer-Encoding must be exactly `chunked`, without Content-Length.")
        if version == "1.0":
            raise BadRequest("HTTP/1.0 has no Transfer-Encoding.")


def plain_head(method: bytes, url: bytes, version: str, headers: dict[bytes, bytes]) -> bytes:
    """Return the head of a request without the headers that ask for an upgrade."""
    lines = [b"%b %b HTTP/%b\r\n" % (method, url, version.encode())]
    for name, value in headers.items():
        if name == b"connection":
            tokens = [token.strip() for token in value.split(b",")]
            value = b", ".join(token for token in tokens if token.lower() not in _HOP)
            if not value:
                continue
        elif name in _HOP:
            continue
        lines.append(b"%b: %b\r\n" % (name, value))
    lines.append(b"\r\n")
    return b"".join(lines)
