"""What both shells have in common with httpx2: timeouts, pools, failures."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from penstock import Timeouts
from penstock.client import http
from penstock.client.requests import Request, Wait

URL = "http://host/v1/stream/orders"


@pytest.mark.parametrize(
    ("given", "wait", "bound_s", "read_s"),
    [
        (30, "answer", None, 30),
        (30, "long-poll", None, 30 + http.LONG_POLL_WAIT_S),
        (30, "sse", None, 30 + http.SSE_WAIT_S),
        (Timeouts(read_s=5, live_s=7), "answer", None, 5),
        (Timeouts(read_s=5, live_s=7), "long-poll", None, 7),
        (Timeouts(read_s=5, live_s=7), "sse", 2, 2),
        (30, "long-poll", 500, 30 + http.LONG_POLL_WAIT_S),
    ],
)
def test_live_reads_may_be_silent_for_longer(
    given: float | Timeouts, wait: Wait, bound_s: float | None, read_s: float
) -> None:
    request = Request("GET", URL, wait=wait, read_timeout_s=bound_s)
    assert http.timeouts(given).of(request)["read"] == read_s


def test_one_number_bounds_every_step_and_connecting_even_more() -> None:
    assert http.timeouts(30).of(Request("GET", URL)) == {
        "connect": 10,
        "read": 30,
        "write": 30,
        "pool": 30,
    }
    with pytest.raises(ValueError, match="above 0"):
        http.timeouts(0)


def _pools(**options: Any) -> tuple[http.Pools[Any], list[dict[str, Any]]]:
    options_used: list[dict[str, Any]] = []

    def make(**given: Any) -> Any:
        options_used.append(given)
        return object()

    defaults: dict[str, Any] = {
        "http2": False,
        "proxy": None,
        "verify": True,
        "transport": None,
        "connections_max": 7,
    }
    return http.Pools(make, **{**defaults, **options}), options_used


def test_certificates_are_checked_for_https_and_not_loaded_for_http() -> None:
    pools, options_used = _pools()
    plain = pools.of(Request("GET", "http://host/x"))
    secure = pools.of(Request("GET", "https://host/x"))
    assert plain is pools.of(Request("GET", "http://other/y"))
    assert secure is not plain
    assert [given["verify"] for given in options_used] == [False, True]
    assert options_used[0]["limits"].max_connections == 7
    assert pools.close() == [plain, secure]


def test_certificate_of_an_https_proxy_is_checked() -> None:
    pools, options_used = _pools(proxy="https://proxy")
    pools.of(Request("GET", "http://host/x"))
    assert options_used[0]["verify"] is True


@pytest.mark.parametrize("secure_first", ["HTTPS://host/x", "ftp://host/x"])
def test_whatever_is_not_plain_http_is_checked(secure_first: str) -> None:
    pools, options_used = _pools()
    pools.of(Request("GET", secure_first))
    assert options_used[0]["verify"] is True


@pytest.mark.parametrize(
    ("url", "own", "coding"),
    [
        ("http://127.0.0.1:1/x", {}, "identity"),
        ("http://localhost/x", {}, "identity"),
        ("http://[::1]/x", {}, "identity"),
        ("http://host/x", {}, "gzip, deflate"),
        ("http://127.0.0.1/x", {"Accept-Encoding": "gzip"}, "gzip"),
    ],
)
def test_nothing_is_compressed_within_one_machine(
    url: str, own: dict[str, str], coding: str
) -> None:
    with httpx2.Client(headers={"Accept-Encoding": "gzip, deflate"}) as client:
        built = http.build(client, Request("GET", url), Timeouts(), own, {})
    assert built.headers["Accept-Encoding"] == coding


def test_values_of_the_request_win_over_those_of_the_client() -> None:
    request = Request("GET", URL, {"Stream-Seq": "mine"}, {"offset": "1"})
    with httpx2.Client() as client:
        built = http.build(
            client, request, Timeouts(), {"Stream-Seq": "x", "A": "b"}, {"offset": "2", "t": "3"}
        )
    assert (built.headers["Stream-Seq"], built.headers["A"]) == ("mine", "b")
    assert dict(built.url.params) == {"offset": "1", "t": "3"}


def test_query_of_a_full_url_is_kept() -> None:
    request = Request("GET", URL + "?tenant=a%20b", params={"offset": "1"})
    with httpx2.Client() as client:
        built = http.build(client, request, Timeouts(), {}, {})
    assert dict(built.url.params) == {"tenant": "a b", "offset": "1"}


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (httpx2.ConnectError("refused"), False),
        (httpx2.ConnectTimeout("slow"), False),
        (httpx2.PoolTimeout("busy"), False),
        (httpx2.ReadError("reset"), True),
        (httpx2.ReadTimeout("silent"), True),
        (httpx2.WriteError("reset"), True),
        (httpx2.RemoteProtocolError("cut"), True),
        (httpx2.DecodingError("cut gzip"), True),
    ],
)
def test_failure_says_whether_the_request_may_have_arrived(error: Exception, sent: bool) -> None:
    assert http.is_failure(error)
    assert http.failure(error, Request("POST", URL)).sent is sent


@pytest.mark.parametrize(
    "error", [httpx2.UnsupportedProtocol("ftp"), httpx2.InvalidURL("bad"), KeyError("bug")]
)
def test_mistakes_are_no_failures_of_the_network(error: Exception) -> None:
    assert not http.is_failure(error)
