"""/v1/activity: samples of the last hour, the streams that are busy, and who may see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.access.principal import Principal
from penstock.access.rules import parse_rules
from penstock.http import activity
from penstock.http.activity import quantile
from tests.helpers.app import Client, with_app

JSON = "application/json"
TARGET = "/v1/activity"


async def ask(client: Client, query: str = "", **headers: str) -> Any:
    answer = await client.send("GET", f"{TARGET}?{query}", b"", **headers)
    assert answer.status == 200, answer.body
    return answer.json()


@with_app()
async def test_a_sample_has_the_rates_of_its_interval(client: Client) -> None:
    await client.put("a", content_type=JSON)
    client.app.activity.sample()
    await client.post("a", b"[1,2,3]", content_type=JSON)
    await client.get("a")
    client.clock.advance(10)
    client.app.activity.sample()
    content = await ask(client)
    created, appended = content["samples"]
    assert created["appends_per_s"] == 0
    assert appended["appends_per_s"] > 0
    # One of these was an append of three messages, so the ratio does not depend on the time.
    assert appended["messages_per_s"] / appended["appends_per_s"] == pytest.approx(3, rel=0.01)
    assert appended["reads_per_s"] == appended["appends_per_s"]
    assert appended["bytes_out_per_s"] > 0
    assert appended["bytes_in_per_s"] > 0
    assert appended["live_readers"] == 0
    assert appended["time"] == content["now"]
    assert content["interval_s"] == 10


@with_app()
async def test_commit_quantiles_are_null_where_nothing_was_committed(client: Client) -> None:
    client.app.activity.sample()
    await client.put("a", content_type=JSON)
    client.app.activity.sample()
    idle, busy = (await ask(client))["samples"]
    assert (idle["commit_p50_ms"], idle["commit_p99_ms"]) == (None, None)
    if client.engine.store.stats.journal_bytes:  # memory commits nothing
        assert 0 < busy["commit_p50_ms"] <= busy["commit_p99_ms"]
        assert busy["disk_free_bytes"] > 0


@with_app(activity_samples_max=2)
async def test_only_newer_samples_are_returned_and_old_ones_go(client: Client) -> None:
    for _ in range(3):
        client.clock.advance(10)
        client.app.activity.sample()
    samples = (await ask(client))["samples"]
    assert len(samples) == 2
    assert (await ask(client, f"since={samples[0]['time']}"))["samples"] == samples[1:]
    assert (await ask(client, f"since={samples[1]['time']}"))["samples"] == []


@with_app(activity_interval_s=0.01)
async def test_samples_are_taken_by_time(client: Client) -> None:
    while len((await ask(client))["samples"]) < 2:
        await asyncio.sleep(0.005)


@with_app()
async def test_the_busiest_streams_come_first(client: Client) -> None:
    for path in ("a", "b", "c"):
        await client.put(path, content_type=JSON)
    assert (await ask(client))["streams"] == []  # counted from now on
    for path, bodies in {"a": [b"[1]"], "b": [b"[1]", b"[2]"], "c": [b"[1,2,3,4,5,6]"]}.items():
        for body in bodies:
            await client.post(path, body, content_type=JSON)
    sink = await client.sse("b")
    content = await ask(client)
    assert content["streams"][0]["path"] == "b"
    assert content["streams"][0]["live_readers"] == 1
    by_messages = await ask(client, "sort=messages&limit=1")
    assert [each["path"] for each in by_messages["streams"]] == ["c"]
    assert by_messages["streams"][0]["messages_per_s"] == 6
    assert (await ask(client, "sort=bytes"))["streams"][0]["path"] == "c"
    sink.body.detach()
    await client.delete("b")
    assert {each["path"] for each in (await ask(client))["streams"]} == {"a", "c"}


@with_app()
async def test_streams_are_not_counted_when_nobody_asks(client: Client) -> None:
    commits = client.engine._commits
    before = len(commits._listeners)
    await ask(client)
    assert len(commits._listeners) == before + 1
    rates = client.app.activity._rates
    rates._turn()
    assert len(commits._listeners) == before + 1
    rates._asked_s -= activity.ASKED_S + 1
    rates._turn()
    assert len(commits._listeners) == before
    await ask(client)  # and again
    assert len(commits._listeners) == before + 1


@with_app()
async def test_a_rate_is_that_of_two_windows(client: Client) -> None:
    await client.put("a", content_type=JSON)
    await ask(client)
    rates = client.app.activity._rates
    for _ in range(3):
        await client.post("a", b"[1]", content_type=JSON)
        rates._turn()
    # The first of three windows has gone, the third is the one before the current.
    await client.post("a", b"[1]", content_type=JSON)
    assert (await ask(client))["streams"][0]["appends_per_s"] == 2


@with_app()
async def test_the_number_of_counted_streams_is_bounded(client: Client) -> None:
    client.app.activity._rates.counted_max = 2
    await ask(client)
    for path in ("a", "b", "c"):
        await client.put(path, content_type=JSON)
        await client.post(path, b"[1]", content_type=JSON)
    assert {each["path"] for each in (await ask(client))["streams"]} == {"a", "b"}


@with_app(auth_token="root")
async def test_a_principal_sees_the_streams_that_it_may_list(client: Client) -> None:
    rules = parse_rules(["read:__ds/metrics", "list:team/**"])
    client.app.access.add_bearer({"t": Principal("ops", rules)}.get)
    await ask(client, authorization="Bearer root")
    for path in ("team/a", "other/a"):
        await client.put(path, content_type=JSON, authorization="Bearer root")
        await client.post(path, b"[1]", content_type=JSON, authorization="Bearer root")
    content = await ask(client, authorization="Bearer t")
    assert [each["path"] for each in content["streams"]] == ["team/a"]
    assert (await client.send("GET", TARGET)).status == 401


@with_app()
async def test_wrong_parameters_are_refused(client: Client) -> None:
    for query in ("since=yesterday", "limit=0", "limit=1001", "limit=x", "sort=name", "sorty=a"):
        assert (await client.send("GET", f"{TARGET}?{query}")).status == 400, query


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ([0, 0, 0], 0.5, None),
        ([1, 0, 0], 0.5, 0.5),
        ([0, 4, 0], 0.5, 2.0),
        ([5, 5, 0], 0.5, 1.0),
        ([0, 0, 3], 0.5, 3.0),
        ([98, 0, 2], 0.99, 3.0),
    ],
)
def test_a_quantile_is_interpolated_within_its_bucket(
    counts: list[int], share: float, value: float | None
) -> None:
    assert quantile((1.0, 3.0), counts, share) == value
