"""What pages in a browser may do: the CORS headers, which requests of other origins are refused,
and the host names that the server answers to.

A browser sends requests on behalf of any page that a person opens, with the person's place in the
network. It says so in `Origin` and `Sec-Fetch-Site`, which no page can change. Knows requests and
settings; nothing of streams or of sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes, urlsplit

from penstock.errors import HostRefused, OriginRefused, UnsupportedType
from penstock.http.exposure import listens_on_loopback
from penstock.http.headers import header_block, location
from penstock.http.message import Headers, Request, Response
from penstock.protocol.headers import is_json
from penstock.protocol.outbound import is_loopback

if TYPE_CHECKING:
    from penstock.config.settings import Settings

METHODS = b"GET, POST, PUT, DELETE, HEAD, OPTIONS"

ALLOW_HEADERS = (
    b"Content-Type, Authorization, If-None-Match, If-Match, Cache-Control, Last-Event-ID, "
    b"Stream-Seq, Stream-TTL, Stream-Expires-At, Stream-Closed, "
    b"Stream-Forked-From, Stream-Fork-Offset, Stream-Fork-Sub-Offset, "
    b"Producer-Id, Producer-Epoch, Producer-Seq, "
    b"Idempotency-Key, Upstream-URL, Upstream-Method, Upstream-Authorization"
)

EXPOSE_HEADERS = (
    b"Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Stream-TTL, "
    b"Stream-Expires-At, Stream-SSE-Data-Encoding, Stream-Forked-From, Stream-Fork-Offset, "
    b"Stream-Earliest-Offset, Stream-Start-Offset, Stream-Filter, Stream-Successor, "
    b"Producer-Epoch, Producer-Seq, "
    b"Producer-Expected-Seq, Producer-Received-Seq, STP-Last-SeqNo, STP-First-SeqNo, "
    b"STP-Earliest-SeqNo, ETag, Location, Content-Type, Content-Encoding, Retry-After, "
    b"Idempotency-Key, Stream-Recording, Upstream-Status"
)

PREFLIGHT_MAX_AGE_S = 86400
ANY = "*"

_PREFLIGHT: Headers = [
    (b"access-control-allow-methods", METHODS),
    (b"access-control-allow-headers", ALLOW_HEADERS),
    (b"access-control-max-age", b"%d" % PREFLIGHT_MAX_AGE_S),
]
_SAFE = frozenset({"GET", "HEAD"})
# The values of Sec-Fetch-Site for a page of another origin. A page on another port of this machine
# is `same-site`, and still another program.
_OTHER_ORIGIN = frozenset({b"cross-site", b"same-site"})
_CONTROL = b"/__ds/"
_SHOWN_MAX = 100  # characters of a request's header in a message
_HOSTS_CACHED_MAX = 256


# The headers of responses


def fixed_headers(settings: Settings) -> Headers:
    """Return the headers that every response carries, errors of the transport included."""
    is_any = ANY in settings.cors_origins
    headers = [
        (b"x-content-type-options", b"nosniff"),
        # It concerns requests without CORS (<script>, <img>), which do not name their origin: they
        # are for everyone or for nobody.
        (b"cross-origin-resource-policy", b"cross-origin" if is_any else b"same-origin"),
    ]
    if is_any:
        # With any origin allowed there are no credentials, and then `*` names all headers.
        headers.append((b"access-control-allow-origin", b"*"))
        headers.append((b"access-control-expose-headers", b"*"))
    elif settings.cors_origins:
        headers.append((b"vary", b"Origin"))
    return headers


def origin_headers(settings: Settings) -> dict[bytes, Headers]:
    """Return the headers that a response carries besides, by the Origin of its request.

    Empty unless there is a list of origins; an Origin that is not in it gets none.
    """
    if ANY in settings.cors_origins:
        return {}
    shared: Headers = [(b"access-control-expose-headers", EXPOSE_HEADERS)]
    if settings.cors_credentials:
        shared.append((b"access-control-allow-credentials", b"true"))
    return {
        origin.encode("ascii"): [(b"access-control-allow-origin", origin.encode("ascii")), *shared]
        for origin in settings.cors_origins
    }


def origin_lines(settings: Settings) -> dict[bytes, bytes]:
    """Return `origin_headers` as they stand in the head of a response."""
    lines = {}
    for origin, headers in origin_headers(settings).items():
        block = header_block(headers)
        if block is None:
            raise ValueError("An origin contains a line break; check cors_origins.")
        lines[origin] = block
    return lines


# The requests


class Origins:
    """Decides on the head of a request by the page and the host name that it comes from."""

    __slots__ = ("_allowed", "_allows_any", "_hosts", "_own")

    def __init__(self, settings: Settings) -> None:
        self._allows_any = ANY in settings.cors_origins
        self._allowed = frozenset(origin.encode() for origin in settings.cors_origins)
        self._own = _own_origins(settings)
        self._hosts = allowed_hosts(settings)

    def preflight(self, head: Request) -> Response:
        """Return the response to OPTIONS, whatever the path: it shows nothing that is not public.

        It says nothing of CORS to a page that is not allowed; a browser then sends no request.
        """
        allow = (b"allow", METHODS)
        is_allowed = self._allows_any or head.headers.get(b"origin") in self._allowed
        return Response(204, [allow, *_PREFLIGHT] if is_allowed else [allow])

    def check(self, head: Request) -> None:
        """Raise HostRefused, OriginRefused or UnsupportedType for a request that a page of another
        origin may have made."""
        headers = head.headers
        if self._hosts is not None:
            self._hosts.check(headers)
        if head.method == "OPTIONS":
            return
        if (b"origin" in headers or b"sec-fetch-site" in headers) and self._is_refused(head):
            raise _refused(head)
        if head.method == "POST":
            _check_control_type(head)

    def _is_refused(self, head: Request) -> bool:
        headers = head.headers
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if self._allows_any or origin in self._allowed or site == b"same-origin":
            return False
        if head.method in _SAFE:
            # Browsers that send no Sec-Fetch-Site are let in: the page cannot read the response.
            return site in _OTHER_ORIGIN and not _is_navigation(headers)
        if origin is None:
            return site in _OTHER_ORIGIN
        return origin not in self._own and origin != _origin_of(head)


class Hosts:
    """The host names that a server answers to, whatever the port.

    A page can give its own name the address of this server (DNS rebinding); for the browser both
    are then one origin, and only `Host` still has the name.
    """

    __slots__ = ("_cached", "_names", "_suffixes")

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._suffixes = tuple(name[1:] for name in names if name.startswith("*."))
        # Values of Host that were allowed before, as they were written.
        self._cached: set[bytes] = set()

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise HostRefused for a Host that is none of the names. Without one no browser is there:
        browsers always send it."""
        host = headers.get(b"host")
        if not host or host in self._cached:
            return
        text = host.decode("latin-1")
        if not self._allows(_host_name(text)):
            raise HostRefused(
                f"The server does not answer to the host {text[:_SHOWN_MAX]!a}. If it is meant to, "
                "name it in allowed_hosts (--allowed-hosts)."
            )
        if len(self._cached) >= _HOSTS_CACHED_MAX:
            self._cached.clear()
        self._cached.add(host)

    def _allows(self, name: str) -> bool:
        if name in self._names or name == "localhost":
            return True
        if name.endswith((".localhost", *self._suffixes)):
            return True
        try:
            return is_loopback(ip_address(name))
        except ValueError:
            return False


def allowed_hosts(settings: Settings) -> Hosts | None:
    """Return the host names that the server answers to; None if it answers to all."""
    names = {name.lower() for name in settings.allowed_hosts}
    if ANY in names or not (names or listens_on_loopback(settings.host)):
        return None
    names.add(settings.host.lower())
    if settings.public_url:
        names.add(_host_name(urlsplit(settings.public_url).netloc))
    return Hosts(frozenset(names))


def _host_name(authority: str) -> str:
    """Return the name in `name:port`, in lower case and without the brackets of IPv6."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].removesuffix(".").lower()


def _own_origins(settings: Settings) -> frozenset[bytes]:
    """Return the origins of this server as the settings name them."""
    hosts = [name for name in settings.allowed_hosts if ANY not in name]
    names = [f"[{name}]" if ":" in name else name for name in hosts]
    origins = {f"{scheme}://{name}".lower() for name in names for scheme in ("http", "https")}
    if settings.public_url:
        parts = urlsplit(settings.public_url.lower())
        origins.add(_without_default_port(f"{parts.scheme}://{parts.netloc}"))
    return frozenset(origin.encode("ascii") for origin in origins)


def _origin_of(head: Request) -> bytes:
    """Return the origin of the URL that `head` asks for."""
    origin = location(head).removesuffix(head.path).lower()
    return _without_default_port(origin.decode("latin-1")).encode("latin-1")


def _without_default_port(origin: str) -> str:
    default = ":443" if origin.startswith("https:") else ":80"
    return origin.removesuffix(default)


def _is_navigation(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a person follows a link, in a window of its own: the page that it is on sees nothing
    of the response. A frame is part of that page."""
    return (
        headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )


def _refused(head: Request) -> OriginRefused:
    origin = head.headers.get(b"origin")
    if origin is None:
        return OriginRefused(
            f"{head.method} comes from a page of another origin. If the page is yours, name its "
            "origin in cors_origins (--cors-origin), and let it use CORS."
        )
    shown = origin.decode("latin-1")[:_SHOWN_MAX]
    return OriginRefused(
        f"{head.method} comes from a page of the origin {shown!a}, which is not this server's. If "
        "the page is yours, name its origin in cors_origins (--cors-origin)."
    )


def _check_control_type(head: Request) -> None:
    """Refuse a control request with any type but JSON: an HTML form sends one of three others."""
    content_type = head.headers.get(b"content-type")
    if content_type is None or is_json(content_type.decode("latin-1")):
        return
    if _CONTROL in head.path or (b"%" in head.path and _CONTROL in unquote_to_bytes(head.path)):
        raise UnsupportedType(
            "Requests to control APIs are JSON: send them with Content-Type: application/json."
        )
