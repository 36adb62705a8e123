"""Forks over HTTP: what they inherit, how they read across the boundary, how a source ends."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest

from penstock.config.settings import Settings
from tests.helpers.app import Answer, Client, run_with_app, with_app

TEXT = "text/plain"
JSON = "application/json"
SOURCE = "/v1/stream/source"


async def fork(client: Client, path: str = "fork", body: bytes = b"", **headers: str) -> Answer:
    headers.setdefault("stream_forked_from", SOURCE)
    return await client.put(path, body, **headers)


def code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["code"]


@with_app()
async def test_a_fork_reads_as_one_array_and_goes_its_own_way(client: Client) -> None:
    await client.put("source", b"[1,2]", content_type=JSON)
    made = await fork(client, body=b"[30]")
    assert (made.status, made.headers["content-type"]) == (201, JSON)
    await client.post("source", b"3", content_type=JSON)
    await client.post("fork", b"31", content_type=JSON)
    assert (await client.get("fork")).json() == [1, 2, 30, 31]
    assert (await client.get("source")).json() == [1, 2, 3]


@with_app()
async def test_offsets_up_to_the_fork_point_are_the_sources(client: Client) -> None:
    first = (await client.put("source", b"[1]", content_type=JSON)).offset
    boundary = (await client.post("source", b"2", content_type=JSON)).offset
    own = (await fork(client)).offset
    beyond = (await client.post("source", b"3", content_type=JSON)).offset
    assert own > boundary
    await client.post("fork", b"30", content_type=JSON)
    assert (await client.get("fork", f"offset={first}")).json() == [2, 30]
    for spelling in (boundary, own):
        assert (await client.get("fork", f"offset={spelling}")).json() == [30]
    respelled = f"{own.partition('_')[0]}_{first.partition('_')[2]}"
    assert (await client.get("fork", f"offset={respelled}")).json() == [2, 30], "its own will do"
    assert code(await client.get("fork", f"offset={beyond}")) == (400, "invalid-offset")
    assert code(await client.get("source", f"offset={own}")) == (400, "invalid-offset")


@with_app()
async def test_bounded_reads_cross_the_boundary(client: Client) -> None:
    await client.put("source", b"[1,2,3]", content_type=JSON)
    await fork(client, body=b"[4,5,6]")
    part = await client.get("fork", "count=4")
    assert part.json() == [1, 2, 3, 4]
    assert (await client.get("fork", f"offset={part.offset}")).json() == [5, 6]
    assert (await client.get("fork", f"until={part.offset}")).json() == [1, 2, 3, 4]
    places = (await client.get("fork", "splits=6")).json()["offsets"]
    assert places == sorted(places)
    read = [(await client.get("fork", f"offset={a}&until={b}")).json() for a, b in pairwise(places)]
    assert [value for part in read for value in part] == [1, 2, 3, 4, 5, 6]


@with_app()
async def test_etags_of_source_and_fork_differ(client: Client) -> None:
    await client.put("source", b"abc", content_type=TEXT)
    await fork(client)
    tags = [(await client.get(path)).headers["etag"] for path in ("source", "fork")]
    assert tags[0] != tags[1]
    assert (await client.get("fork", if_none_match=tags[1])).status == 304
    assert (await client.get("fork", if_none_match=tags[0])).status == 200


@with_app()
async def test_chunks_stitch_a_long_chain(client: Client) -> None:
    """Ten forks of forks, read in chunks far smaller than each of them."""
    expected = [{"level": 0, "n": n} for n in range(20)]
    await client.put("f0", json.dumps(expected).encode(), content_type=JSON)
    for level in range(1, 11):
        own = [{"level": level, "n": n} for n in range(20)]
        expected += own
        source = f"/v1/stream/f{level - 1}"
        await fork(client, f"f{level}", json.dumps(own).encode(), stream_forked_from=source)
    found, offset = [], "-1"
    while True:
        part = await client.get("f10", f"offset={offset}&count=7")
        found += part.json()
        if part.offset == offset:
            break
        offset = part.offset
    assert found == expected
    assert (await client.get("f10")).json() == expected


@with_app(long_poll_timeout_s=60)
async def test_live_readers_of_a_fork_see_its_appends_and_not_the_sources(client: Client) -> None:
    start = (await client.put("source", b"[1]", content_type=JSON)).offset
    await fork(client)
    sink = await client.sse("fork")
    poll = asyncio.create_task(client.get("fork", f"offset={start}&live=long-poll"))
    while not client.app.traffic.long_polls:
        await asyncio.sleep(0)
    await client.post("source", b"2", content_type=JSON)
    await client.post("fork", b"30", content_type=JSON)
    assert (await poll).json() == [30]
    await sink.until(lambda sink: len(sink.data) == 2)
    assert [json.loads(data) for data in sink.data] == [[1], [30]]


@with_app()
async def test_refused_forks_say_why_and_leave_no_reference(client: Client) -> None:
    tail = (await client.put("source", b"[1,2]", content_type=JSON)).offset
    middle = f"{tail[:17]}{int(tail[17:]) - 1:016d}"
    zero = f"{0:016d}_{0:016d}"
    for expected, headers in [
        ((404, "stream-not-found"), {"stream_forked_from": "/v1/stream/none"}),
        ((400, "invalid-path"), {"stream_forked_from": "source"}),
        ((400, "invalid-path"), {"stream_forked_from": "/v1/stream/a/../b"}),
        ((404, "route-not-found"), {"stream_forked_from": "/v1/stream/__ds/jobs"}),
        ((409, "content-type-mismatch"), {"content_type": TEXT}),
        ((400, "invalid-offset"), {"stream_fork_offset": "soon"}),
        ((400, "offset-beyond-tail"), {"stream_fork_offset": tail[:-1] + "9"}),
        ((400, "offset-not-aligned"), {"stream_fork_offset": middle}),
        ((400, "invalid-fork-offset"), {"stream_fork_sub_offset": "1"}),
        ((400, "invalid-fork-offset"), {"stream_fork_offset": zero, "stream_fork_sub_offset": "3"}),
        ((400, "invalid-fork-offset"), {"stream_fork_offset": zero, "stream_fork_sub_offset": "x"}),
    ]:
        assert code(await fork(client, "fork", b"", **headers)) == expected, headers
    assert code(await fork(client, body=b"{")) == (400, "invalid-json")
    alone = await client.put("fork", stream_fork_offset=tail)
    assert code(alone) == (400, "invalid-fork-offset")
    assert (await client.head("fork")).status == 404
    assert (await client.delete("source")).status == 204
    assert (await client.head("source")).status == 404, "a refused fork holds the source"


@with_app()
async def test_the_same_fork_again_is_fine_and_another_is_not(client: Client) -> None:
    tail = (await client.put("source", b"[1,2]", content_type=JSON)).offset
    assert (await fork(client)).status == 201
    await client.post("source", b"3", content_type=JSON)
    assert (await fork(client)).status == 200, "without an offset any fork of the source is meant"
    assert (await fork(client, stream_fork_offset=tail)).status == 200
    moved = await fork(client, stream_fork_offset=f"{0:016d}_{0:016d}")
    assert code(moved) == (409, "stream-exists")
    assert code(await client.put("fork", content_type=JSON)) == (409, "stream-exists")
    await client.put("other", content_type=JSON)
    other = await fork(client, stream_forked_from="/v1/stream/other")
    assert code(other) == (409, "stream-exists")
    assert code(await fork(client, "other")) == (409, "stream-exists")


@with_app()
async def test_a_deleted_source_is_kept_for_its_forks_and_no_longer(client: Client) -> None:
    await client.put("source", b"kept", content_type=TEXT)
    await fork(client)
    await fork(client, "second", stream_forked_from="/v1/stream/fork")
    assert (await client.delete("source")).status == 204
    for answer in (
        await client.get("source"),
        await client.delete("source"),
        await client.post("source", b"x", content_type=TEXT),
        await client.send("POST", f"{SOURCE}/__ds/trim", b'{"before": "now"}'),
    ):
        assert code(answer) == (410, "stream-soft-deleted")
    assert (await client.head("source")).status == 410
    assert code(await client.put("source", content_type=TEXT)) == (409, "path-blocked")
    assert code(await fork(client, "third")) == (409, "fork-source-deleted")
    listed = (await client.send("GET", "/v1/streams")).json()["streams"]
    assert [(each["path"], each["forked_from"]) for each in listed] == [
        ("fork", "source"),
        ("second", "fork"),
    ]
    await client.delete("fork")
    assert (await client.get("second")).body == b"kept"
    await client.delete("second")
    for path in ("source", "fork", "second"):
        assert (await client.head(path)).status == 404
    assert (await client.put("source", content_type=JSON)).status == 201


@with_app(long_poll_timeout_s=60)
async def test_whoever_waits_at_a_source_is_told_when_it_goes(client: Client) -> None:
    await client.put("source", b"x", content_type=TEXT)
    await fork(client)
    sink = await client.sse("source")
    poll = asyncio.create_task(client.get("source", "offset=now&live=long-poll"))
    while not client.app.traffic.long_polls:
        await asyncio.sleep(0)
    await client.delete("source")
    assert code(await poll) == (410, "stream-soft-deleted")
    assert sink.closed


@with_app()
async def test_writers_start_anew_on_a_fork(client: Client) -> None:
    producer = {"producer_id": "p", "producer_epoch": "3", "producer_seq": "0"}
    await client.put("source", content_type=TEXT)
    await client.post("source", b"a", content_type=TEXT, stream_seq="9", **producer)
    await fork(client)
    again = await client.post("fork", b"b", content_type=TEXT, stream_seq="1", **producer)
    assert again.status == 200
    assert (await client.get("fork")).body == b"ab"


EXPIRY = "2099-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("source", "asked", "gets"),
    [
        ({}, {}, {}),
        ({}, {"ttl": "60"}, {"ttl": "60"}),
        ({}, {"expires-at": EXPIRY}, {"expires-at": EXPIRY}),
        ({"ttl": "60"}, {}, {"ttl": "60"}),
        ({"ttl": "60"}, {"ttl": "600"}, {"ttl": "600"}),
        ({"ttl": "60"}, {"expires-at": EXPIRY}, {"expires-at": EXPIRY}),
        ({"expires-at": EXPIRY}, {}, {"expires-at": EXPIRY}),
        ({"expires-at": EXPIRY}, {"ttl": "60"}, {"ttl": "60"}),
        (
            {"expires-at": EXPIRY},
            {"expires-at": "2100-01-01T00:00:00.000Z"},
            {"expires-at": "2100-01-01T00:00:00.000Z"},
        ),
    ],
)
def test_the_lifetime_of_a_fork(
    source: dict[str, str], asked: dict[str, str], gets: dict[str, str]
) -> None:
    async def check(client: Client) -> None:
        await client.put("source", b"", **lifetime(source))
        await fork(client, "fork", b"", **lifetime(asked))
        head = (await client.head("fork")).headers
        found = {name: head.get(f"stream-{name}") for name in ("ttl", "expires-at")}
        assert found == {"ttl": None, "expires-at": None} | gets

    def lifetime(headers: dict[str, str]) -> dict[str, str]:
        return {f"stream_{name.replace('-', '_')}": value for name, value in headers.items()}

    run_with_app(check, Settings(memory=True))


@with_app()
async def test_a_fork_that_expires_lets_go_of_its_source(client: Client) -> None:
    await client.put("source", b"x", content_type=TEXT)
    await fork(client, stream_ttl="10")
    await client.delete("source")
    client.clock.advance(11)
    assert await client.engine.reap() == 1
    while (await client.head("source")).status == 410:
        await asyncio.sleep(0)
    assert (await client.head("source")).status == 404


@with_app()
async def test_an_expired_source_lives_on_for_its_forks(client: Client) -> None:
    await client.put("source", b"x", content_type=TEXT, stream_ttl="10")
    await fork(client, stream_expires_at="2099-01-01T00:00:00Z")
    client.clock.advance(11)
    assert (await client.head("source")).status == 410
    assert code(await client.put("source", content_type=TEXT)) == (409, "path-blocked")
    assert (await client.get("fork")).body == b"x"


@with_app(fork_depth_max=2)
async def test_a_chain_of_forks_has_an_end(client: Client) -> None:
    await client.put("f0", b"x", content_type=TEXT)
    for level in (1, 2):
        made = await fork(client, f"f{level}", stream_forked_from=f"/v1/stream/f{level - 1}")
        assert made.status == 201
    assert code(await fork(client, "f3", stream_forked_from="/v1/stream/f2")) == (
        409,
        "fork-too-deep",
    )


@with_app()
async def test_a_mounted_server_takes_its_own_urls(client: Client) -> None:
    await client.put("source", b"x", content_type=TEXT)
    assert (await fork(client, stream_forked_from="/mount/v1/stream/source")).status == 201


@with_app()
async def test_if_match_takes_the_boundary_in_both_spellings(client: Client) -> None:
    tail = (await client.put("source", b"x", content_type=TEXT)).offset
    own = (await fork(client)).offset
    await fork(client, "second")
    for path, spelling in (("fork", tail), ("second", (await client.head("second")).offset)):
        quoted = f'"{spelling}"'
        answer = await client.post(path, b"y", content_type=TEXT, if_match=quoted)
        assert answer.status == 204
    assert (await client.post("fork", b"y", content_type=TEXT, if_match=f'"{own}"')).status == 412
