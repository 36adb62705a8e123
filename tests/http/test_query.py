"""Query parameters: a misspelt one is refused, one that resembles nothing is ignored."""

from __future__ import annotations

import pytest

from penstock.http.query import nearest_name, parse_query
from tests.helpers.app import Client, with_app

STREAM = frozenset({"offset", "live", "cursor", "until", "count", "splits", "bytes", "sse"})
TABLE = frozenset({"since_id", "timeout", "view"})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("ofset", "offset"),
        ("offest", "offset"),
        ("ofsett", "offset"),
        ("Offset", "offset"),
        ("off_set", "offset"),
        ("liev", "live"),
        ("lve", "live"),
        ("LIVE", "live"),
        ("coutn", "count"),
        ("curser", "cursor"),
        ("split", "splits"),
        ("byte", "bytes"),
        ("ses", "sse"),
        ("SSE", "sse"),
        ("untill", "until"),
        ("foo", None),
        ("baz", None),
        ("_", None),
        ("t", None),
        ("v", None),
        ("sso", None),
        ("token", None),
        ("timeout", None),
        ("utm_source", None),
        ("access_token", None),
    ],
)
def test_which_parameter_of_a_stream_is_meant(name: str, nearest: str | None) -> None:
    assert nearest_name(name, STREAM) == nearest


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("sinceid", "since_id"),
        ("sinceId", "since_id"),
        ("since-id", "since_id"),
        ("since", "since_id"),
        ("time_out", "timeout"),
        ("veiw", "view"),
        ("id", None),
        ("key", None),
        ("ids", None),
    ],
)
def test_which_parameter_of_a_table_is_meant(name: str, nearest: str | None) -> None:
    assert nearest_name(name, TABLE) == nearest


@with_app()
async def test_a_misspelt_parameter_is_refused_on_every_route(client: Client) -> None:
    await client.put("a", b"[1]", content_type="application/json")
    declaration = b'{"type": "row"}'
    await client.send("PUT", "/v1/table/t", declaration, content_type="application/json")
    for method, target, name in (
        ("GET", "/v1/stream/a?ofset=now", "offset"),
        ("GET", "/v1/stream/a?offset=now&liev=sse", "live"),
        ("GET", "/v1/streams?limt=1", "limit"),
        ("GET", "/v1/state/a?tpye=x", "type"),
        ("GET", "/v1/table/t?since=1", "since_id"),
        ("PUT", "/v1/table/t?kye=1", "key"),
        ("DELETE", "/v1/table/t?Key=1", "key"),
        ("GET", "/v1/stream/a?keys=1", "key"),
        ("GET", "/v1/stream/a?types=x", "type"),
        ("GET", "/v1/stream/a?tial=1", "tail"),
        ("GET", "/v1/stream/a?ta=2026-11-01T10:00:00Z", "at"),
        ("GET", "/v1/stream/__ds/subscriptions?prefx=1", "prefix"),
    ):
        answer = await client.send(method, target)
        assert answer.status == 400, target
        assert answer.json()["code"] == "unknown-parameter"
        assert f"did you mean `{name}`?" in answer.json()["detail"]


@with_app()
async def test_what_resembles_nothing_is_ignored(client: Client) -> None:
    await client.put("a", b"[1]", content_type="application/json")
    read = await client.get("a", "offset=-1&foo=bar&baz=qux&&=&%6Fther=1&_=2")
    assert (read.status, read.json()) == (200, [1])


def test_many_unknown_names_cost_little() -> None:
    query = b"&".join(b"x%d" % n for n in range(1000)) + b"&offset=1"
    nearest_name.cache_clear()
    assert parse_query(query, STREAM) == {"offset": "1"}
    assert nearest_name.cache_info().misses <= 8


@with_app()
async def test_live_may_be_false(client: Client) -> None:
    await client.put("a", b"[1,2]", content_type="application/json")
    plain = await client.get("a", "offset=-1")
    read = await client.get("a", "offset=-1&live=false")
    assert (read.status, read.body, read.headers) == (200, plain.body, plain.headers)
    assert (await client.get("a", "live=false&count=1")).json() == [1]
    assert (await client.get("a", "offset=-1&live=true")).status == 400
