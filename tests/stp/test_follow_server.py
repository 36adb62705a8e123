"""Following: rows of another server, each once, whatever that server and the network do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.egress.scripted import answer
from tests.stp.nodes import node, run, until
from tests.stp.sources import STREAM, chunk, once, rows, source

A, B = ["+", "a", "1"], ["+", "b", "2"]


@run
async def test_a_server_that_answers_once_is_polled() -> None:
    first, second = once(rows("+ a 1")), once(rows("+ b 2", start=2))
    async with node() as hub, source(first, second, once()) as origin:
        assert (await hub.follow("m", origin.surl)).status_code == 201
        await until(lambda: hub.status("m").seqno == 2)
        assert await hub.rows("m") == [A, B]
        await until(lambda: len(origin.requests) > 5)
        assert origin.asked[:4] == [0, 1, 2, 2]
        assert await hub.rows("m") == [A, B]
        assert b"accept: text/sequence; charset=utf-8" in origin.requests[0]


@run
async def test_a_server_that_streams_is_read_as_it_sends() -> None:
    more, end = asyncio.Event(), asyncio.Event()
    parts: list[bytes | asyncio.Event] = [
        STREAM,
        chunk(rows("+ a 1")),
        more,
        chunk(rows("+ b 2", start=2)),
        end,
    ]
    async with node(follow_poll_s=100) as hub, source(parts) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: hub.status("m").seqno == 1)
        assert await hub.rows("m") == [A]
        more.set()
        await until(lambda: hub.status("m").seqno == 2)
        assert await hub.rows("m") == [A, B]
        assert len(origin.requests) == 1
        end.set()


@run
async def test_a_mirror_writes_inserts_updates_and_deletes() -> None:
    first = once(rows("+ a 1", "+ a 2", "- a", "+ a 3", "+ b 1"))
    second = once(rows("+ b 2", "+ a 3", "- b", "+ b 2", start=6))
    async with node() as hub, source(first, second, once()) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: hub.status("m").seqno == 9)
        events = (await hub.client.get("/v1/stream/m")).json()
        assert [f"{event['headers']['operation']} {event['key']}" for event in events] == [
            "insert a", "update a", "delete a", "insert a", "insert b",
            "update b", "delete b", "insert b",
        ]  # fmt: skip


@run
async def test_the_table_is_declared_as_its_source_describes_itself() -> None:
    kind = "text/sequence; charset=utf-8; schema=endpoint_manifest; version=7; escape=backslash"
    async with node() as hub, source(once(rows("+ a x\\ty"), type=kind)) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: hub.status("m").seqno == 1)
        got = await hub.client.get("/v1/table/m?timeout=0")
        assert got.headers["content-type"] == kind
        assert got.text == "1\t2026-01-08T00:00:00Z\t+\ta\tx\\ty\n"
        state = await hub.client.get("/v1/state/m")
        assert state.json()["types"] == {"endpoint_manifest": {"a": "x\ty"}}


@run
async def test_a_row_that_changes_nothing_is_not_appended() -> None:
    same = rows("+ a 1", "+ a 1", "- z", "+ a 2", "- a", "- a", "+ a 2", "+ a 2")
    async with node() as hub, source(once(same), once()) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: hub.status("m").seqno == 8)
        assert await hub.rows("m") == [A, ["+", "a", "2"], ["-", "a", ""], ["+", "a", "2"]]
        status = hub.status("m")
        assert (status.appended, status.unchanged) == (4, 4)


@run
async def test_what_changes_nothing_is_compared_across_answers_and_sizes() -> None:
    long = "x" * 10_000  # too long for the index: it is compared with the log
    first, again = once(rows(f"+ a {long}", "+ b 2")), once(rows(f"+ a {long}", "+ b 2", start=3))
    async with node() as hub, source(first, again, once()) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: hub.status("m").seqno == 4)
        assert await hub.rows("m") == [["+", "a", long], B]
        await until(lambda: origin.asked[-1] == 4)  # the position moved all the same


@run
async def test_duplicates_are_ignored_and_conflicting_ones_reported() -> None:
    everything = rows("+ a 1", "+ b 2")
    other = rows("+ a 1", "+ b CHANGED", "+ c 3")
    async with node() as hub, source(once(everything), once(everything), once(other)) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: hub.status("m").seqno == 3)
        assert await hub.rows("m") == [A, B, ["+", "c", "3"]]
        seen = len(origin.requests)
        await until(lambda: len(origin.requests) > seen + 2)  # it is said again and again
        assert "SeqNo 2" in hub.status("m").last_conflict
        shown = (await hub.client.get("/v1/follow/m")).json()
        assert shown["conflicts"] == 1
        assert "came again with other content" in shown["last_conflict"]
        listing = (await hub.client.get("/v1/follow")).json()
        assert ([each["table"] for each in listing["mirrors"]], listing["next"]) == (["m"], None)
        assert listing["mirrors"][0].keys() == shown.keys()
        assert (await hub.client.get("/v1/follow?after=m")).json()["mirrors"] == []
        metrics = (await hub.client.get("/metrics")).text
        assert "penstock_stp_follow_conflicts_total 1.0" in metrics


@run
async def test_a_truncated_last_line_is_dropped_and_comes_again_whole() -> None:
    whole = rows("+ a 1", "+ b 2")
    for cut in range(len(rows("+ a 1")) + 1, len(whole)):
        async with node() as hub, source(once(whole[:cut]), once(whole), once()) as origin:
            await hub.follow("m", origin.surl)
            await until(lambda: hub.status("m").seqno == 2)
            assert await hub.rows("m") == [A, B], cut
            assert origin.asked[:2] == [0, 1]


@run
async def test_an_answer_that_is_cut_off_is_taken_up_where_it_ended() -> None:
    cut = STREAM + b"ff\r\n" + rows("+ a 1") + b"2\t2026"
    async with node() as hub, source(cut, once(rows("+ b 2", start=2)), once()) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: hub.status("m").seqno == 2)
        assert await hub.rows("m") == [A, B]
        assert origin.asked[:2] == [0, 1]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (once(status=500), "answered 500"),
        (once(status=404), "answered 404"),
        (once(b"", "Location: http://127.0.0.1:1/", status=302), "answered 302"),
        (once(b"{}", type="application/json"), "does not speak STP"),
        (once(b"no row\n"), "a line that is not a row"),
        (once(b"x" * 2000), "more than 1000 bytes"),
        (once(b"", status=410), "answered 410"),
        (b"junk\r\n\r\n", "not HTTP"),
        (b"", "closed before a response"),
    ],
)
def test_failures_are_shown_and_tried_again(bad: bytes, reason: str) -> None:
    @run
    async def test() -> None:
        async with node(follow_row_bytes_max=1000) as hub, source(bad) as origin:
            await hub.follow("m", origin.surl)
            await until(lambda: hub.status("m").failures >= 3)
            shown = (await hub.client.get("/v1/follow/m")).json()
            assert shown["state"] == "failing"
            assert reason in shown["reason"]
            metrics = (await hub.client.get("/metrics")).text
            assert 'penstock_stp_follows{state="failing"} 1.0' in metrics
            origin.answers = [[once(rows("+ a 1"))]]
            await until(lambda: hub.status("m").state == "following")
            assert await hub.rows("m") == [A]
            assert (hub.status("m").failures, hub.status("m").reason) == (0, "")

    test()


@run
async def test_rows_before_a_bad_one_are_kept() -> None:
    async with node() as hub, source(once(rows("+ a 1") + b"junk\n")) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: hub.status("m").failures)
        assert await hub.rows("m") == [A]
        await until(lambda: origin.asked[-1] == 1)


@run
async def test_a_source_that_went_back_is_another_table() -> None:
    first = once(rows("+ a 1", "+ b 2"), "STP-Last-SeqNo: 2")
    async with node() as hub, source(first, once(b"", "STP-Last-SeqNo: 1")) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: hub.status("m").failures)
        assert "another table now" in hub.status("m").reason
        assert await hub.rows("m") == [A, B]


@run
async def test_a_gap_in_the_history_of_a_source_is_closed_with_its_state() -> None:
    first = once(rows("+ a 1", "+ b 2", "+ c 3"))
    gone = once(b"", "STP-Earliest-SeqNo: 7", status=410)
    rest = rows("+ a 1", "+ b NEW", "+ d 4", "- d", start=7)
    kept_open = asyncio.Event()
    everything: list[bytes | asyncio.Event] = [
        STREAM.replace(b"\r\n\r\n", b"\r\nSTP-Last-SeqNo: 10\r\n\r\n"),
        chunk(rest),
        kept_open,
    ]
    async with node() as hub, source(first, gone, everything, once()) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: hub.status("m").seqno == 10)
        await until(lambda: origin.asked[-1] == 10)
        # Only what is different: `a` is as it was, `d` was never here, `c` has gone meanwhile.
        assert await hub.rows("m") == [A, B, ["+", "c", "3"], ["+", "b", "NEW"], ["-", "c", ""]]
        assert origin.asked[:4] == [0, 3, 0, 10]
        assert hub.status("m").failures == 0
        kept_open.set()


def test_a_snapshot_that_is_too_large_is_refused() -> None:
    from penstock.errors import EgressFailed
    from penstock.stp.rows import Row
    from penstock.stp.server.follower import Snapshot

    snapshot = Snapshot(2, bytes_max=10)
    snapshot.add([Row(1, "", "+", "a", "1234")])
    assert snapshot.position == 1
    snapshot.add([Row(2, "", "-", "a"), Row(2, "", "+", "a", "again")])
    assert snapshot.is_complete
    assert snapshot.live == {}
    with pytest.raises(EgressFailed, match="too many"):
        snapshot.add([Row(3, "", "+", "b", "12345")])


@run
async def test_a_source_of_another_schema_is_not_mixed_in() -> None:
    other = once(rows("+ b 2", start=2), type="text/sequence; schema=other; version=1")
    async with node() as hub, source(once(rows("+ a 1")), other) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: hub.status("m").failures)
        assert "is a table of s 1, its source is one of other 1" in hub.status("m").reason
        assert await hub.rows("m") == [A]


@run
async def test_a_mirror_is_read_only_until_it_is_let_go() -> None:
    async with node() as hub, source(once(rows("+ a 1")), once()) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: hub.status("m").seqno == 1)
        as_json = {"content-type": "application/json"}
        event = b'{"type":"s","key":"x","value":"1","headers":{"operation":"insert"}}'
        for got in [
            await hub.client.post("/v1/table/m", content=b"+\tx\t1\n"),
            await hub.client.put("/v1/table/m?key=x", content=b"1"),
            await hub.client.delete("/v1/table/m?key=a"),
            await hub.client.post("/v1/stream/m", content=event, headers=as_json),
            await hub.client.delete("/v1/stream/m"),
            await hub.client.post("/v1/stream/m", headers={"stream-closed": "true"}),
            await hub.client.put("/v1/stream/m/__ds/successor", json={"location": "/v1/stream/n"}),
            await hub.client.delete("/v1/stream/m/__ds/successor"),
        ]:
            assert (got.status_code, got.json()["code"]) == (403, "mirror-read-only")
        assert (await hub.client.delete("/v1/follow/m")).status_code == 204
        gone = await hub.client.get("/v1/follow/m")
        assert (gone.status_code, gone.json()["code"]) == (404, "follow-not-found")
        assert (await hub.client.delete("/v1/follow/m")).status_code == 404
        await hub.write("m", "+ x 1")
        assert await hub.rows("m") == [A, ["+", "x", "1"]]


@run
async def test_a_mirror_writes_to_a_stream_that_is_held_when_the_hold_is_over() -> None:
    async with node() as hub, source(once(rows("+ a 1")), once()) as origin:
        await hub.client.put("/v1/stream/m", headers={"content-type": "application/json"})
        hold = {"location": "/v1/stream/n", "hold": 0.3}
        held = await hub.client.put("/v1/stream/m/__ds/successor", json=hold)
        assert held.status_code == 200
        assert (await hub.follow("m", origin.surl)).status_code == 201
        await until(lambda: hub.status("m").seqno == 1)
        assert (hub.status("m").failures, hub.status("m").reason) == (0, "")
        assert await hub.rows("m") == [A]


@run
async def test_a_mirror_has_one_source() -> None:
    async with node() as hub, source(once(rows("+ a 1")), once()) as origin:
        assert (await hub.follow("m", origin.surl)).status_code == 201
        assert (await hub.follow("m", origin.surl)).status_code == 200
        other = await hub.follow("m", origin.url("/other"))
        assert (other.status_code, other.json()["code"]) == (409, "follow-conflict")
        assert (await hub.registry())["follow"].keys() == {"m"}


@run
async def test_rows_of_ones_own_are_not_overwritten_unless_adopted() -> None:
    async with node() as hub, source(once(rows("+ a 1")), once()) as origin:
        await hub.table("m", "+ a 0", "+ own x", schema="s")
        refused = await hub.follow("m", origin.surl)
        assert (refused.status_code, refused.json()["code"]) == (409, "follow-conflict")
        await hub.write("m", "+ own y")  # still ours
        assert (await hub.follow("m", origin.surl, adopt=True)).status_code == 201
        await until(lambda: hub.status("m").seqno == 1)
        assert (await hub.rows("m"))[-1] == A


@run
async def test_a_mirror_that_was_let_go_unchanged_can_be_taken_up_again() -> None:
    async with node() as hub, source(once(rows("+ a 1")), once()) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: hub.status("m").seqno == 1)
        await hub.client.delete("/v1/follow/m")
        assert (await hub.follow("m", origin.surl)).status_code == 201
        assert hub.status("m").seqno == 1
        await hub.client.delete("/v1/follow/m")
        other = await hub.follow("m", origin.url("/other"))
        assert other.status_code == 409  # its rows are those of another source


@pytest.mark.parametrize(
    ("document", "status", "code"),
    [
        (b"", 400, "invalid-json"),
        (b"[]", 400, "invalid-follow"),
        (b"{", 400, "invalid-json"),
        (b"{}", 400, "invalid-follow"),
        (b'{"surl":1}', 400, "invalid-follow"),
        (b'{"surl":"https://a.example/t","x":1}', 400, "invalid-follow"),
        (b'{"surl":"junk"}', 400, "invalid-notify"),
        (b'{"surl":"https://a.example/t?since_id=1"}', 400, "invalid-notify"),
        (b'{"surl":"https://a.example/t","nurl":"junk"}', 400, "invalid-url"),
        (b'{"surl":"https://10.0.0.1/t"}', 403, "egress-refused"),
    ],
)
def test_documents_that_are_refused(document: bytes, status: int, code: str) -> None:
    @run
    async def test() -> None:
        async with node() as hub:
            got = await hub.client.put("/v1/follow/m", content=document)
            assert (got.status_code, got.json()["code"]) == (status, code), got.text
            assert (await hub.client.head("/v1/stream/m")).status_code == 404

    test()


@run
async def test_an_allow_list_confines_what_an_operator_can_follow() -> None:
    async with node(development=False, stp_peers=("a.example",)) as hub:
        refused = await hub.follow("m", "https://b.example/t")
        assert (refused.status_code, refused.json()["code"]) == (403, "egress-refused")
        assert (await hub.follow("m", "https://a.example/t")).status_code == 201


@run
async def test_a_byte_stream_cannot_be_a_mirror() -> None:
    async with node() as hub:
        await hub.client.put("/v1/stream/m", headers={"content-type": "text/plain"})
        assert (await hub.follow("m", "http://127.0.0.1:9999/t")).status_code == 409


@run
async def test_followings_are_bounded_in_all_and_a_host() -> None:
    async with node(follow_per_peer_max=1) as hub:
        assert (await hub.follow("a", "http://127.0.0.1:9999/a")).status_code == 201
        over = await hub.follow("b", "http://127.0.0.1:9999/b")
        assert (over.status_code, over.json()["code"]) == (429, "too-many-peers")
        assert (await hub.follow("b", "http://127.0.0.2:9999/b")).status_code == 201


@run
async def test_a_notify_wakes_a_follower_that_waits() -> None:
    async with node(follow_poll_s=1000) as hub, source(once(rows("+ a 1")), once()) as origin:
        await hub.follow("m", origin.surl)
        await until(lambda: len(origin.requests) == 2)  # rows came, so it looked once more
        origin.answers = [[once(rows("+ b 2", start=2))], [once()]]
        got = await hub.notify("anything", surl=origin.surl)
        assert got.json()["followed_by"] == ["m"]
        await until(lambda: hub.status("m").seqno == 2)


@run
async def test_a_notify_about_an_unknown_table_of_a_peer_makes_a_mirror() -> None:
    async with node() as hub, source(once(rows("+ a 1")), once()) as origin:
        got = await hub.notify("hub", surl=origin.surl)
        (table,) = got.json()["followed_by"]
        assert table == f"mirror/127.0.0.1_{origin.port}/table"
        await until(lambda: hub.status(table).seqno == 1)
        assert await hub.rows(table) == [A]


@run
async def test_a_notify_does_not_take_up_again_what_somebody_has_ended() -> None:
    async with node() as hub, source(once(rows("+ a 1"))) as origin:
        (table,) = (await hub.notify("hub", surl=origin.surl)).json()["followed_by"]
        await hub.follow("m", origin.surl)
        for path in (table, "m"):
            await until(lambda path=path: hub.status(path).seqno == 1)  # type: ignore[misc]
            await hub.client.delete(f"/v1/follow/{path}")
        for name in ("hub", "m"):
            got = await hub.notify(name, surl=origin.surl)
            assert got.json() == {"ignored": {"surl": "it is not followed any more"}}
        assert not hub.app.hub.mirrors.followers


@run
async def test_the_body_of_a_notify_is_never_taken_for_state() -> None:
    body = b"surl=%b&%b" % (b"http://127.0.0.1:9/t", rows("+ a evil").replace(b"\t", b"%09"))
    async with node() as hub:
        got = await hub.client.post(
            "/v1/notify/x",
            content=body,
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
        assert got.status_code in (202, 400)
        listing = (await hub.client.get("/v1/streams")).json()
        assert b"evil" not in b"".join(
            [
                (await hub.client.get(f"/v1/stream/{each['path']}")).content
                for each in listing["streams"]
            ]
        )


@run
async def test_a_source_is_asked_with_its_token_and_told_where_to_tell_us() -> None:
    async with source(once(rows("+ a 1")), once()) as origin, source(answer(status=202)) as nurl:
        tokens = (f"{origin.url('')}=for-source",)
        async with node(stp_peer_tokens=tokens) as hub:
            await hub.follow("m", origin.surl, nurl=nurl.url("/n"))
            await until(lambda: hub.status("m").seqno == 1)
            assert b"authorization: Bearer for-source" in origin.requests[0]
            body = nurl.requests[0].partition(b"\r\n\r\n")[2].decode()
            from urllib.parse import parse_qs

            assert parse_qs(body) == {"surl": [origin.surl], "changed": [hub.nurl("m")]}
            assert b"authorization" not in nurl.requests[0]


def test_a_restart_takes_up_where_it_was(tmp_path: Path) -> None:
    @run
    async def test() -> None:
        settings: dict[str, Any] = {"data_dir": tmp_path}
        async with source(once(rows("+ a 1", "+ a 1")), once()) as origin:
            async with node(**settings) as hub:
                await hub.follow("m", origin.surl)
                await until(lambda: hub.status("m").seqno == 2)
            seen = len(origin.requests)
            async with node(**settings) as hub:
                await hub.app.hub.ready()
                assert hub.status("m").seqno == 2
                await until(lambda: len(origin.requests) > seen)
                assert origin.asked[seen] == 2
                refused = await hub.client.post("/v1/table/m", content=b"+\tx\t1\n")
                assert refused.status_code == 403
                assert await hub.rows("m") == [A]

    test()


@run
async def test_a_query_of_the_surl_is_kept() -> None:
    async with node() as hub, source(once(rows("+ a 1")), once()) as origin:
        await hub.follow("m", origin.url("/t?tenant=1"))
        await until(lambda: hub.status("m").seqno == 1)
        assert origin.requests[0].startswith(b"GET /t?tenant=1&since_id=0 HTTP/1.1")
