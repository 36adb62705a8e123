"""The listing: order, pages, prefixes and what an entry says."""

from __future__ import annotations

from tests.helpers.app import Client, with_app


@with_app()
async def test_entries_describe_streams(client: Client) -> None:
    await client.put("b", b"[1, 2]", content_type="application/json", stream_ttl="60")
    await client.put("a", b"xyz", stream_expires_at="2099-01-01T00:00:00Z", stream_closed="true")
    listing = await client.send("GET", "/v1/streams")
    assert listing.status == 200
    assert listing.headers["content-type"] == "application/json"
    assert listing.headers["cache-control"] == "no-store"
    content = listing.json()
    assert content["next"] is None
    first, second = content["streams"]
    assert first == {
        "path": "a",
        "offset": (await client.head("a")).offset,
        "content_type": "application/octet-stream",
        "messages": first["messages"],
        "bytes": 3,
        "trimmed": 0,
        "closed": True,
        "created_at": "2027-01-15T08:00:00.000Z",
        "touched_at": "2027-01-15T08:00:00.000Z",
        "ttl": None,
        "expires_at": "2099-01-01T00:00:00.000Z",
        "forked_from": None,
    }
    assert (second["path"], second["messages"], second["ttl"]) == ("b", 2, 60)
    assert (second["closed"], second["expires_at"]) == (False, None)


@with_app()
async def test_entries_say_when_they_were_last_written(client: Client) -> None:
    await client.put("a")
    await client.put("b", stream_ttl="60")
    client.clock.advance(seconds=2)
    await client.post("a", b"x", content_type="application/octet-stream")
    client.clock.advance(seconds=3)
    await client.get("a")
    await client.get("b")
    entries = (await client.send("GET", "/v1/streams")).json()["streams"]
    assert [entry["touched_at"] for entry in entries] == [
        "2027-01-15T08:00:02.000Z",  # a read is no write
        "2027-01-15T08:00:05.000Z",  # but a use, from which a TTL counts
    ]


@with_app(list_limit_max=3)
async def test_pages_cover_every_stream_once(client: Client) -> None:
    names = [f"s/{number:02d}%2F" for number in range(7)]
    for name in names:
        await client.put(name)
    found: list[str] = []
    after = ""
    for _ in range(10):
        page = (await client.send("GET", f"/v1/streams?limit=2&after={after}")).json()
        found += [entry["path"] for entry in page["streams"]]
        if page["next"] is None:
            break
        after = page["next"].replace("%", "%25").replace("/", "%2F")
    assert found == names
    assert len((await client.send("GET", "/v1/streams")).json()["streams"]) == 3


@with_app()
async def test_prefix_is_text_not_a_pattern(client: Client) -> None:
    for name in ("a/1", "a/2", "a_x", "b", "aa"):
        await client.put(name)
    listing = await client.send("GET", "/v1/streams?prefix=a/")
    assert [entry["path"] for entry in listing.json()["streams"]] == ["a/1", "a/2"]
    listing = await client.send("GET", "/v1/streams?prefix=a_")
    assert [entry["path"] for entry in listing.json()["streams"]] == ["a_x"]
    assert (await client.send("GET", "/v1/streams?prefix=zzz")).json()["streams"] == []


@with_app()
async def test_deleted_streams_are_not_listed(client: Client) -> None:
    await client.put("a")
    await client.put("b")
    await client.delete("a")
    listing = await client.send("GET", "/v1/streams")
    assert [entry["path"] for entry in listing.json()["streams"]] == ["b"]


@with_app()
async def test_bad_limits_are_refused(client: Client) -> None:
    for query in ("limit=0", "limit=x", "limit=1001", "limit=1&limit=2", "limit="):
        assert (await client.send("GET", f"/v1/streams?{query}")).status == 400, query
    assert (await client.send("GET", "/v1/streams?limit=1000&other=1")).status == 200
