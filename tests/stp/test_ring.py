"""Three real servers that follow each other in a ring: rows go round once, and then it is quiet."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.stp.nodes import Node, node, run
from tests.stp.nodes import until as until_async
from tests.stp.processes import Peer, until

CHANGES = ["one", "two", "one", "three", "two"]


def changes(peer: Peer) -> list[str]:
    """The records that a table has had, in order."""
    return [row.split("\t")[3] for row in peer.rows("t")]


def follow(peer: Peer, source: Peer, *, adopt: bool = False) -> None:
    document = {"surl": source.surl("t"), "nurl": source.nurl("t"), "adopt": adopt}
    peer.send("PUT", "/v1/follow/t", 201, json=document)


def has_seen_all(peer: Peer, source: Peer) -> bool:
    last = int(source.client.head("/v1/table/t?timeout=0").headers["stp-last-seqno"])
    peer.rows("t", wait_s=0.05)
    return bool(peer.send("GET", "/v1/follow/t", 200).json()["seqno"] == last)


def test_a_ring_of_three_comes_to_rest(tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, b, c = (stack.enter_context(Peer(tmp_path / name)) for name in "abc")
        a.table("t")
        for record in CHANGES:
            a.put("t", "key", record)
        follow(b, a)
        follow(c, b)
        until(lambda: changes(b) == changes(c) == CHANGES or c.rows("t", wait_s=0.05) is None)
        follow(a, c, adopt=True)  # and the ring is closed
        until(lambda: has_seen_all(a, c))
        assert changes(a) == changes(b) == changes(c) == CHANGES
        refused = a.client.put("/v1/table/t?key=key", content=b"x")
        assert refused.status_code == 403

        # A later change goes round once as well: had the ring not been quiet before it, there would
        # be more rows than these.
        a.send("DELETE", "/v1/follow/t", 204)
        a.put("t", "key", "four")
        follow(a, c, adopt=True)
        expected = [*CHANGES, "four"]
        until(lambda: c.rows("t", wait_s=0.05) and changes(c) == expected)
        until(lambda: has_seen_all(a, c) and has_seen_all(b, a) and has_seen_all(c, b))
        assert changes(a) == changes(b) == changes(c) == expected

        for peer in (a, b, c):
            until(lambda peer=peer: peer.metric("stp_notifies_pending") == 0)  # type: ignore[misc]
            # At most one Notify a row: a storm has many.
            assert peer.metric("stp_notifies_total") <= len(expected)
            assert peer.metric("stp_follow_rows_total") <= len(expected)
        assert a.metric("stp_follow_rows_total") == 0


@run
async def test_tables_that_were_all_written_before_the_ring_was_closed_come_to_rest_too() -> None:
    """Each row goes round once. The ends differ, for mirrors do not merge; but there is an end."""
    async with node() as a, node() as b, node() as c:
        ring = [(a, c), (b, a), (c, b)]
        for peer, letter in zip((a, b, c), "xyz", strict=True):
            await peer.table("t", *(f"+ key {letter}{number}" for number in range(5)))
        for peer, before in ring:
            got = await peer.follow("t", before.surl("t"), nurl=before.nurl("t"), adopt=True)
            assert got.status_code == 201

        async def is_at_rest() -> bool:
            for peer, before in ring:
                if peer.status("t").seqno != len(await before.rows("t")):
                    return False
            return True

        await until_async(is_at_rest)
        for peer in (a, b, c):
            records = sorted(record for _, _, record in await peer.rows("t"))
            assert records == sorted(f"{letter}{number}" for letter in "xyz" for number in range(5))
        # And nothing has moved since.
        assert await is_at_rest()


@run
async def test_a_ring_comes_to_rest_though_a_trim_has_taken_what_its_rows_were_known_by() -> None:
    """They go round once more, and are known by that; each key ends with its last record."""
    async with node() as a, node() as b:
        await a.table("t", *(f"+ key x{number}" for number in range(4)), "+ other y", "- other")
        assert (await b.follow("t", a.surl("t"), nurl=a.nurl("t"))).status_code == 201

        async def has_all() -> bool:
            return len(await b.rows("t")) == 6

        await until_async(has_all)
        trimmed = await a.client.post("/v1/stream/t/__ds/trim", json={"before": "now"})
        assert trimmed.status_code == 200
        got = await a.follow("t", b.surl("t"), nurl=b.nurl("t"), adopt=True)
        assert got.status_code == 201

        async def last(peer: Node) -> int:
            answer = await peer.client.head("/v1/table/t?timeout=0")
            return int(answer.headers["stp-last-seqno"])

        async def is_at_rest() -> bool:
            return a.status("t").seqno == await last(b) and b.status("t").seqno == await last(a)

        await until_async(is_at_rest)
        for _ in range(3):
            await until_async(is_at_rest)
            assert await last(b) <= 6 + 6
        for peer in (a, b):
            state = (await peer.client.get("/v1/state/t")).json()["types"]
            assert list(state.values()) == [{"key": "x3"}]
