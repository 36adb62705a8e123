"""`penstock top`: what a server does now, and its busiest streams, redrawn as that changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.connection import Server, json_option, server_options
from penstock.cli.system import (
    broken_pipe_noticed,
    keys_unbuffered,
    pressed_key,
    terminal_size,
)
from penstock.cli.terminal import full_screen, has_cursor, printable, styled
from penstock.cli.text import aligned, amount, clock_text, size
from penstock.errors import ConnectionFailed, PenstockError, RouteNotFound

if TYPE_CHECKING:
    from penstock.client.sync.client import Client

SORTS: Final = ("appends", "messages", "bytes", "readers")
SAMPLES_MAX: Final = 360
_ONCE_S: Final = 1.0
"""How long streams are counted for --once."""
_KEY_S: Final = 0.25
"""Time between two looks at the size of the terminal."""
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_HEAD_LINES: Final = 7
_COLUMNS: Final = ("APPENDS/S", "MESSAGES/S", "BYTES/S", "READERS", "PATH")


@click.command("top")
@click.option("--once", is_flag=True, help="Print once and exit.")
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default=SORTS[0],
    show_default=True,
    help="Rate by which streams are busy.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1, max=1000),
    default=100,
    show_default=True,
    metavar="N",
    help="Show at most N streams.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two requests.",
)
@json_option
@server_options
def command(
    server: Server, once: bool, sort: str, limit: int, interval: float, as_json: bool
) -> None:
    """Show what a server does now: its rates, its latency, its readers and its busiest streams.

    On a terminal the output is redrawn; `q` ends it, `s` changes the order. Elsewhere it is printed
    again and again, with --json as one object per line (see GET /v1/activity). It needs a token
    that may read `__ds/metrics`; streams that the token may not list are not shown.

    \b
    Examples:
      penstock top
      penstock top --once --sort bytes
      penstock top --json --interval 10 | jq .current.appends_per_s
    """
    with server.client() as client, broken_pipe_noticed():
        top = Top(client, sort=sort, limit=limit)
        top.ask()
        if once:
            time.sleep(_ONCE_S)  # streams are counted from the first question on
            top.ask()
            click.echo(top.json() if as_json else "\n".join(top.lines()))
        elif as_json or not has_cursor(sys.stdout):
            while True:
                time.sleep(interval)  # the interval that the user has chosen
                top.ask()
                click.echo(top.json() if as_json else "\n".join([*top.lines(), ""]))
        else:
            _run(top, interval)


class Top:
    """The last answer of a server, as text."""

    def __init__(self, client: Client, *, sort: str, limit: int) -> None:
        self._client = client
        self._sort = sort
        self._limit = limit
        self._content: dict[str, Any] = {}
        self._samples: list[dict[str, Any]] = []
        self._outage = ""

    def ask(self) -> None:
        """Ask the server. Once it has answered, a failure is part of the text."""
        from penstock.client.requests import Request
        from penstock.client.retry import NO_RETRY

        params = {"limit": str(self._limit)}
        if self._sort != "readers":
            params["sort"] = self._sort
        if self._samples:
            params["since"] = self._samples[-1]["time"]
        url = self._client.url.rstrip("/") + "/v1/activity"
        try:
            # At first a server may be starting; later the next question is soon.
            retry = NO_RETRY if self._content else self._client.retry
            answer = self._client.request(Request("GET", url, params=params), retry=retry)
        except RouteNotFound:
            raise click.ClickException(
                f"{self._client.url} has no /v1/activity. It is not a Penstock server, or an "
                "earlier version of it."
            ) from None
        except ConnectionFailed:
            if not self._content:
                raise
            self._outage = "the server cannot be reached; trying again"
        except PenstockError as error:
            if not self._content or error.status < 500:
                raise
            self._outage = error.detail
        else:
            self._take(answer.body)

    def _take(self, body: bytes) -> None:
        import msgspec

        content = msgspec.json.decode(body)
        if content["started_at"] != self._content.get("started_at", content["started_at"]):
            self._samples = []  # another process
        self._outage = ""
        self._content = content
        self._samples = (self._samples + content["samples"])[-SAMPLES_MAX:]
        if self._sort == "readers":
            content["streams"].sort(key=lambda each: -each["live_readers"])

    def json(self) -> str:
        import msgspec

        return msgspec.json.encode(self._content).decode()

    def next_sort(self) -> None:
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]

    def lines(self, *, width: int = 100, height: int | None = None) -> list[str]:
        content = self._content
        head = [
            styled(f"penstock {content['version']}", bold=True)
            + f"  {self._client.url}  up {clock_text(self._uptime_s())}",
            *self._totals(width),
        ]
        if self._outage:
            head[0] += styled(f"  {printable(self._outage)}", fg="red")
        rows = [_row(stream) for stream in content["streams"]]
        if height is not None:
            rows = rows[: max(height - _HEAD_LINES, 1)]
        titles = [
            f"{title}{'↓' if title.lower().startswith(self._sort) else ''}" for title in _COLUMNS
        ]
        first, *rest = aligned([titles, *rows], right={0, 1, 2, 3})
        if not rest:
            rest = ["no stream has been appended to in the last seconds"]
        return [*head, "", styled(first, bold=True), *rest]

    def _uptime_s(self) -> float:
        from penstock.protocol.timestamps import unix_us

        started, now = (unix_us(self._content[name]) or 0 for name in ("started_at", "now"))
        return (now - started) / 1_000_000

    def _totals(self, width: int) -> list[str]:
        sample = self._content["current"]
        if sample is None:
            return ["the server has just started: there are no rates yet"]
        texts = [
            f"{_rate(sample['appends_per_s'])} appends/s  "
            f"{_rate(sample['messages_per_s'])} messages/s  "
            f"{_bytes(sample['bytes_in_per_s'])}/s in  {_rate(sample['reads_per_s'])} reads/s  "
            f"{_bytes(sample['bytes_out_per_s'])}/s out",
            f"commit p50 {_ms(sample['commit_p50_ms'])}, p99 {_ms(sample['commit_p99_ms'])}  "
            f"loop lag {_ms(sample['loop_lag_max_ms'])}  "
            f"{amount(sample['live_readers'], 'live reader')}  "
            f"{amount(sample['connections'], 'connection')}",
            f"{_streams(sample['streams'])}  {_bytes(sample['stored_bytes'])} stored  "
            f"{_bytes(sample['disk_free_bytes'])} free",
        ]
        history = [each["appends_per_s"] for each in self._samples]
        label = "appends/s, last hour  "
        return [*texts, label + sparkline(history, max(width - len(label), 1))]


def _run(top: Top, interval_s: float) -> None:
    """Redraw until somebody presses `q`."""
    with keys_unbuffered(), full_screen() as screen:
        while True:
            due_s = time.monotonic() + interval_s
            key, shape = "", (0, 0)
            while time.monotonic() < due_s and not key:
                if terminal_size() != shape:
                    shape = width, height = terminal_size()
                    screen.draw(top.lines(width=width, height=height))
                key = pressed_key(_KEY_S)
            if key in ("q", "Q"):
                return
            if key in ("s", "S"):
                top.next_sort()
            top.ask()


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a row of bars, the newest at its end; the highest one is the maximum of all."""
    values = values[-width:]
    top = max(values, default=0)
    if not top:
        return _SPARKS[0] * len(values)
    return "".join(_SPARKS[round(value / top * (len(_SPARKS) - 1))] for value in values)


def _row(stream: dict[str, Any]) -> tuple[str, ...]:
    return (
        _rate(stream["appends_per_s"]),
        _rate(stream["messages_per_s"]),
        _bytes(stream["bytes_per_s"]),
        f"{stream['live_readers']:,}",
        printable(stream["path"]),
    )


def _rate(per_s: float) -> str:
    return f"{per_s:,.1f}" if per_s < 100 else f"{per_s:,.0f}"


def _bytes(number: float | None) -> str:
    return "?" if number is None else size(round(number))


def _streams(number: int | None) -> str:
    return "? streams" if number is None else amount(number, "stream")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
