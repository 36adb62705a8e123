"""Secrets never reach logs, errors, metrics or the console.

The tests plant secrets wherever one can be configured or sent, provoke every error and every log
line that they can, and look for the secrets in everything that was written.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import secrets
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config.setting import InvalidSetting
from penstock.config.settings import SETTINGS, Settings
from penstock.errors import PenstockError
from penstock.http.app import App
from penstock.http.log_format import configure, redact
from penstock.http.problems import error_response
from penstock.log import open_engine
from penstock.protocol.outbound import parse_url
from penstock.units import SECRET, SECRETS
from tests.helpers.app import Client, make_request, run_with_app, settings_of
from tests.helpers.server import running_server


def plant(name: str) -> str:
    """A secret that is nowhere else, with its name in front for whoever finds it."""
    return f"planted-{name}-{secrets.token_hex(16)}"


class Plants:
    """The secrets of one test."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def __call__(self, name: str) -> str:
        self.all.append(plant(name))
        return self.all[-1]

    def check(self, where: str, text: str | bytes) -> None:
        """Fail if any secret is in a text, whole, in part, as hex or as base64."""
        data = text.encode() if isinstance(text, str) else text
        for secret in self.all:
            name, _, text = secret.partition("-")[2].partition("-")
            core = (text if name == "issued" else text.rpartition("-")[2]).encode()
            for form in (core, core[:16], core.hex().encode(), base64.b64encode(core)):
                at = data.find(form)
                near = data[max(at - 200, 0) : at + 60]
                assert at < 0, f"{name} is in {where}: …{near!r}…"


def configured(plants: Plants) -> dict[str, str]:
    """A value for each setting that is a secret, by its environment variable."""
    environ = {}
    for setting in SETTINGS:
        if setting.name == "cluster":
            continue  # a node needs a database: tests/cluster
        if setting.kind is SECRET:
            environ[setting.env] = plants(setting.name)
        elif setting.kind is SECRETS:
            environ[setting.env] = f"https://peer.example={plants(setting.name)}"
    assert {"PENSTOCK_TOKEN", "PENSTOCK_NOTIFY_SECRET"} <= set(environ)
    environ["PENSTOCK_JWT_ALGORITHMS"] = "HS256"
    environ["PENSTOCK_JWT_ISSUER"] = environ["PENSTOCK_JWT_AUDIENCE"] = "https://issuer.example"
    return environ


def exchange(port: int, data: bytes) -> bytes:
    """Send bytes and return what comes back until the server closes, or for a moment."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as sock:
        sock.sendall(data)
        received = b""
        try:
            while piece := sock.recv(65536):
                received += piece
                if b"\r\n\r\n" in received and b"connection: close" not in received.lower():
                    sock.settimeout(0.05)
        except TimeoutError:
            pass
    return received


def all_routes(folder: Path) -> list[tuple[str, str]]:
    """Every method and target that the server knows."""
    targets: list[tuple[str, str]] = []

    async def look(client: Client) -> None:
        router = client.app._router
        targets.extend((method, "/v1/stream/some/path") for method in router._streams)
        for raw, methods in router._fixed.items():
            targets.extend((method, raw.decode()) for method in methods)
        for raw, methods in router._prefixes.items():
            targets.extend((method, raw.decode() + "some/path") for method in methods)
        for name, methods in router._suffixes.items():
            targets.extend((m, f"/v1/stream/some/path/__ds/{name}") for m in methods)

    run_with_app(look, settings_of("memory", folder))
    return targets


def head(method: str, target: str, *lines: str, length: int = 0) -> bytes:
    fixed = [f"{method} {target} HTTP/1.1", "Host: localhost", f"Content-Length: {length}"]
    return "\r\n".join([*fixed, *lines, "Connection: close", "", ""]).encode("latin-1")


def bodies(plants: Plants, port: int) -> list[bytes]:
    """Documents with secrets, right and wrong ones; `port` refuses connections."""
    user, query = plants("user"), plants("query")
    urls = [
        f"https://{user}:{user}@hooks.example/",
        f"ftp://{user}:{user}@hooks.example/",
        f"https://{user}:{user}@hooks.example:1/ä",
        f"//{user}@hooks.example",
        f"http://127.0.0.1:{port}/hook?token={query}",
        f"gopher://127.0.0.1/hook?token={query}",
    ]
    documents: list[Any] = [{"secret": query}, [query], query]
    for url in urls:
        documents += [
            {"type": "webhook", "pattern": "some/*", "webhook": {"url": url}},
            {"source": url},
            {"url": url},
            {"nurls": [url]},
            {"surl": url, "nurl": url},
            {"successor": url},
        ]
    texts = [json.dumps(document).encode() for document in documents]
    forms = [f"surl={url}&nurl={url}".encode() for url in urls]
    return [*texts, *forms, b'{"password": "' + query.encode()]


def credentials(plants: Plants) -> list[str]:
    """Lines of a head with credentials, of all kinds and wrong."""
    token = plants("wrong-token")
    return [
        f"Authorization: Bearer {token}",
        f"Authorization: Bearer pst_abc_{token}",
        f"Authorization: Basic {token}",
        f"Authorization: {token}",
        f"Authorization: Bearer eyJhbGciOiJub25lIn0.{token}.{token}",
        f"Cookie: penstock={plants('cookie')}; __Host-penstock={plants('cookie')}",
        f"Proxy-Authorization: Basic {plants('proxy')}",
        f"Stp-Signature: {plants('signature')}",
        f"X-Request-Id: r1 {plants('request-id')}",
    ]


def malformed(plants: Plants) -> list[bytes]:
    """Input that is no request, with secrets in it."""
    link, token = plants("link"), plants("token")
    bearer = f"Authorization: Bearer {token}"
    return [
        head("GET", f"http://u:{link}@test/v1/streams", bearer),
        head("GET", f"/v1/streams?link={link}#x", bearer),
        head("GET", "/v1/streams?link=" + link * 500, bearer),
        head("GET", "/v1/streams", *[f"X-{n}: {token}" for n in range(200)]),
        head("GET", "/v1/streams", f"Authorization : Bearer {token}"),
        head("GET", "/v1/streams", f"{bearer}\x00"),
        head("GET", "/v1/streams", f"Authorization: Bearer {token}\r\n {token}"),
        head("GET", "/v1/streams", f"Host: {token}", bearer),
        head("POST", "/v1/stream/a", bearer, length=10**12),
        f"{token}\r\n\r\n".encode(),
        f"GET /?link={link}".encode() + b"\r\n\r\n",
        head("BREW", f"/v1/stream/a?link={link}", bearer),
        head(f"{token}", "/v1/stream/a", bearer),
    ]


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def answers(port: int, plants: Plants, root: str, routes: list[tuple[str, str]]) -> Iterator[bytes]:
    """Provoke all the errors; yield the answers that are errors."""
    good = f"Authorization: Bearer {root}"
    lines, documents = credentials(plants), bodies(plants, closed_port())
    link = plants("link")
    for raw in malformed(plants):
        yield exchange(port, raw)
    for method, target in routes:
        for line in lines:
            yield exchange(port, head(method, target, line))
        for query in (f"link={link}", f"link={link}&link={link}", f"token={link}&lnk={link}"):
            yield exchange(port, head(method, f"{target}?{query}"))
            yield exchange(port, head(method, f"{target}?{query}", good, *lines[5:]))
    for method, target in routes:
        if method not in ("PUT", "POST"):
            continue
        for document in documents:
            for kind in ("application/json", "application/x-www-form-urlencoded"):
                line = f"Content-Type: {kind}"
                yield exchange(
                    port, head(method, target, good, line, length=len(document)) + document
                )


def error_of(answer: bytes) -> bytes:
    """The whole of an answer that is an error, else nothing: what was asked for may be shown."""
    status = answer[9:12]
    return answer if status[:1] in (b"4", b"5") else b""


@pytest.mark.parametrize("asgi", [False, True])
def test_nothing_that_a_server_writes_has_a_secret_in_it(tmp_path: Path, asgi: bool) -> None:
    plants = Plants()
    environ = configured(plants)
    root = environ["PENSTOCK_TOKEN"]
    folder = tmp_path / "data"
    flags = ["--log-level", "debug", "--loop-stall-ms", "1", "--development", "--audit", "on"]
    flags += ["--public-url", "http://127.0.0.1:8080", "--notify-attempts-max", "1"]
    routes = all_routes(tmp_path / "routes")
    with running_server(args=flags, data_dir=folder, env=environ, asgi=asgi) as server:
        port, good = server.port, f"Authorization: Bearer {root}"
        count = 0
        for answer in answers(port, plants, root, routes):
            count += bool(error_of(answer))
            plants.check("an error", error_of(answer))
        assert count > 500
        for target in ("/metrics", "/v1/audit", "/", "/healthz", "/readyz"):
            shown = exchange(port, head("GET", target, good))
            assert shown.startswith(b"HTTP/1.1 200"), target
            plants.check(target, shown)
        check_outgoing(port, plants, good)
        assert "the webhook of hook failed" in server.stderr
        plants.check("stderr", server.stderr)
        plants.check("stdout", server.ready_line)
        assert server.terminate() == 0
        plants.check("stderr", server.stderr)
    stored = [secret for secret in plants.all if "-query-" not in secret]
    plants.all = stored  # A webhook's URL is stored as it is: the server has to call it.
    check_folder(folder, plants)
    for command in ("inspect", "verify", "config"):
        check_command(command, folder, environ, plants)


def check_outgoing(port: int, plants: Plants, good: str) -> None:
    """Let the server call what cannot be reached, which it logs, and use its own tokens wrongly."""
    query, refusing = plants("query"), closed_port()
    url = f"http://127.0.0.1:{refusing}/v1/table/x?token={query}"
    base = "/v1/stream/__ds/subscriptions"

    def send(method: str, target: str, content: object, *, status: str = "2") -> Any:
        body = json.dumps(content).encode()
        lines = (good, "Content-Type: application/json")
        answer = exchange(port, head(method, target, *lines, length=len(body)) + body)
        assert answer[9:10] == status.encode(), (method, target, answer)
        plants.check("an error", error_of(answer))
        start, _, rest = answer.partition(b"\r\n\r\n")
        return json.loads(rest) if b"json" in start.lower() and rest else None

    send("PUT", "/v1/stream/called", [])
    send("PUT", "/v1/stream/wakes", [])
    hook = {"type": "webhook", "pattern": "called", "webhook": {"url": url}}
    send("PUT", f"{base}/hook", hook)
    send("PUT", f"{base}/pull", {"type": "pull-wake", "pattern": "called", "wake_stream": "wakes"})
    send("POST", "/v1/stream/called", [1])
    send("PUT", "/v1/follow/mirror", {"surl": url, "nurl": url})
    metrics = b""
    while b"penstock_webhook_failures_total 0.0" in metrics or not metrics:
        metrics = exchange(port, head("GET", "/metrics", good))
    claim = send("POST", f"{base}/pull/claim", {"worker": "w"})
    plants.all.append(f"planted-issued-{claim['token']}")
    for action in ("ack", "release", "callback"):
        for token in (claim["token"], claim["token"] + "x", claim["token"][:-4]):
            report = {"generation": claim["generation"] + 7, "wake_id": "no", "acks": [{"x": 1}]}
            body = json.dumps(report).encode()
            line = f"Authorization: Bearer {token}"
            raw = head("POST", f"{base}/pull/{action}", line, length=len(body)) + body
            answer = exchange(port, raw)
            plants.check("an error of a worker", error_of(answer))
    issued = send("POST", "/v1/tokens", {"allow": ["read:called"], "expires_in": 60})
    secret = issued["token"].split("_", 2)[2]
    link = send("POST", "/v1/link", {"verb": "read", "path": "called", "expires_in": 60})["url"]
    text = link.partition("link=")[2]
    plants.all += [f"planted-issued-{secret}", f"planted-issued-{text}"]
    target = "/v1/stream/called"
    for credential in (issued["token"], issued["token"][:-1], issued["token"].upper()):
        line = f"Authorization: Bearer {credential}"
        for method in ("GET", "POST", "DELETE"):
            answer = exchange(port, head(method, target, line))
            plants.check("an error of a token", error_of(answer))
    for signed in (text, text[:-1], text + "&x=1", f"{text}&link={text}"):
        for method, path in (("GET", target), ("DELETE", target), ("GET", "/v1/stream/other")):
            answer = exchange(port, head(method, f"{path}?link={signed}"))
            plants.check("an error of a link", error_of(answer))
    keys = exchange(port, head("GET", "/v1/stream/__ds/jwks.json")).partition(b"\r\n\r\n")[2]
    assert {"d", "k", "p", "q"}.isdisjoint(json.loads(keys)["keys"][0])


def check_folder(folder: Path, plants: Plants) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "catalog.sqlite" for path in files)
    for path in files:
        plants.check("the name of a file", path.name)
        plants.check(str(path.relative_to(folder)), path.read_bytes())
    with sqlite3.connect(folder / "catalog.sqlite") as catalog:
        plants.check("the catalog", "\n".join(catalog.iterdump()))


def check_command(command: str, folder: Path, environ: dict[str, str], plants: Plants) -> None:
    arguments = {"config": ["--data-dir", str(folder)]}.get(command, [str(folder)])
    for more in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli", command, *arguments, *more],
            capture_output=True,
            env={**environ, "PATH": ""},
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        plants.check(f"penstock {command}", done.stdout + done.stderr)


def test_a_secret_that_cannot_be_used_is_not_repeated() -> None:
    for setting in SETTINGS:
        if setting.kind not in (SECRET, SECRETS):
            continue
        plants = Plants()
        for bad in (f"{plants('bad')}\n{plants('bad')}", f"ü{plants('bad')}"):
            with pytest.raises(InvalidSetting) as caught:
                setting.parse(bad, "flag")
            plants.check(f"the error of {setting.name}", str(caught.value))


def test_settings_do_not_show_their_secrets() -> None:
    plants = Plants()
    values: dict[str, Any] = {
        setting.name: plants(setting.name) if setting.kind is SECRET else (plants(setting.name),)
        for setting in SETTINGS
        if setting.kind in (SECRET, SECRETS)
    }
    plants.check("repr", repr(Settings(**values)))


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What is logged, as the server writes it."""
    loggers = [logging.getLogger(name) for name in ("penstock", "asyncio")]
    before = [(each.handlers, each.level, each.propagate) for each in loggers]
    out = io.StringIO()
    yield out
    for logger, state in zip(loggers, before, strict=True):
        logger.handlers, logger.level, logger.propagate = state


def test_a_bug_that_quotes_what_was_sent_leaves_no_secret_in_the_log(
    lines: io.StringIO, tmp_path: Path
) -> None:
    plants = Plants()
    root = plants("root")
    configure("debug", lines, secrets=[root])
    sent = plants("sent")
    quotes = [
        f"Authorization: Bearer {sent}",
        f"{{b'authorization': b'Bearer {sent}', b'cookie': b'penstock={sent}'}}",
        f"Basic {sent}",
        f"GET /v1/stream/a?offset=-1&link={sent}&live=sse",
        f"https://user:{sent}@host/path",
        f"cannot call https://host/hook?key={sent}",
        f"token='{sent}'",
        f'{{"secret": "{sent}"}}',
        f"the root token is {root}",
        f"pst_abc_{sent}",
        f"eyJhbGciOiJIUzI1NiJ9.{sent}.{sent}",
        f"__Host-penstock={sent}; Path=/",
    ]

    async def run() -> None:
        settings = settings_of("memory", tmp_path, auth_token=root)
        engine = open_engine(settings)
        await engine.start()
        app = App(engine, settings)
        for quote in quotes:

            def broken(*_: Any, quote: str = quote, **__: Any) -> Any:
                raise RuntimeError(quote)

            engine.find = broken  # type: ignore[method-assign]
            request = make_request("GET", f"/v1/stream/a?x={sent}", authorization=f"Bearer {root}")
            assert app.refuse(request) is None
            response = app.handle(request)
            plants.check("a response", repr(response) + repr(getattr(response, "body", b"")))
            plants.check("a response", repr(error_response(RuntimeError(quote), request).body))
            logging.getLogger("asyncio").error("Task exception was never retrieved: %s", quote)
        app.close()
        await engine.stop()

    asyncio.run(run())
    written = lines.getvalue()
    assert written.count("RuntimeError") >= 2 * len(quotes)
    assert written.count("never retrieved") == len(quotes)
    plants.check("the log", written)


@pytest.mark.parametrize(
    "text",
    [
        "Replayed 3 records of 2 streams.",
        "The event loop was held up for 120 ms by GET '/v1/stream/a'",
        "cannot follow https://host/v1/table/t: the token was refused",
        "root@host has 5 streams",
        "A bearer token is needed.",
        "offset=0000_0000 and cursor=5",
    ],
)
def test_a_line_without_secrets_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "url",
    [
        "ftp://{}@host/",
        "https://{}@host:x/",
        "https://u:{}@[host/",
        "https://u:{}@host/ä",
        "https://host:1/?token={}",
        "http:/{}@host",
        "https://host/?{}ä",
    ],
)
def test_an_url_that_is_refused_is_not_repeated_with_its_secrets(url: str) -> None:
    plants = Plants()
    with pytest.raises(PenstockError) as caught:
        parse_url(url.format(plants("url")))
    plants.check("the error", caught.value.detail)
