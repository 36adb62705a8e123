"""The checks of the settings, the port and the server that runs."""

from __future__ import annotations

import email.utils
import errno
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock import __version__
from penstock.cli.commands.doctor.finding import ERROR, NOTE, OK, WARNING, Finding
from penstock.config.settings import Settings
from penstock.errors import ConnectionFailed, Forbidden, PenstockError, Unauthorized

if TYPE_CHECKING:
    from penstock.cli.connection import Server
    from penstock.client.answers import Answer
    from penstock.client.sync.client import Client

CLOCK_DIFFERENCE_S: Final = 5.0


def configuration(settings: Settings) -> Iterator[Finding]:
    """Check what `penstock serve` would refuse, and what an operator may not have meant."""
    from penstock.access.authenticator import Access
    from penstock.http.exposure import check_exposure, listens_on_loopback
    from penstock.http.native.tls import open_tls
    from penstock.log.quotas import quotas_of
    from penstock.log.retention import rules_of

    try:
        rules_of(settings)
        quotas_of(settings)
        is_local = listens_on_loopback(settings.host)
        access = Access(settings)
        check_exposure(settings, access)
        tls = open_tls(settings) if settings.tls_cert is not None else None
    except PenstockError as error:
        yield Finding("settings", ERROR, error.detail, "`penstock config` shows every setting.")
        return
    except OSError as error:
        text = f"host {settings.host} cannot be resolved: {error.strerror}"
        yield Finding("settings", ERROR, text, "Choose another with --host.")
        return
    if tls is not None:
        tls.close()
        yield Finding("tls", OK, f"the certificate {settings.tls_cert} and its key can be used")
    elif not is_local and not settings.tls_self_signed:
        yield Finding(
            "tls",
            WARNING,
            f"{settings.host} is reached by other machines over plain HTTP: tokens can be read",
            "Set tls_cert, or put a proxy with TLS in front (see deploy/).",
        )
    if not is_local and access.is_open:
        yield Finding(
            "access",
            WARNING,
            "no access rules: anyone who reaches the server may do everything (insecure)",
            "Set a token (PENSTOCK_TOKEN), and remove --insecure.",
        )
    yield Finding("settings", OK, "they can be used")


def port(settings: Settings, *, is_ours: bool) -> Finding:
    """Check that the port is free, or that it is a Penstock server that has it."""
    from penstock.http.native.server import listen

    address = f"{settings.host}:{settings.port}"
    try:
        listen(settings.host, settings.port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE and is_ours:
            return Finding("port", OK, f"a Penstock server listens on {address}")
        reason = error.strerror or str(error)
        return Finding(
            "port", ERROR, f"{address}: {reason}", "Choose another address: --host, --port."
        )
    return Finding("port", OK, f"{address} is free")


def server_checks(server: Server) -> tuple[list[Finding], str | None]:
    """Return the findings about the server, and its URL if it is one of Penstock's."""
    from penstock.client.retry import NO_RETRY

    with server.client(retry=NO_RETRY) as client:
        try:
            index = _get(client, "/")
            if _decoded(index).get("name") != "penstock":
                text = f"{client.url} is not a Penstock server"
                return [Finding("server", ERROR, text, "Check the URL: --url, --context.")], None
        except (ConnectionFailed, socket.gaierror):
            return [_unreachable(client.url, is_chosen=server.is_chosen)], None
        except PenstockError as error:
            return [
                Finding("server", ERROR, f"{client.url}: {error.detail}", "Check the URL.")
            ], None
        return list(_answering(client, index)), client.url


def _unreachable(url: str, *, is_chosen: bool) -> Finding:
    if not is_chosen:
        return Finding("server", NOTE, f"none answers at {url}")
    advice = "Start it (`penstock serve`), or check the URL: --url, --context, PENSTOCK_URL."
    return Finding("server", ERROR, f"none answers at {url}", advice)


def _answering(client: Client, index: Answer) -> Iterator[Finding]:
    version = _decoded(index).get("version")
    if version == __version__:
        yield Finding("server", OK, f"{client.url} runs penstock {version}")
    else:
        text = f"{client.url} runs penstock {version}, this is {__version__}"
        yield Finding("server", WARNING, text, "Use the same version on both sides.")
    yield _ready(client)
    yield _date(index)
    yield _token(client)


def _ready(client: Client) -> Finding:
    try:
        _get(client, "/readyz")
    except PenstockError as error:
        text = f"not ready: {error.reason or error.detail}"
        return Finding("ready", ERROR, text, "Its log says more; /readyz has the reason.")
    return Finding("ready", OK, "it has recovered, and can be written")


def _date(index: Answer) -> Finding:
    header = index.headers.get("date")
    moment = None if header is None else email.utils.parsedate_to_datetime(header)
    if moment is None:
        return Finding("server clock", NOTE, "it sends no Date")
    apart_s = abs(time.time() - moment.timestamp())
    if apart_s <= CLOCK_DIFFERENCE_S:
        return Finding("server clock", OK, "it is that of this machine")
    return Finding(
        "server clock",
        WARNING,
        f"the clocks of the server and of this machine are {apart_s:.0f} s apart",
        "Synchronise both (NTP): tokens, links and expiry go by them.",
    )


def _token(client: Client) -> Finding:
    try:
        _get(client, "/v1/activity")
    except (Unauthorized, Forbidden) as error:
        return Finding(
            "token",
            WARNING,
            f"it may not read __ds/metrics: {error.detail}",
            "Give a token with --token-file or PENSTOCK_TOKEN; `penstock top` needs one.",
        )
    except PenstockError as error:
        return Finding("token", NOTE, f"cannot be checked: {error.detail}")
    return Finding("token", OK, "it may read __ds/metrics")


def _get(client: Client, path: str) -> Answer:
    from penstock.client.requests import Request

    return client.request(Request("GET", client.url.rstrip("/") + path, read_timeout_s=10))


def _decoded(answer: Answer) -> dict[str, Any]:
    import msgspec

    try:
        content = msgspec.json.decode(answer.body)
    except msgspec.DecodeError:
        return {}
    return content if isinstance(content, dict) else {}
