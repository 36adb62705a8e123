"""The servers that the proxy may call, and what goes there and comes back. Pure.

An upstream is written as its URL, which every called URL has to begin with, and the headers that
the server adds: `https://api.example/v1 authorization=API_KEY`, with the name of an environment
variable, so that no key is in the settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from penstock.config.setting import InvalidSetting
from penstock.errors import BadRequest, EgressRefused, InvalidUrl
from penstock.protocol.headers import normalize_content_type
from penstock.protocol.outbound import Target, parse_url, shown_url

FORWARDED: Final = (
    "accept",
    "content-type",
    "anthropic-beta",
    "anthropic-version",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "x-api-key",
    "x-goog-api-key",
)
"""Headers of a request that are sent to the upstream; `proxy_headers` adds others."""
RECORDED: Final = ("retry-after", "request-id", "x-request-id")
RECORDED_PREFIXES: Final = ("anthropic-", "openai-", "x-ratelimit-")
"""Headers of a response that are recorded and shown. Cookies and the policies of the upstream are
not: the response has the origin of this server."""
RECORDED_MAX: Final = 64
VALUE_BYTES_MAX: Final = 1024
METHODS: Final = ("POST", "GET")

_KEY: Final = re.compile(r"([A-Za-z0-9-]+)=([A-Za-z_][A-Za-z0-9_]*)")
_NEVER: Final = frozenset(
    {"connection", "content-length", "cookie", "host", "te", "transfer-encoding", "upgrade"}
)


class Upstream(NamedTuple):
    """`prefix` is a path without a slash at its end; `headers` are added to each request."""

    origin: str
    prefix: str
    headers: Mapping[str, str]

    def has(self, target: Target) -> bool:
        path = target.path.partition("?")[0]
        is_below = path == self.prefix or path.startswith(self.prefix + "/")
        return target.origin == self.origin and is_below


def parse_upstreams(texts: Iterable[str], environ: Mapping[str, str]) -> tuple[Upstream, ...]:
    """Return the upstreams of the setting; raise InvalidSetting for what is none."""
    return tuple(_upstream(text, environ) for text in texts)


def _upstream(text: str, environ: Mapping[str, str]) -> Upstream:
    url, *keys = text.split() or [""]
    try:
        target = parse_url(url)
    except InvalidUrl as error:
        raise InvalidSetting(f"proxy_upstreams: {error.detail}") from None
    if "?" in target.path:
        raise InvalidSetting(f"proxy_upstreams: {shown_url(url)!r} cannot have a query.")
    headers = {}
    for key in keys:
        match = _KEY.fullmatch(key)
        if match is None:
            raise InvalidSetting(
                "proxy_upstreams: what follows the URL is HEADER=VARIABLE, with the name of an "
                "environment variable: authorization=API_KEY."
            )
        name, variable = match[1].lower(), match[2]
        value = environ.get(variable, "").strip()
        if not value or not value.isascii() or not value.isprintable():
            raise InvalidSetting(
                f"proxy_upstreams: the environment variable {variable}, for the header {name} of "
                f"{shown_url(url)}, is not set to printable ASCII text."
            )
        is_bare = name == "authorization" and " " not in value
        headers[name] = f"Bearer {value}" if is_bare else value
    return Upstream(target.origin, target.path.rstrip("/"), headers)


def upstream_of(upstreams: Iterable[Upstream], url: str) -> Upstream:
    """Return the upstream that a URL belongs to; raise InvalidUrl or EgressRefused if there is
    none."""
    target = parse_url(url)
    path = unquote(target.path.partition("?")[0])
    if "\\" in path or any(part in (".", "..") for part in path.split("/")):
        raise InvalidUrl("The path of Upstream-URL has a segment `.` or `..`: write it without.")
    for upstream in upstreams:
        if upstream.has(target):
            return upstream
    raise EgressRefused(
        f"{shown_url(url)!r} is below no upstream of this server. If it is meant to be, name it in "
        "proxy_upstreams (--proxy-upstreams)."
    )


def forwarded(
    headers: Mapping[bytes, bytes], upstream: Upstream, more: Iterable[str]
) -> dict[str, str]:
    """Return the headers of the request to the upstream. A key of the server's own wins over one
    that the client sends."""
    names = {*FORWARDED, *(name.lower() for name in more)} - _NEVER
    chosen = {
        name: headers[name.encode()].decode("latin-1")
        for name in sorted(names)
        if name.encode() in headers
    }
    key = headers.get(b"upstream-authorization")
    chosen.pop("authorization", None)  # that of this server
    if key is not None:
        chosen["authorization"] = key.decode("latin-1")
    return {**chosen, **upstream.headers}


def recorded(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what is recorded of the headers of a response."""
    chosen = {
        name: value
        for name, value in headers.items()
        if (name in RECORDED or name.startswith(RECORDED_PREFIXES))
        and len(value) <= VALUE_BYTES_MAX
        and value.isascii()
        and value.isprintable()
    }
    return dict(list(chosen.items())[:RECORDED_MAX])


def content_type_of(headers: Mapping[str, str]) -> str:
    """Return the content type of a response; that of unknown bytes if it has none, or no valid
    one."""
    try:
        return normalize_content_type(headers.get("content-type", "application/octet-stream"))
    except BadRequest:
        return "application/octet-stream"
