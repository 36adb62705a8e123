"""Pull-wake: wake, claim, ack, release, leases by a clock that is held still, fencing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.errors import DiskFull
from tests.helpers.app import Client, with_app
from tests.subscriptions.desk import JSON, ROOT, Desk


def _code(answer: Any) -> str:
    assert answer.headers["content-type"] == "application/json"
    return str(answer.json()["error"]["code"])


async def _settle() -> None:
    """Let what was set off by the last answer be issued and written."""
    for _ in range(20):
        await asyncio.sleep(0.001)


async def _until(desk: Desk, count: int) -> list[Any]:
    """The wakes, once there are so many."""
    while len(found := await desk.wakes()) < count:
        await asyncio.sleep(0.001)
    return found


@with_app()
async def test_an_append_wakes_once_until_it_is_acked(client: Client) -> None:
    desk = Desk(client)
    await desk.pull()
    await desk.append("events/a")
    await desk.append("events/a")
    await desk.append("events/b")
    first, *more = await _until(desk, 1)
    await _settle()
    assert more == []
    assert len(await desk.wakes()) == 1
    assert first["type"] == "wake"
    assert first["subscription_id"] == "s"
    assert first["stream"] == "events/a"
    assert first["generation"] == 1
    assert first["ts"] == client.clock.now_us() // 1000
    claimed = (await desk.claim()).json()
    assert claimed["generation"] == 1
    assert claimed["lease_ttl_ms"] == 1000
    by_path = {each["path"]: each for each in claimed["streams"]}
    assert by_path["events/a"] == {
        "path": "events/a",
        "link_type": "glob",
        "acked_offset": "-1",
        "tail_offset": await desk.tail("events/a"),
        "has_pending": True,
    }
    assert (await desk.finish(claimed)).json() == {"ok": True, "next_wake": False}
    await desk.append("events/b")
    assert (await _until(desk, 2))[1]["generation"] == 2


@with_app()
async def test_streams_that_were_there_are_linked_at_their_tail(client: Client) -> None:
    desk = Desk(client)
    await desk.append("events/old")
    await desk.append("other")
    await desk.append("listed")
    await desk.pull(streams=["listed", "not/there"])
    assert await desk.cursors() == {
        "events/old": await desk.tail("events/old"),
        "listed": await desk.tail("listed"),
        "not/there": "-1",
    }
    assert _code(await desk.claim()) == "NO_PENDING_WORK"
    await desk.append("not/there", [1, 2])
    claimed = (await desk.claim()).json()
    assert [each["path"] for each in claimed["streams"] if each["has_pending"]] == ["not/there"]


def test_what_is_appended_while_streams_are_looked_for_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.subscriptions.service.PAGE", 1)

    @with_app()
    async def check(client: Client) -> None:
        desk = Desk(client)
        for number in range(10, 40):
            await desk.append(f"events/{number}")
        making = asyncio.ensure_future(desk.pull())
        while not desk.service.matching._recordings:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        # One that was looked at already, and one that was not there then.
        await desk.append("events/10")
        await desk.append("events/00")
        assert not making.done()
        await making
        claimed = (await desk.claim()).json()
        pending = {each["path"]: each for each in claimed["streams"] if each["has_pending"]}
        assert pending.keys() == {"events/00", "events/10"}
        assert pending["events/00"]["acked_offset"] == "-1"
        assert pending["events/10"]["acked_offset"] != "-1"

    check("memory", None)


@with_app()
async def test_an_empty_stream_is_no_work_and_closing_is_none(client: Client) -> None:
    desk = Desk(client)
    await desk.pull()
    await client.put("events/a", b"[]", content_type=JSON)
    await client.post("events/a", stream_closed="true")
    assert _code(await desk.claim()) == "NO_PENDING_WORK"
    await _settle()
    assert await desk.wakes() == []


@with_app()
async def test_a_claim_holds_off_others_until_the_lease_runs_out(client: Client) -> None:
    desk = Desk(client)
    await desk.pull()
    await desk.append("events/a")
    first = (await desk.claim("w1")).json()
    busy = await desk.claim("w2")
    assert busy.status == 409
    assert _code(busy) == "ALREADY_CLAIMED"
    assert busy.json()["error"]["current_holder"] == "w1"
    assert busy.json()["error"]["generation"] == 1
    client.clock.advance(0.9)
    # A heartbeat: the lease runs from here.
    assert (await desk.report("ack", first)).json() == {"ok": True, "next_wake": False}
    client.clock.advance(0.9)
    assert _code(await desk.claim("w2")) == "ALREADY_CLAIMED"
    client.clock.advance(0.2)
    desk.service.wakes.tick()
    assert (await desk.show())["holder"] is None
    assert [each["generation"] for each in await _until(desk, 2)] == [1, 2]
    second = (await desk.claim("w2")).json()
    assert second["generation"] == 2
    assert second["wake_id"] != first["wake_id"]
    late = await desk.finish(first)
    assert (late.status, _code(late)) == (409, "FENCED")
    assert _code(await desk.report("release", first)) == "FENCED"
    assert (await desk.cursors())["events/a"] == "-1"
    assert (await desk.finish(second)).status == 200


@with_app()
async def test_a_lease_that_ran_out_is_over_even_before_the_timer_says_so(client: Client) -> None:
    desk = Desk(client)
    await desk.pull()
    await desk.append("events/a")
    claimed = (await desk.claim()).json()
    client.clock.advance(1)
    assert _code(await desk.finish(claimed)) == "FENCED"
    assert (await desk.claim("w2")).status == 200


@with_app()
async def test_a_release_gives_the_work_to_the_next(client: Client) -> None:
    desk = Desk(client)
    await desk.pull()
    await desk.append("events/a")
    first = (await desk.claim("w1")).json()
    assert (await desk.report("release", first)).status == 204
    assert len(await _until(desk, 2)) == 2
    second = (await desk.claim("w2")).json()
    assert second["generation"] == 2
    assert second["streams"][0]["acked_offset"] == "-1"


@with_app()
async def test_part_of_the_work_leads_to_another_wake(client: Client) -> None:
    desk = Desk(client)
    await desk.pull()
    await desk.append("events/a", 1)
    middle = await desk.tail("events/a")
    await desk.append("events/a", 2)
    claimed = (await desk.claim()).json()
    acks = [{"stream": "events/a", "offset": middle}]
    done = await desk.report("ack", claimed, acks=acks, done=True)
    assert done.json() == {"ok": True, "next_wake": True}
    assert (await desk.cursors())["events/a"] == middle
    assert len(await _until(desk, 2)) == 2
    again = (await desk.claim()).json()
    assert again["streams"][0]["acked_offset"] == middle


@pytest.mark.parametrize("offset", ["-1", "now", "nonsense", "before", "beyond", "inside", "other"])
def test_acks_that_are_refused_move_nothing(offset: str) -> None:
    @with_app()
    async def check(client: Client) -> None:
        desk = Desk(client)
        await desk.append("events/b")
        await desk.pull(streams=["listed"])
        await desk.append("events/a", "w")
        before = await desk.tail("events/a")
        await desk.append("events/a", "x")
        start = await desk.tail("events/a")
        await desk.append("events/a", "y")
        first = (await desk.claim()).json()
        acks = [{"stream": "events/a", "offset": start}]
        await desk.report("ack", first, acks=acks)
        generation, position = start.split("_")
        token = {
            "before": before,
            "beyond": f"{generation}_{int(position) + 100:016d}",
            "inside": f"{generation}_{int(position) + 1:016d}",
            "other": await desk.tail("events/b"),
        }.get(offset, offset)
        good = {"stream": "events/b", "offset": await desk.tail("events/b")}
        bad = {"stream": "events/a", "offset": token}
        answer = await desk.report("ack", first, acks=[good, bad], done=True)
        assert (answer.status, _code(answer)) == (409, "INVALID_OFFSET")
        assert (await desk.cursors())["events/a"] == start
        assert (await desk.show())["holder"] == "w1"

    check("memory", None)


@with_app()
async def test_acks_of_strangers_are_refused(client: Client) -> None:
    desk = Desk(client)
    await desk.pull()
    await desk.append("events/a")
    await desk.append("other")
    claimed = (await desk.claim()).json()
    acks = [{"stream": "other", "offset": await desk.tail("other")}]
    assert _code(await desk.report("ack", claimed, acks=acks)) == "INVALID_OFFSET"


@with_app()
async def test_tokens_are_needed_and_are_good_for_one_subscription(client: Client) -> None:
    desk, other = Desk(client), Desk(client, "t")
    await desk.pull()
    await other.pull()
    await desk.append("events/a")
    mine, theirs = (await desk.claim()).json(), (await other.claim()).json()
    for token in (None, "", "1.x", theirs["token"]):
        document = {"wake_id": mine["wake_id"], "generation": 1, "done": True}
        answer = await desk.send("POST", "/ack", document, token)
        assert (answer.status, _code(answer)) == (401, "TOKEN_INVALID")
    swapped = {**mine, "wake_id": theirs["wake_id"]}
    assert _code(await desk.finish(swapped)) == "FENCED"
    assert _code(await desk.finish({**mine, "generation": 2})) == "FENCED"
    assert (await desk.finish(mine)).status == 200


@with_app()
async def test_a_deleted_subscription_fails_what_is_in_flight(client: Client) -> None:
    desk = Desk(client)
    await desk.pull()
    await desk.append("events/a")
    claimed = (await desk.claim()).json()
    assert (await desk.send("DELETE", "")).status == 204
    assert (await desk.send("DELETE", "")).status == 204
    assert _code(await desk.finish(claimed)) == "TOKEN_INVALID"
    # One of the same name is another: its cursors start anew and old tokens are no good.
    await desk.pull()
    await desk.append("events/a")
    assert (await desk.claim()).json()["generation"] == 1
    assert (await desk.finish(claimed)).status in (401, 409)


@with_app(development=True)
async def test_a_token_that_is_none_tells_nobody_which_subscriptions_exist(client: Client) -> None:
    desk, hook, gone = (Desk(client, id) for id in ("s", "hook", "gone"))
    await desk.pull()
    await hook.put(type="webhook", pattern="x/*", webhook={"url": "http://127.0.0.1:9/"})
    await gone.pull()
    await desk.append("events/a")
    wake, old = [(await each.claim()).json() for each in (desk, gone)]
    assert (await gone.send("DELETE", "")).status == 204
    report = {"wake_id": wake["wake_id"], "generation": 1}
    never = Desk(client, "never")
    for token in ("nonsense", "", old["token"], f"1.{wake['token'][2:-1]}", "9" * 400):
        answers = {
            repr(await each.send("POST", f"/{action}", report, token))
            for each in (desk, hook, gone, never)
            for action in ("ack", "release", "callback")
        }
        assert len(answers) == 1
        assert "TOKEN_INVALID" in answers.pop()
    # One of another subscription is none either.
    others = [await each.send("POST", "/ack", report, wake["token"]) for each in (hook, never)]
    assert others[0] == others[1]
    # Who has the right one learns what is wrong.
    wrong = await desk.send("POST", "/callback", report, wake["token"])
    assert _code(wrong) == "INVALID_REQUEST"
    assert (await desk.finish(wake)).status == 200


@with_app()
async def test_membership(client: Client) -> None:
    desk = Desk(client)
    await desk.append("x/a")
    await desk.append("events/a")
    await desk.pull()
    both = {"streams": ["x/a", "/events/a"]}
    assert (await desk.send("POST", "/streams", both)).status == 204
    before = await desk.show()
    assert (await desk.send("POST", "/streams", both)).status == 204
    assert await desk.show() == before
    kinds = {each["path"]: each["link_type"] for each in before["streams"]}
    assert kinds == {"events/a": "explicit", "x/a": "explicit"}
    await desk.append("x/a")
    assert (await desk.show())["pending"] == 1
    for path in ("x%2Fa", "events/a", "never/there"):
        assert (await desk.send("DELETE", f"/streams/{path}")).status == 204
    after = await desk.show()
    assert [(each["path"], each["link_type"]) for each in after["streams"]] == [
        ("events/a", "glob")
    ]
    assert after["pending"] == 0
    await desk.append("events/a")
    assert (await desk.show())["pending"] == 1
    # Encoded once more, or with slashes that stand for themselves.
    for path in ("a%20b", "x/a%20b"):
        for spelled in (
            path.replace("%", "%25"),
            path,
            path.replace("%", "%25").replace("/", "%2F"),
        ):
            await desk.send("POST", "/streams", {"streams": [path]})
            assert path in await desk.cursors()
            assert (await desk.send("DELETE", f"/streams/{spelled}")).status == 204
            assert path not in await desk.cursors()
    refused = await desk.send("POST", "/streams", {"streams": ["wake/pool"]})
    assert _code(refused) == "INVALID_REQUEST"
    # Membership is no part of the configuration: saying it again is no conflict.
    answer = await desk.put(
        type="pull-wake", pattern="events/*", wake_stream="wake/pool", lease_ttl_ms=1000
    )
    assert answer.status == 200


@with_app()
async def test_a_stream_that_is_made_again_begins_anew(client: Client) -> None:
    desk = Desk(client)
    await desk.pull(streams=["listed"])
    for path in ("events/a", "listed"):
        await desk.append(path)
    await desk.finish((await desk.claim()).json())
    for path in ("events/a", "listed"):
        await client.delete(path)
    assert await desk.cursors() == {"listed": "-1"}
    for path in ("events/a", "listed"):
        await desk.append(path)
    claimed = (await desk.claim()).json()
    assert {each["path"]: each["acked_offset"] for each in claimed["streams"]} == {
        "events/a": "-1",
        "listed": "-1",
    }
    assert (await desk.finish(claimed)).json() == {"ok": True, "next_wake": False}


@with_app()
async def test_a_stream_that_takes_the_place_of_an_expired_one_begins_anew(client: Client) -> None:
    desk = Desk(client)
    await desk.pull()
    await client.put("events/a", b"1", content_type=JSON, stream_ttl="10")
    assert (await desk.show())["pending"] == 1
    client.clock.advance(11)
    again = await client.put("events/a", b"[]", content_type=JSON, stream_ttl="10")
    assert again.status == 201
    assert (await desk.show())["pending"] == 0
    assert _code(await desk.claim()) == "NO_PENDING_WORK"


@with_app()
async def test_a_wake_whose_work_is_gone_holds_nothing_off(client: Client) -> None:
    desk = Desk(client)
    await desk.pull()
    await desk.append("events/a")
    await _until(desk, 1)
    await client.delete("events/a")
    assert _code(await desk.claim()) == "NO_PENDING_WORK"
    await desk.append("events/b")
    assert [each["stream"] for each in await _until(desk, 2)] == ["events/a", "events/b"]


@with_app()
async def test_a_fork_has_nothing_to_do_before_it_is_written_to(client: Client) -> None:
    desk = Desk(client)
    await desk.append("source", [1, 2, 3])
    await desk.pull()
    fork = await client.put("events/f", stream_forked_from="/v1/stream/source", content_type=JSON)
    assert fork.status == 201
    assert _code(await desk.claim()) == "NO_PENDING_WORK"
    await desk.append("events/f")
    claimed = (await desk.claim()).json()
    assert claimed["streams"][0]["acked_offset"] == fork.offset
    assert (await desk.finish(claimed)).json() == {"ok": True, "next_wake": False}


@with_app()
async def test_its_own_wakes_do_not_wake_it(client: Client) -> None:
    desk = Desk(client)
    await desk.pull(pattern="**")
    await desk.append("a")
    await _until(desk, 1)
    await desk.finish((await desk.claim()).json())
    await _settle()
    assert len(await desk.wakes()) == 1
    assert list(await desk.cursors()) == ["a"]


@with_app()
async def test_a_wake_stream_that_is_made_later_gets_the_wake(client: Client) -> None:
    desk = Desk(client)
    document = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wake/pool"}
    assert (await desk.put(**document)).status == 201
    await desk.append("events/a")
    await _settle()
    await client.put("wake/pool", b"[]", content_type=JSON)
    assert (await _until(desk, 1))[0]["generation"] == 1


@with_app()
async def test_a_wake_names_as_many_streams_as_fit(client: Client) -> None:
    desk = Desk(client)
    await desk.pull()
    desk.service.wakes._snapshot_max = 3
    for number in range(5):
        await desk.append(f"events/{number}")
    claimed = (await desk.claim()).json()
    assert len(claimed["streams"]) == 3
    assert (await desk.finish(claimed)).json()["next_wake"] is True
    rest = (await desk.claim()).json()
    assert sum(each["has_pending"] for each in rest["streams"]) == 2
    assert (await desk.finish(rest)).json()["next_wake"] is False


@with_app(subscriptions_max=1, subscription_streams_max=2, subscription_bytes_max=4096)
async def test_limits(client: Client) -> None:
    desk = Desk(client)
    for number in range(3):
        await desk.append(f"events/{number}")
    document = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "w"}
    assert (await desk.put(**document)).status == 429
    assert (await desk.put(**{**document, "pattern": "x/*"})).status == 201
    assert (await Desk(client, "t").put(**document)).status == 429
    assert (await desk.put(**document, description="x" * 5000)).status == 413
    assert _code(await Desk(client, "x" * 300).put(**document)) == "INVALID_REQUEST"


@with_app()
async def test_what_is_not_there(client: Client) -> None:
    desk = Desk(client)
    assert _code(await desk.send("GET", "")) == "SUBSCRIPTION_NOT_FOUND"
    assert _code(await desk.claim()) == "SUBSCRIPTION_NOT_FOUND"
    assert (await desk.send("POST", "/nonsense", {})).status == 404
    assert (await desk.send("POST", "", {})).status == 405
    assert (await desk.send("PUT", "/ack", {})).status == 405
    await desk.pull()
    assert _code(await desk.send("POST", "/claim", {})) == "INVALID_REQUEST"
    assert _code(await desk.send("POST", "/callback", {}, "x")) == "INVALID_REQUEST"
    conflict = await desk.put(type="pull-wake", pattern="other/*", wake_stream="wake/pool")
    assert _code(conflict) == "SUBSCRIPTION_ALREADY_EXISTS"


@with_app()
async def test_the_listing_has_pages_and_the_book_is_nobodys_to_read(client: Client) -> None:
    for id in ("a", "b", "c d"):
        name = id.replace(" ", "%20")
        await Desk(client, name).put(type="pull-wake", pattern="e/*", wake_stream="w")
    page = (await client.send("GET", f"{ROOT}?limit=2")).json()
    assert [each["id"] for each in page["subscriptions"]] == ["a", "b"]
    assert page["next"] == "b"
    page = (await client.send("GET", f"{ROOT}?limit=2&after=b")).json()
    assert ([each["id"] for each in page["subscriptions"]], page["next"]) == (["c d"], None)
    assert page["subscriptions"][0]["streams"] == 0
    assert (await client.get("__ds/subscriptions")).json().keys() == {"subscriptions", "next"}
    assert (await client.post("__ds/subscriptions", b"1", content_type=JSON)).status == 405
    listed = (await client.send("GET", "/v1/streams")).json()
    assert listed["streams"] == []
    for path in ("%5F%5Fds/subscriptions", "__ds", "__ds/other"):
        assert (await client.get(path)).status == 404


@with_app()
async def test_the_numbers_move_with_what_they_count(client: Client) -> None:
    async def number(name: str) -> float:
        text = (await client.send("GET", "/metrics")).body.decode()
        line = next(line for line in text.splitlines() if line.startswith(name + " "))
        return float(line.split()[-1])

    desk = Desk(client)
    await desk.pull()
    kinds = 'penstock_subscriptions{status="active",type="pull-wake"}'
    assert await number(kinds) == 1
    await desk.append("events/a")
    await _until(desk, 1)
    assert await number("penstock_subscriptions_pending") == 1
    first = (await desk.claim()).json()
    await desk.report("release", first)
    await desk.finish(first)
    second = (await desk.claim()).json()
    await desk.finish(second)
    await desk.append("events/a")
    await desk.claim()
    client.clock.advance(1)
    desk.service.wakes.tick()
    assert await number("penstock_subscription_wakes_total") >= 3
    assert await number("penstock_subscription_claims_total") == 3
    assert await number("penstock_subscription_acks_total") == 1
    assert await number("penstock_subscription_releases_total") == 1
    assert await number("penstock_subscription_fenced_total") == 1
    assert await number("penstock_subscription_leases_expired_total") == 1


@with_app()
async def test_many_are_woken_by_one_append(client: Client) -> None:
    desks = [Desk(client, f"s{number}") for number in range(450)]
    await client.put("wake/pool", b"[]", content_type=JSON)
    for desk in desks:
        await desk.put(type="pull-wake", pattern="events/*", wake_stream="wake/pool")
    await desks[0].append("events/a")
    ids = {each["subscription_id"] for each in await _until(desks[0], len(desks))}
    assert ids == {f"s{number}" for number in range(450)}


@with_app()
async def test_what_the_log_cannot_take_is_written_when_it_can(client: Client) -> None:
    """A full disk: the ack fails, nothing is fenced by it, and the work is given out later."""
    desk = Desk(client)
    await desk.pull()
    await desk.append("events/a")
    claimed = (await desk.claim()).json()
    admit = client.engine.store.admit

    def full(size: int) -> None:
        raise DiskFull("there is no space left")

    client.engine.store.admit = full
    assert (await desk.report("ack", claimed)).status == 507
    client.clock.advance(1)
    desk.service.wakes.tick()  # the lease ends; its wake cannot be written
    await _settle()
    assert len(await desk.wakes()) == 1
    client.engine.store.admit = admit
    assert [each["generation"] for each in await _until(desk, 2)] == [1, 2]
    again = (await desk.claim("w2")).json()
    assert (await desk.finish(again)).json() == {"ok": True, "next_wake": False}
