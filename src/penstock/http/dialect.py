"""What a dialect offers the App: its routes, its checks of appends, its metrics and its lifetime.

A dialect is one family of resources over the log, such as streams, tables or subscriptions. The
App wires dialects together by this interface and knows nothing else of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.http.endpoint import Methods
from penstock.http.openapi.model import Description

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.access.authenticator import Access
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.http.compression import Compressor
    from penstock.http.live.readers import LiveReaders
    from penstock.http.message import Request, Response
    from penstock.http.streams.registry import Others
    from penstock.http.traffic import Traffic
    from penstock.log.decide.checks import Check, Overtakes
    from penstock.log.engine import Engine
    from penstock.subscriptions.streams import Streams


@dataclass(frozen=True, kw_only=True)
class Services:
    """What all dialects of one App share."""

    engine: Engine
    settings: Settings
    clock: Clock
    traffic: Traffic
    compressor: Compressor
    egress: Egress
    access: Access
    readers: LiveReaders
    streams: Streams | None = None
    """All streams that subscriptions may be about, if not all of them are the engine's."""
    owns: Callable[[str], bool] | None = None
    """Whether a path is this process's own; None if all are."""
    part: str = ""
    """The name of this process among those that serve together."""
    listed: Others | None = None
    """The streams of those others, for the registry."""


@dataclass(frozen=True, kw_only=True)
class Routes:
    """The resources of a dialect by where they are.

    `streams` are the methods of streams themselves, `fixed` is by whole path, `prefixes` by what
    stands before a stream's path, and `suffixes` by the name in `<stream>/__ds/<name>`. `below`
    says what the handlers of a prefix tell apart themselves: the methods of the paths behind it.
    """

    streams: Methods = field(default_factory=dict)
    fixed: Mapping[bytes, Methods] = field(default_factory=dict)
    prefixes: Mapping[bytes, Methods] = field(default_factory=dict)
    suffixes: Mapping[str, Methods] = field(default_factory=dict)
    below: Mapping[bytes, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)


class AppendCheck(NamedTuple):
    """A check that the engine asks about appends to streams with the meta value `meta`."""

    meta: str
    check: Check
    closes: bool = False
    overtakes: Overtakes | None = None


class Dialect:
    """The interface, with what holds for a dialect that does not say otherwise."""

    def routes(self) -> Routes:
        return Routes()

    def checks(self) -> Iterable[AppendCheck]:
        return ()

    def metrics(self) -> Iterable[Metric]:
        return ()

    def refusals(self) -> Iterable[Callable[[Request], Response | None]]:
        """Return functions that may refuse a request by its head, after the guard has let it in."""
        return ()

    def describe(self) -> Description:
        """Return what the OpenAPI document says of the routes; called when somebody asks for it."""
        return Description()

    def start(self) -> None:
        """Resume what was going on before the last stop."""

    def drain(self) -> None:
        """The server is stopping: let no request wait any longer."""

    def close(self) -> None:
        """Release tasks, threads and files."""
