"""Which endpoint answers a request: raw, still percent-encoded paths to resources.

Knows paths and methods; nothing of what the handlers do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.access.rules import SERVER
from penstock.errors import InvalidPath, MethodNotAllowed, RouteNotFound
from penstock.http.endpoint import Endpoint, Methods
from penstock.http.message import Request
from penstock.http.route_stats import RouteStats
from penstock.protocol.headers import parse_stream_path

if TYPE_CHECKING:
    from penstock.http.dialect import Routes

STREAM_PREFIX = b"/v1/stream/"
RESERVED = SERVER  # the protocol reserves this first segment for its control APIs
_STREAMS = "/v1/stream/{path}"
_MARK = f"/{RESERVED}/"  # between a stream's path and the name of a resource about it

_CACHE_ENTRIES_MAX = 4096
_CACHED_BYTES_MAX = 128


class Router:
    """The routes of all dialects, and the canonical paths of the streams in use."""

    __slots__ = (
        "_below",
        "_fixed",
        "_path_bytes_max",
        "_paths",
        "_prefixes",
        "_streams",
        "_suffixes",
        "stats",
    )

    def __init__(self, routes: Iterable[Routes], *, path_bytes_max: int) -> None:
        self._streams: dict[str, Endpoint] = {}
        self._fixed: dict[bytes, Methods] = {}
        self._prefixes: dict[bytes, Methods] = {}
        self._suffixes: dict[str, Methods] = {}
        self._below: dict[bytes, Mapping[str, tuple[str, ...]]] = {}
        self.stats: list[RouteStats] = []
        for each in routes:
            self._streams |= self._counted(_STREAMS, each.streams)
            for path, methods in each.fixed.items():
                self._fixed[path] = self._counted(path.decode(), methods)
            for prefix, methods in each.prefixes.items():
                self._prefixes[prefix] = self._counted(f"{prefix.decode()}{{path}}", methods)
            for name, methods in each.suffixes.items():
                self._suffixes[name] = self._counted(f"{_STREAMS}{_MARK}{name}", methods)
            self._below |= each.below
        self._path_bytes_max = path_bytes_max
        # Canonical forms of the paths in use, so that an append costs a lookup, not a parse.
        self._paths: dict[bytes, str] = {}

    def find(self, request: Request) -> tuple[Endpoint, str]:
        """Return the endpoint and the canonical stream path ("" for fixed paths)."""
        raw = request.path
        path = self._paths.get(raw)
        if path is None:
            fixed = self._fixed.get(raw)
            if fixed is not None:
                return _pick(fixed, request.method), ""
            for prefix, methods in self._prefixes.items():
                if raw.startswith(prefix):
                    if prefix in self._below and request.method not in methods:
                        path = self._canonical(raw, prefix)
                        raise _not_allowed(request.method, _served(self._below[prefix], path))
                    return _pick(methods, request.method), self._canonical(raw, prefix)
            path = self._stream_path(raw)
            stream, mark, name = path.partition(_MARK)
            if mark:
                if name not in self._suffixes:
                    raise _reserved()
                return _pick(self._suffixes[name], request.method), stream
            self._remember(raw, path)
        endpoint = self._streams.get(request.method)
        if endpoint is None:
            endpoint = _pick(self._streams, request.method)
        return endpoint, path

    def templates(self) -> dict[str, tuple[str, ...]]:
        """Return the methods that are served at each path; `{path}` is that of a stream."""
        templates = {path.decode(): tuple(methods) for path, methods in self._fixed.items()}
        templates[_STREAMS] = tuple(self._streams)
        for name, methods in self._suffixes.items():
            templates[f"{_STREAMS}{_MARK}{name}"] = tuple(methods)
        for prefix, methods in self._prefixes.items():
            below = self._below.get(prefix, {"{path}": tuple(methods)})
            for rest, served in below.items():
                templates[prefix.decode() + rest] = served
        return templates

    def _counted(self, route: str, methods: Methods) -> dict[str, Endpoint]:
        """Return endpoints whose requests are counted by method and route."""
        counted = {}
        for method, endpoint in methods.items():
            stats = RouteStats(method, route)
            self.stats.append(stats)
            counted[method] = endpoint._replace(stats=stats)
        return counted

    def _stream_path(self, raw: bytes) -> str:
        if not raw.startswith(STREAM_PREFIX):
            raise RouteNotFound(
                "Streams are at /v1/stream/<path>, their listing at /v1/streams; "
                "GET / names everything that is served."
            )
        return self._canonical(raw, STREAM_PREFIX)

    def _remember(self, raw: bytes, path: str) -> None:
        if len(raw) <= _CACHED_BYTES_MAX:
            if len(self._paths) >= _CACHE_ENTRIES_MAX:
                self._paths.clear()
            self._paths[raw] = path

    def _canonical(self, raw: bytes, prefix: bytes) -> str:
        return _canonical(raw[len(prefix) :], self._path_bytes_max)


def parse_source(text: str, *, bytes_max: int) -> str:
    """Return the path of the stream that Stream-Forked-From names by its URL on this server.

    Where this server is mounted below another path, that path may stand before."""
    mount, prefix, raw = text.encode("latin-1").partition(STREAM_PREFIX)
    if not prefix or (mount and not mount.startswith(b"/")):
        raise InvalidPath(
            "Stream-Forked-From is the path of the source's URL on this server: /v1/stream/<path>."
        )
    path = _canonical(raw, bytes_max)
    if _MARK in path:
        raise _reserved()
    return path


def _canonical(raw: bytes, bytes_max: int) -> str:
    path = parse_stream_path(raw, bytes_max=bytes_max)
    # Looked at in canonical form: %5F%5Fds is the same segment.
    if path == RESERVED or path.startswith(RESERVED + "/") or path.endswith("/" + RESERVED):
        raise _reserved()
    return path


def _reserved() -> RouteNotFound:
    return RouteNotFound(f"`{RESERVED}` is reserved for control APIs; this one is not served.")


def _pick(methods: Methods, method: str) -> Endpoint:
    endpoint = methods.get(method)
    if endpoint is None:
        raise _not_allowed(method, methods)
    return endpoint


def _not_allowed(method: str, methods: Iterable[str]) -> MethodNotAllowed:
    allowed = ", ".join((*methods, "OPTIONS"))
    return MethodNotAllowed(f"{method} is not served here; use {allowed}.", Allow=allowed)


def _served(templates: Mapping[str, tuple[str, ...]], path: str) -> tuple[str, ...]:
    """Return the methods at a path behind a prefix."""
    segments = path.split("/")
    for template, methods in templates.items():
        names = template.split("/")
        has_rest = names[-1] == "{path}"
        if len(names) == len(segments) or (has_rest and len(names) < len(segments)):
            pairs = zip(names, segments, strict=False)
            if all(name.startswith("{") or name == segment for name, segment in pairs):
                return methods
    raise RouteNotFound("Nothing is served at this path; GET / names everything that is served.")
