"""`penstock stp check`: checks any STP server against the specification and the vectors."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import click

from penstock.cli.connection import Server, json_option, server_options
from penstock.cli.terminal import printable

if TYPE_CHECKING:
    import httpx2

    from penstock.stp.client.check import Reply, Result

REST_S: Final = 1.0
"""A response without a byte for so long has sent what there is."""
TIMEOUT_S: Final = 30.0
BYTES_MAX: Final = 64 * 1024 * 1024


class Endpoint(NamedTuple):
    """A URL, and the token that is sent there and nowhere else."""

    url: str
    token: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}

    def with_query(self, query: str) -> str:
        joint = "" if not query else "&" if "?" in self.url else "?"
        return f"{self.url}{joint}{query}"


class HttpProbe:
    """Makes the requests of the checks, and reads responses that stay open until they rest."""

    def __init__(
        self, client: httpx2.Client, surl: Endpoint, nurl: Endpoint, *, rest_s: float = REST_S
    ) -> None:
        self._client = client
        self._surl = surl
        self._nurl = nurl
        self._rest_s = rest_s

    def get(self, query: str, *, accept: str = "", wait_s: float | None = None) -> Reply:
        return self._read(query, accept or "text/sequence; charset=utf-8", wait_s, None)

    def watch(self, query: str, act: Callable[[], None]) -> Reply:
        return self._read(query, "text/sequence; charset=utf-8", None, act)

    def send(self, method: str, query: str, body: bytes, content_type: str) -> Reply:
        surl = self._surl
        return self._whole(method, surl.with_query(query), body, content_type, surl.headers)

    def notify(self, body: bytes, content_type: str) -> Reply:
        return self._whole("POST", self._nurl.url, body, content_type, self._nurl.headers)

    def _whole(
        self, method: str, url: str, body: bytes, content_type: str, headers: dict[str, str]
    ) -> Reply:
        from penstock.stp.client.check import Reply

        with _Failures(url):
            answer = self._client.request(
                method, url, content=body, headers={"content-type": content_type, **headers}
            )
        return Reply(answer.status_code, _headers(answer), answer.content)

    def _read(
        self, query: str, accept: str, wait_s: float | None, act: Callable[[], None] | None
    ) -> Reply:
        """Read a response until it ends or rests, or for `wait_s`."""
        import httpx2

        from penstock.stp.client.check import Reply

        url, headers = self._surl.with_query(query), {"accept": accept, **self._surl.headers}
        rest_s = self._rest_s if wait_s is None else wait_s
        timeout = httpx2.Timeout(TIMEOUT_S, read=max(rest_s, self._rest_s))
        end_s = time.monotonic() + (TIMEOUT_S if wait_s is None else wait_s)
        body, has_ended = bytearray(), True
        with (
            _Failures(url),
            self._client.stream("GET", url, headers=headers, timeout=timeout) as answer,
        ):
            if act is not None:
                act()
            try:
                for piece in answer.iter_raw():
                    body += piece
                    if len(body) > BYTES_MAX or time.monotonic() > end_s:
                        has_ended = False
                        break
            except httpx2.ReadTimeout:
                has_ended = False
            return Reply(answer.status_code, _headers(answer), bytes(body), has_ended)


class _Failures:
    """Turns errors of the network into ConnectionFailed."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import httpx2

        from penstock.errors import ConnectionFailed

        if isinstance(error, httpx2.HTTPError | httpx2.InvalidURL):
            reason = str(error) or type(error).__name__
            raise ConnectionFailed(f"{self._url.partition('?')[0]}: {reason}.") from error


def _headers(answer: httpx2.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}


@click.command("check")
@click.argument("surl")
@click.option("--nurl", metavar="URL", help="Notify URL to check as well.")
@click.option(
    "--write",
    "writes",
    is_flag=True,
    help="Write rows too, as on a Penstock server, and send the forms that NURL has to accept.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=65.0,
    show_default=True,
    metavar="SECONDS",
    help="Time in which an idle response has to end. 0 leaves that check out.",
)
@click.option("--strict", is_flag=True, help="Fail also if the server misses a SHOULD.")
@json_option
@server_options
def check(
    server: Server,
    surl: str,
    nurl: str | None,
    writes: bool,
    wait_s: float,
    strict: bool,
    as_json: bool,
) -> None:
    """Check the STP server of the table at SURL against the specification.

    SURL is a State URL of any server, or the path of a table. The checks only read, unless --write
    is given: then rows are written under keys that begin with stp-check, and deleted. With --nurl
    the published Notify forms are sent; without --write only those that must be refused. The exit
    code is 1 if the server breaks a MUST.

    \b
    Examples:
      penstock stp check https://prov.example/v1/table/endpoints
      penstock stp check scratch --write --nurl http://127.0.0.1:4437/v1/notify/scratch
    """
    results = []
    for result in _results(server, surl, nurl, writes=writes, wait_s=wait_s):
        results.append(result)
        if not as_json:
            _show(result)
    broken = [each for each in results if each.outcome == "failed"]
    failures = [each for each in broken if strict or each.level == "MUST"]
    if as_json:
        click.echo(json.dumps([each._asdict() for each in results], ensure_ascii=False))
    else:
        fine = sum(each.outcome == "ok" for each in results)
        musts = sum(each.level == "MUST" for each in broken)
        click.echo(f"{fine} ok, {musts} broken, {len(broken) - musts} not recommended")
    if failures:
        raise SystemExit(1)


def _results(
    server: Server, surl: str, nurl: str | None, *, writes: bool, wait_s: float
) -> Iterator[Result]:
    import httpx2

    from penstock.stp.client.check import TableChecks, notify_checks, run
    from penstock.stp.client.requests import notify_url, table_url

    target = server.target(surl)
    url = target.path if "://" in target.path else table_url(target.server.url, target.path)
    table_end, notify_end = Endpoint(url, target.server.token), Endpoint("")
    if nurl is not None:
        other = notify_url(target.server.url, nurl)
        is_same = urlsplit(other)[:2] == urlsplit(url)[:2]
        notify_end = Endpoint(other, target.server.token if is_same else None)
    with httpx2.Client(headers={"accept-encoding": "identity"}) as client:
        probe = HttpProbe(client, table_end, notify_end)
        prefix = f"stp-check-{secrets.token_hex(4)}-"
        table = TableChecks(probe, wait_s=wait_s, writes=writes, prefix=prefix)
        yield from run(table.checks())
        if nurl is not None:
            yield from run(notify_checks(probe, writes=writes))


def _show(result: Result) -> None:
    words = {"ok": "ok", "skipped": "skipped"}
    failed = "BROKEN" if result.level == "MUST" else "missing"
    word = words.get(result.outcome, failed)
    reason = f": {result.reason}" if result.reason else ""
    click.echo(printable(f"{word:8} {result.level:6}  {result.name}{reason}"))
