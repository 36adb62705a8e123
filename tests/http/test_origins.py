"""Pages of other origins: CORS, the requests that are refused, host names, and where a server may
listen without access rules."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from penstock.access.authenticator import Access
from penstock.config.load import load
from penstock.config.setting import InvalidSetting
from penstock.config.settings import Settings
from penstock.errors import HostRefused, OriginRefused, PenstockError, UnsupportedType
from penstock.http.app import open_app
from penstock.http.asgi.app import asgi
from penstock.http.exposure import check_exposure, listens_on_loopback
from penstock.http.message import Request, Response
from penstock.http.origins import Origins, fixed_headers, origin_headers
from penstock.http.sender import Sender
from tests.helpers.app import Client, with_app
from tests.helpers.server import ServerDidNotStart, running_server
from tests.http.wire import Events, get, native, on_loop, post

APP = "https://app.example"
OTHER = "https://other.example"
FOREIGN = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "origin": OTHER}


def head(method: str, headers: Mapping[str, str], path: str = "/v1/stream/a") -> Request:
    raw = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    return Request(method, path.encode(), b"", {b"host": b"localhost:4437", **raw})


def refusal(settings: dict[str, Any], request: Request) -> type[PenstockError] | None:
    try:
        Origins(Settings(**settings)).check(request)
    except PenstockError as error:
        return type(error)
    return None


# CORS headers


def test_nothing_of_cors_is_said_unless_configured() -> None:
    assert dict(fixed_headers(Settings())) == {
        b"x-content-type-options": b"nosniff",
        b"cross-origin-resource-policy": b"same-origin",
    }
    assert origin_headers(Settings()) == {}


def test_any_origin_sees_every_header_and_no_credentials() -> None:
    headers = dict(fixed_headers(Settings(cors_origins=("*",))))
    assert headers[b"access-control-allow-origin"] == b"*"
    assert headers[b"access-control-expose-headers"] == b"*"
    assert headers[b"cross-origin-resource-policy"] == b"cross-origin"
    assert b"vary" not in headers
    assert origin_headers(Settings(cors_origins=("*",))) == {}


def test_listed_origins_are_echoed_one_at_a_time() -> None:
    settings = Settings(cors_origins=(APP, OTHER))
    assert dict(fixed_headers(settings)) == {
        b"x-content-type-options": b"nosniff",
        b"cross-origin-resource-policy": b"same-origin",
        b"vary": b"Origin",
    }
    headers = {origin: dict(each) for origin, each in origin_headers(settings).items()}
    assert {each[b"access-control-allow-origin"] for each in headers.values()} == set(headers)
    assert set(headers) == {APP.encode(), OTHER.encode()}
    for each in headers.values():
        assert b"access-control-allow-credentials" not in each
        for name in (b"Stream-Next-Offset", b"Producer-Expected-Seq", b"ETag", b"Stream-Closed"):
            assert name in each[b"access-control-expose-headers"]


def test_credentials_are_allowed_to_listed_origins_when_configured() -> None:
    headers = origin_headers(Settings(cors_origins=(APP,), cors_credentials=True))
    assert (b"access-control-allow-credentials", b"true") in headers[APP.encode()]


@pytest.mark.parametrize(
    ("origins", "origin", "is_allowed"),
    [
        ((), APP, False),
        ((APP,), APP, True),
        ((APP,), OTHER, False),
        ((APP,), "null", False),
        ((APP,), f"{APP}.evil.example", False),
        ((APP,), f"{APP}, {APP}", False),
        ((APP,), None, False),
        (("*",), OTHER, True),
    ],
)
def test_preflight_is_for_allowed_origins(
    origins: tuple[str, ...], origin: str | None, is_allowed: bool
) -> None:
    request = head("OPTIONS", {} if origin is None else {"origin": origin})
    response = Origins(Settings(cors_origins=origins)).preflight(request)
    headers = {name.decode(): value.decode() for name, value in response.headers}
    assert response.status == 204
    assert set(headers["allow"].split(", ")) == {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"}
    assert ("access-control-allow-methods" in headers) is is_allowed
    assert ("access-control-allow-headers" in headers) is is_allowed
    assert "access-control-allow-private-network" not in headers


def test_preflight_allows_everything_the_protocol_uses() -> None:
    response = Origins(Settings(cors_origins=(APP,))).preflight(head("OPTIONS", {"origin": APP}))
    headers = {name.decode(): value.decode() for name, value in response.headers}
    methods = headers["access-control-allow-methods"].split(", ")
    assert set(methods) == {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"}
    allowed = {name.lower() for name in headers["access-control-allow-headers"].split(", ")}
    assert {
        "content-type", "authorization", "if-none-match", "if-match", "stream-seq", "stream-ttl",
        "stream-expires-at", "stream-closed", "producer-id", "producer-epoch", "producer-seq",
    } <= allowed  # fmt: skip


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("", ()),
        ("*", ("*",)),
        ("https://App.Example:443", ("https://app.example",)),
        ("http://localhost:3000,http://[::1]:80", ("http://localhost:3000", "http://[::1]")),
        ("http://a.example:443", ("http://a.example:443",)),
        ("chrome-extension://abcdef", ("chrome-extension://abcdef",)),
    ],
)
def test_origins_are_written_as_browsers_write_them(text: str, origins: tuple[str, ...]) -> None:
    assert load({"cors_origins": text}, {}).cors_origins == origins


@pytest.mark.parametrize(
    "text",
    ["null", "app.example", "https://", "https://a/", "https://a/b", "https://*.a", "https://a:b",
     "https://a:70000", "https://u@a", "https://a,*", "*,https://a", "https://a?x", "https://ä"],
)  # fmt: skip
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="cors_origins must be origins such as"):
        load({"cors_origins": text}, {})


def test_the_former_name_of_the_setting_says_the_new_one() -> None:
    with pytest.raises(InvalidSetting, match=r"It is PENSTOCK_CORS_ORIGINS now\."):
        load({}, {"PENSTOCK_CORS_ORIGIN": "*"})
    with pytest.raises(InvalidSetting, match=r"'cors_origin'. It is cors_origins now\."):
        asgi(cors_origin="*")


# Every response, on both transports


@on_loop
async def test_native_responses_name_the_origin_of_their_own_request() -> None:
    async with native(cors_origins=(APP, OTHER), body_bytes_max=5) as server:
        server.app.refusals[b"/refused"] = Response(403)
        server.app.routes[b"/same"] = lambda _: Response(304)
        client = await server.connect()
        for turn in range(3):  # the second and third are matched by their cached heads
            for origin in (APP, OTHER):
                for path, status in (("/", 200), ("/refused", 403), ("/same", 304)):
                    answer = await client.ask(get(path, f"Origin: {origin}"))
                    assert (answer.status, turn) == (status, turn)
                    assert answer.headers["access-control-allow-origin"] == origin
                    assert answer.headers["vary"] == "Origin"
            for request in (get("/"), get("/", "Origin: https://evil.example")):
                answer = await client.ask(request)
                assert "access-control-allow-origin" not in answer.headers
                assert "access-control-expose-headers" not in answer.headers
                assert answer.headers["vary"] == "Origin"
        # What never became a request: too long a body, and no HTTP at all.
        chunks = f"Transfer-Encoding: chunked\r\nOrigin: {APP}\r\n\r\n6\r\nabcdef\r\n0\r\n\r\n"
        late = await server.ask(f"POST / HTTP/1.1\r\nHost: localhost\r\n{chunks}".encode())
        assert (late.status, late.headers["access-control-allow-origin"]) == (413, APP)
        broken = await server.ask(b"nonsense\r\n\r\n")
        assert (broken.status, broken.headers["vary"]) == (400, "Origin")
        assert "access-control-allow-origin" not in broken.headers


@on_loop
async def test_native_events_name_the_origin_of_their_request() -> None:
    async with native(cors_origins=(APP,)) as server:
        for origin in (APP, OTHER):
            server.app.routes[b"/events"] = lambda _: Response(200, [], Events())
            client = await server.connect()
            await client.send(get("/events", f"Origin: {origin}"))
            headers = (await client.head()).headers
            assert headers["vary"] == "Origin"
            assert headers.get("access-control-allow-origin") == (APP if origin == APP else None)


def test_both_transports_answer_a_listed_origin_alike() -> None:
    seen = []
    for is_asgi in (False, True):
        args = ["--cors-origin", f"{APP},http://localhost:3000", "--cors-credentials"]
        with running_server(memory=True, asgi=is_asgi, args=args) as server:
            url, statuses = f"{server.url}/v1/stream/a", []
            for origin, expected in ((APP, APP), (OTHER, None), (None, None)):
                headers = {"content-type": "text/plain"}
                headers |= {} if origin is None else {"origin": origin}
                answers = [
                    httpx.put(url, headers=headers),
                    httpx.get(url, headers=headers),
                    httpx.get(f"{url}/none", headers=headers),
                    httpx.get(f"{url}?offset=nonsense", headers=headers),
                    httpx.options(url, headers=headers),
                ]
                etag = {"if-none-match": answers[1].headers["etag"]}
                answers.append(httpx.get(url, headers=headers | etag))
                for answer in answers:
                    assert answer.headers.get("access-control-allow-origin") == expected
                    credentials = answer.headers.get("access-control-allow-credentials")
                    assert credentials == (None if expected is None else "true")
                    assert "Origin" in answer.headers["vary"]
                statuses.append([answer.status_code for answer in answers])
            seen.append(statuses)
    allowed, foreign, none = seen[0]
    assert allowed == [201, 200, 404, 400, 204, 304]
    assert foreign == [403, 200, 404, 400, 204, 304]
    assert none == [200, 200, 404, 400, 204, 304]
    assert seen[0] == seen[1]


# Requests of other origins


SITES: list[tuple[dict[str, str], bool, bool]] = [
    # What a request says of its page; whether a GET is let in, and whether a POST is.
    ({}, True, True),
    ({"origin": "http://localhost:4437"}, True, True),
    ({"origin": "http://LOCALHOST:4437"}, True, False),  # no browser writes it like that
    ({"origin": "https://localhost:4437"}, True, False),
    ({"origin": "http://localhost"}, True, False),
    ({"origin": "http://localhost:3000"}, True, False),
    ({"origin": "http://127.0.0.1:4437"}, True, False),
    ({"origin": OTHER}, True, False),
    ({"origin": "null"}, True, False),
    ({"origin": ""}, True, False),
    ({"origin": APP}, True, True),
    ({"sec-fetch-site": "none"}, True, True),
    ({"sec-fetch-site": "same-origin"}, True, True),
    ({"sec-fetch-site": "same-origin", "origin": "null"}, True, True),
    ({"sec-fetch-site": "same-origin", "origin": "http://localhost:5173"}, True, True),  # a proxy
    ({"sec-fetch-site": "same-site"}, False, False),
    ({"sec-fetch-site": "same-site", "origin": "http://localhost:3000"}, False, False),
    ({"sec-fetch-site": "cross-site"}, False, False),
    ({"sec-fetch-site": "cross-site", "origin": OTHER}, False, False),
    ({"sec-fetch-site": "cross-site", "origin": "null"}, False, False),
    ({"sec-fetch-site": "cross-site", "origin": APP}, True, True),
    ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, False, False),
    ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate",
      "sec-fetch-dest": "document"}, True, False),
    ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate",
      "sec-fetch-dest": "document", "origin": "null"}, True, False),
    ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate",
      "sec-fetch-dest": "iframe"}, False, False),
    ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors",
      "sec-fetch-dest": "document"}, False, False),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "reads", "writes"), SITES, ids=lambda each: str(each)[:60])
def test_which_requests_of_pages_are_let_in(
    headers: dict[str, str], reads: bool, writes: bool
) -> None:
    settings = {"cors_origins": (APP,)}
    for method in ("GET", "HEAD"):
        assert refusal(settings, head(method, headers)) is (None if reads else OriginRefused)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert refusal(settings, head(method, headers)) is (None if writes else OriginRefused)
    assert refusal(settings, head("OPTIONS", headers)) is None
    for method in ("GET", "POST"):
        assert refusal({"cors_origins": ("*",)}, head(method, headers)) is None


@pytest.mark.parametrize(
    ("settings", "host", "origin", "is_own"),
    [
        ({"public_url": "https://streams.example"}, "localhost:4437", "https://streams.example", 1),
        ({"public_url": "https://streams.example:443"}, "localhost", "https://streams.example", 1),
        ({"public_url": "https://streams.example"}, "localhost", "http://streams.example", 0),
        ({"public_url": "https://streams.example"}, "localhost", "https://streams.example:81", 0),
        ({"allowed_hosts": ("streams.example",)}, "localhost", "https://streams.example", 1),
        ({"allowed_hosts": ("streams.example",)}, "localhost", "https://streams.example:81", 0),
        ({"allowed_hosts": ("*",)}, "streams.example:80", "http://streams.example", 1),
        ({"allowed_hosts": ("*",)}, "streams.example:81", "http://streams.example:81", 1),
        ({"allowed_hosts": ("*",)}, "streams.example", OTHER, 0),
    ],
)
def test_own_origins_are_those_of_the_host_and_of_the_settings(
    settings: dict[str, Any], host: str, origin: str, is_own: bool
) -> None:
    request = head("POST", {"host": host, "origin": origin})
    assert refusal(settings, request) is (None if is_own else OriginRefused)


def test_behind_a_proxy_that_ends_tls_the_origin_is_https() -> None:
    request = head("POST", {"origin": "https://localhost:4437"})
    assert refusal({}, request) is OriginRefused
    request.sender = Sender("203.0.113.7", "https")  # as a trusted proxy has named it
    assert refusal({}, request) is None
    headers = {"origin": "https://localhost:4437", "x-forwarded-proto": "https"}
    assert refusal({}, head("POST", headers)) is OriginRefused, "anybody can send that header"


@with_app()
async def test_refused_request_changes_nothing_and_says_what_allows_it(client: Client) -> None:
    await client.put("a", b"one", content_type="text/plain")
    for method in ("POST", "PUT", "DELETE"):
        answer = await client.send(
            method, "/v1/stream/a", b"two", content_type="text/plain", origin=OTHER
        )
        assert (answer.status, answer.json()["code"]) == (403, "origin-refused")
        assert "--cors-origin" in answer.json()["detail"]
        assert OTHER in answer.json()["detail"]
        assert answer.headers["cache-control"] == "no-store"
    assert (await client.get("a")).body == b"one"
    assert client.app.traffic.errors["origin-refused"] == 3


# Control requests


@pytest.mark.parametrize(
    ("content_type", "is_let_in"),
    [
        (None, True),
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=x", False),
        ("text/plain", False),
        ("text/plain; application/json", False),
        ("", False),
    ],
)
@pytest.mark.parametrize(
    "path",
    [
        "/v1/stream/a/__ds/trim",
        "/v1/stream/a/__ds/compact",
        "/v1/stream/__ds/rotate-key",
        "/v1/stream/__ds/subscriptions/s/claim",
        "/v1/stream/a/%5F%5Fds/trim",
        "/v1/stream/__%64s/rotate-key",
    ],
)
def test_control_requests_are_json(path: str, content_type: str | None, is_let_in: bool) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    assert refusal({}, head("POST", headers, path)) is (None if is_let_in else UnsupportedType)
    assert refusal({}, head("POST", headers)) is None  # an append has the type of its stream


@with_app()
async def test_form_cannot_trim_a_stream(client: Client) -> None:
    json_type = {"content_type": "application/json"}
    tail = (await client.put("a", b"[1,2]", **json_type)).offset
    body = json.dumps({"before": tail}).encode()
    refused = await client.send("POST", "/v1/stream/a/__ds/trim", body, content_type="text/plain")
    assert (refused.status, refused.json()["code"]) == (415, "unsupported-media-type")
    assert (await client.get("a")).json() == [1, 2]
    done = await client.send("POST", "/v1/stream/a/__ds/trim", body, **json_type)
    assert done.status == 200
    assert client.app.traffic.errors == {"unsupported-media-type": 1}


# Host names


LOOPBACK_HOSTS = [
    "localhost", "LOCALHOST:80", "localhost.", "a.localhost:4437", "127.0.0.1", "127.9.9.9:1",
    "[::1]", "[::1]:4437",
]  # fmt: skip
OTHER_HOSTS = [
    "evil.example", "evil.example:4437", "localhost.evil.example", "localhostevil", "0.0.0.0:4437",
    "192.168.0.1", "[::2]", "127.0.0.1.evil.example", "xlocalhost", "[::ffff:8.8.8.8]",
]  # fmt: skip


@pytest.mark.parametrize("host", LOOPBACK_HOSTS)
def test_server_on_loopback_answers_to_names_of_loopback(host: str) -> None:
    assert refusal({}, head("GET", {"host": host})) is None


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_server_on_loopback_answers_to_no_other_name(host: str, method: str) -> None:
    for address in ("127.0.0.1", "::1", "localhost"):
        assert refusal({"host": address}, head(method, {"host": host})) is HostRefused


@pytest.mark.parametrize(
    ("settings", "host", "is_let_in"),
    [
        ({"allowed_hosts": ("*",)}, "evil.example", True),
        ({"allowed_hosts": ("streams.example",)}, "Streams.Example:4437", True),
        ({"allowed_hosts": ("streams.example",)}, "localhost", True),
        ({"allowed_hosts": ("streams.example",)}, "a.streams.example", False),
        ({"allowed_hosts": ("*.example",)}, "streams.example", True),
        ({"allowed_hosts": ("*.example",)}, "example", False),
        ({"allowed_hosts": ("*.example",)}, "streamsexample", False),
        ({"public_url": "https://streams.example:8443"}, "streams.example", True),
        ({"public_url": "https://streams.example:8443"}, "evil.example", False),
        ({"host": "0.0.0.0"}, "evil.example", True),
        ({"host": "0.0.0.0", "public_url": "https://streams.example"}, "evil.example", True),
        ({"host": "0.0.0.0", "allowed_hosts": ("streams.example",)}, "evil.example", False),
        ({"host": "0.0.0.0", "allowed_hosts": ("10.0.0.1",)}, "10.0.0.1:4437", True),
    ],
)
def test_hosts_of_the_settings(settings: dict[str, Any], host: str, is_let_in: bool) -> None:
    request = head("GET", {"host": host})
    assert refusal(settings, request) is (None if is_let_in else HostRefused)


def test_request_without_a_host_is_no_browsers() -> None:
    assert refusal({}, Request("GET", b"/")) is None
    assert refusal({}, Request("GET", b"/", b"", {b"host": b""})) is None


@with_app()
async def test_rebound_name_reads_nothing(client: Client) -> None:
    await client.put("a", b"secret", content_type="text/plain")
    for _ in range(2):
        answer = await client.get("a", host="evil.example:4437")
        assert (answer.status, answer.json()["code"]) == (421, "host-refused")
        assert "--allowed-hosts" in answer.json()["detail"]
    assert (await client.get("a", host="localhost:4437")).body == b"secret"


def test_embedding_app_decides_on_hosts_unless_they_are_set() -> None:
    for args, status in (([], 404), (["--allowed-hosts", "streams.example"], 421)):
        with running_server(memory=True, asgi=True, args=args) as server:
            url = f"{server.url}/v1/stream/none"
            assert httpx.get(url, headers={"host": "evil.example"}).status_code == status
            assert httpx.get(url).status_code == 404


# Where a server may listen


def check(settings: Settings) -> None:
    check_exposure(settings, Access(settings))


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.0.2.1", False),
    ],
)
def test_exposed_server_needs_access_rules(host: str, is_loopback: bool) -> None:
    assert listens_on_loopback(host) is is_loopback
    check(Settings(host=host, auth_token="t"))
    check(Settings(host=host, insecure=True))
    if is_loopback:
        check(Settings(host=host))
    else:
        with pytest.raises(InvalidSetting, match=r"--token or PENSTOCK_TOKEN.*--insecure"):
            check(Settings(host=host))


def test_name_counts_by_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"here.example": ["127.0.0.1"], "both.example": ["127.0.0.1", "192.0.2.1"]}

    def resolve(host: str, *_: object, **__: object) -> list[Any]:
        return [(0, 0, 0, "", (address, 0)) for address in addresses[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    check(Settings(host="here.example"))
    assert refusal({"host": "here.example"}, head("GET", {"host": "here.example"})) is None
    assert refusal({"host": "here.example"}, head("GET", {"host": "evil.example"})) is HostRefused
    with pytest.raises(InvalidSetting):
        check(Settings(host="both.example"))


def test_exposed_process_does_not_start_and_binds_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        # The port is in use: a server that bound first would say so.
        port = taken.getsockname()[1]
        with (
            pytest.raises(ServerDidNotStart) as refused,
            running_server(memory=True, args=["--host", "0.0.0.0", "--port", str(port)]),
        ):
            pass
    message = str(refused.value)
    assert len(message.strip().splitlines()) == 1
    assert "--token or PENSTOCK_TOKEN" in message
    assert "--insecure" in message


@on_loop
async def test_cached_head_is_decided_by_its_own_headers() -> None:
    """The same request line with other headers is another head: its refusal is its own."""

    async def check(server: Any) -> None:
        client = await server.connect()
        plain = post("/v1/stream/a", b"x", "Content-Type: text/plain")
        foreign = post("/v1/stream/a", b"x", "Content-Type: text/plain", f"Origin: {OTHER}")
        assert (await client.ask(plain.replace(b"POST", b"PUT"), body=False)).status == 201
        for _ in range(3):
            assert (await client.ask(plain)).status == 204
            assert (await client.ask(foreign)).status == 403
            rebound = plain.replace(b"localhost", b"evil.example")
            assert (await client.ask(rebound)).status == 421

    app = await open_app(Settings(memory=True))
    try:
        async with native(app) as server:
            await check(server)
    finally:
        await app.stop()
