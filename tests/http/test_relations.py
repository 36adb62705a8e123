"""The producers and the forks of a stream."""

from __future__ import annotations

from typing import Any

from tests.helpers.app import Client, with_app

JSON = "application/json"
ROOT = "root"


async def relations(client: Client, path: str, kind: str, query: str = "", **headers: str) -> Any:
    answer = await client.send("GET", f"/v1/stream/{path}/__ds/{kind}?{query}", b"", **headers)
    assert answer.status == 200, answer
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


async def produce(client: Client, id: str, epoch: int, seq: int) -> None:
    answer = await client.post(
        "a",
        b"1",
        content_type=JSON,
        producer_id=id,
        producer_epoch=str(epoch),
        producer_seq=str(seq),
    )
    assert answer.status == 200, answer


async def fork(client: Client, path: str, source: str, **headers: str) -> None:
    headers["stream_forked_from"] = f"/v1/stream/{source}"
    assert (await client.put(path, b"", **headers)).status == 201


@with_app()
async def test_producers_are_listed_with_their_epochs_page_by_page(client: Client) -> None:
    await client.put("a", content_type=JSON)
    assert await relations(client, "a", "producers") == {"producers": [], "total": 0, "next": None}
    for id in ("c", "a", "b"):
        await produce(client, id, 0, 0)
    await produce(client, "b", 2, 0)
    await produce(client, "b", 2, 1)
    first = await relations(client, "a", "producers", "limit=2")
    assert first == {
        "producers": [{"id": "a", "epoch": 0, "seq": 0}, {"id": "b", "epoch": 2, "seq": 1}],
        "total": 3,
        "next": "b",
    }
    rest = await relations(client, "a", "producers", "limit=2&after=b")
    assert (rest["producers"], rest["next"]) == ([{"id": "c", "epoch": 0, "seq": 0}], None)
    assert (await client.send("GET", "/v1/stream/none/__ds/producers")).status == 404


@with_app()
async def test_forks_and_sources_are_a_tree(client: Client) -> None:
    created = await client.put("a", b"[1, 2]", content_type=JSON)
    assert await relations(client, "a", "forks") == {"sources": [], "forks": [], "next": None}
    for path in ("z", "b", "m"):
        await fork(client, path, "a")
    await fork(client, "b/below", "b")
    page = await relations(client, "a", "forks", "limit=2")
    assert [each["path"] for each in page["forks"]] == ["b", "m"]
    assert (page["forks"][0]["messages"], page["next"]) == (2, "m")
    page = await relations(client, "a", "forks", "limit=2&after=m")
    assert ([each["path"] for each in page["forks"]], page["next"]) == (["z"], None)
    below = await relations(client, "b/below", "forks")
    assert [each["path"] for each in below["sources"]] == ["b", "a"]
    assert below["sources"][1] == {"path": "a", "offset": created.offset, "deleted": False}
    await client.delete("m")
    await client.delete("b")  # stays for its fork
    below = await relations(client, "b/below", "forks")
    assert [each["deleted"] for each in below["sources"]] == [True, False]
    assert [each["path"] for each in (await relations(client, "a", "forks"))["forks"]] == ["z"]


@with_app(auth_token=ROOT)
async def test_what_may_not_be_read_is_hidden(client: Client) -> None:
    root = {"authorization": f"Bearer {ROOT}"}
    await client.put("a", b"", content_type=JSON, **root)
    await fork(client, "open/b", "a", **root)
    await fork(client, "open/c", "open/b", **root)
    await fork(client, "secret/c", "open/b", **root)
    made = await client.send("POST", "/v1/tokens", b'{"allow": ["read:open/**"]}', **root)
    guest = {"authorization": f"Bearer {made.json()['token']}"}
    shown = await relations(client, "open/b", "forks", **guest)
    assert [each["path"] for each in shown["sources"]] == [None]
    assert [each["path"] for each in shown["forks"]] == ["open/c"]
    assert (await client.send("GET", "/v1/stream/a/__ds/forks", b"", **guest)).status == 404
