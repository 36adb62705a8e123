"""The access log: one line for each request, or for those that were slow or failed.

Lines are written by a thread, so that a slow disk or pipe never holds up the event loop. They have
no header and no query, which may be credentials.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Any, Final

from penstock.http.exchange import CLIENT_GONE

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.exchange import Exchange

OFF: Final = "off"
SLOW: Final = "slow"
ALL: Final = "all"

LINES_MAX: Final = 10_000
"""Lines that wait to be written; what comes while there are more is dropped and counted."""
CLOSE_S: Final = 2.0
"""How long a stop waits for the last lines."""
_ERROR: Final = 400

log = logging.getLogger("penstock.access")


class AccessLog:
    """A sink of exchanges. `start` it before the first, `close` it after the last."""

    def __init__(self, settings: Settings) -> None:
        self._is_all = settings.access_log == ALL
        self._slow_s = settings.access_log_slow_ms / 1000
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="penstock-access-log", daemon=True)
        self.dropped = 0

    def start(self) -> None:
        # Whoever asks for this log gets it, whatever `log_level` says of the others.
        log.setLevel(logging.INFO)
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join(CLOSE_S)

    def __call__(self, exchange: Exchange) -> None:
        if not self._is_all and not self._is_notable(exchange):
            return
        if self._lines.qsize() >= LINES_MAX:
            self.dropped += 1
        else:
            self._lines.put(fields(exchange))

    def _is_notable(self, exchange: Exchange) -> bool:
        if exchange.status is None or exchange.status >= _ERROR:
            return True
        # A live read lasts as long as it lasts.
        return exchange.seconds >= self._slow_s and not exchange.is_live

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            log.info(
                "%s %s %s %s ms",
                line["method"],
                line["path"],
                line["status"],
                line["duration_ms"],
                extra=line,
            )


def fields(exchange: Exchange) -> dict[str, Any]:
    """Return the fields of a line: plain text without control characters, and numbers."""
    request = exchange.request
    principal = request.principal
    values = {
        "request_id": exchange.id,
        "method": visible(request.method) or "-",
        "route": exchange.route or "-",
        "path": visible(request.path.decode("latin-1")) or "-",
        "status": CLIENT_GONE if exchange.status is None else exchange.status,
        "duration_ms": round(1000 * exchange.seconds, 3),
        "bytes_in": exchange.received,
        "bytes_out": exchange.sent,
        "client": request.peer,
        "principal": "-" if principal is None else visible(principal.name),
    }
    if exchange.code:
        values["code"] = exchange.code
    return values


def visible(text: str) -> str:
    """Return a text in which what a terminal would not show, or would obey, is escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
