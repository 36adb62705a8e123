"""Quotas: streams and bytes by path, counted exactly, also by concurrent writers and after a
restart."""

from __future__ import annotations

import asyncio
import json
import random
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.config.load import load
from penstock.config.setting import InvalidSetting
from penstock.config.settings import Settings
from penstock.errors import InvalidPath, PenstockError, QuotaExceeded
from penstock.http.app import App
from penstock.log import open_engine, quotas
from penstock.log.disk.store import DiskStore
from penstock.log.engine import Engine
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.quotas import Quota, parse_quotas
from tests.helpers.app import Answer, Client, run_with_app, settings_of, with_app
from tests.helpers.log import TINY, abandon

TEXT = "text/plain"
JSON = "application/json"


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("", []),
        ("chat/=1000streams,10GiB", [("chat/", Quota(1000, 10 << 30))]),
        ("a/**=1stream  =5B", [("a/**", Quota(1, None)), ("", Quota(None, 5))]),
        ("a=b=0streams", [("a=b", Quota(0, None))]),
        ("a=1kib,2streams", [("a", Quota(2, 1024))]),
    ],
)
def test_rules_are_read(text: str, rules: list[tuple[str, Quota]]) -> None:
    assert parse_quotas(text) == rules


@pytest.mark.parametrize(
    "text",
    ["a", "a=", "a=5", "a=5streams,5streams", "a=1B a=2B", "a=-1B", "a=1B,", "a=1 streams", "a=1d"],
)
def test_what_is_no_quota_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_quotas(text)
    with pytest.raises(InvalidSetting, match="Setting quotas must be quotas such as"):
        load({"quotas": text}, {})


def test_a_wrong_pattern_is_named() -> None:
    with pytest.raises(InvalidSetting, match="Setting quotas"):
        load({"quotas": "a/***=1B"}, {})
    with pytest.raises(InvalidPath, match="Setting quotas"):
        quotas.quotas_of(Settings(quotas="a/***=1B"))


def test_without_rules_there_is_nothing_to_ask() -> None:
    assert quotas.quotas_of(Settings()) is None


def refused(answer: Answer) -> bool:
    """Whether an answer is that of a quota; anything else but success is an error of the test."""
    if answer.status < 300:
        return False
    problem = answer.json()
    assert (answer.status, problem["code"]) == (429, "quota-exceeded")
    assert "(quotas)" in problem["detail"]
    assert "retry-after" not in answer.headers
    return True


async def ready(client: Client) -> None:
    while not client.engine.quotas.is_ready:
        await asyncio.sleep(0)


@with_app(quotas="chat/=2streams logs/**=1stream")
async def test_a_prefix_has_so_many_streams(client: Client) -> None:
    await ready(client)
    assert not refused(await client.put("chat/a"))
    assert not refused(await client.put("chat/b"))
    answer = await client.put("chat/c")
    assert refused(answer)
    assert "'chat/' has 2 streams, and may have 2" in answer.json()["detail"]
    assert not refused(await client.put("chat/a"))  # It is there already.
    assert not refused(await client.put("other"))
    assert not refused(await client.put("logs/a"))
    assert refused(await client.put("logs/b"))
    assert refused(await client.put("chat/c", stream_forked_from="/v1/stream/chat/a"))
    assert (await client.delete("chat/a")).status == 204
    assert not refused(await client.put("chat/c", stream_forked_from="/v1/stream/chat/b"))
    assert refused(await client.put("chat/d"))


@with_app(quotas="a/=100B =150B")
async def test_a_prefix_has_so_many_bytes_and_every_rule_counts(client: Client) -> None:
    await ready(client)
    await client.put("a/1", b"x" * 60, content_type=TEXT)
    assert refused(await client.post("a/1", b"x" * 41, content_type=TEXT))
    assert not refused(await client.post("a/1", b"x" * 40, content_type=TEXT))
    assert refused(await client.post("a/1", b"x", content_type=TEXT))
    assert refused(await client.put("a/2", b"x", content_type=TEXT))
    assert not refused(await client.put("a/2"))
    assert not refused(await client.put("b", b"x" * 50, content_type=TEXT))
    assert refused(await client.post("b", b"x", content_type=TEXT))
    assert not refused(await client.post("b", b"", stream_closed="true"))


@with_app(quotas="a=100B")
async def test_a_trim_gives_room_and_a_fork_holds_it(client: Client) -> None:
    await ready(client)
    half = (await client.put("a", b"x" * 50, content_type=TEXT)).offset
    await client.post("a", b"x" * 50, content_type=TEXT)
    assert (await trim(client, "a", half)).status < 300
    tail = await client.post("a", b"x" * 50, content_type=TEXT)
    assert not refused(tail)
    assert refused(await client.post("a", b"x", content_type=TEXT))
    fork = await client.put("fork", stream_forked_from="/v1/stream/a")
    assert not refused(fork)
    # The fork still reads what the trim removes, so that it takes room as before.
    assert (await trim(client, "a", tail.offset)).status < 300
    assert refused(await client.post("a", b"x", content_type=TEXT))
    assert (await client.delete("fork")).status == 204
    assert not refused(await client.post("a", b"x" * 100, content_type=TEXT))


@with_app(quotas="a/=1stream,100B")
async def test_a_deleted_stream_counts_as_long_as_its_forks_read_it(client: Client) -> None:
    await ready(client)
    await client.put("a/1", b"x" * 100, content_type=TEXT)
    await client.put("fork", stream_forked_from="/v1/stream/a/1")
    assert (await client.delete("a/1")).status == 204
    assert refused(await client.put("a/2"))
    assert (await client.delete("fork")).status == 204
    assert not refused(await client.put("a/2", b"x" * 100, content_type=TEXT))


@with_app(quotas="a/=1stream,10B")
async def test_an_expired_stream_makes_room_for_the_next_at_its_path(client: Client) -> None:
    await ready(client)
    await client.put("a/1", b"x" * 10, content_type=TEXT, stream_ttl="10")
    client.clock.advance(11)
    assert not refused(await client.put("a/1", content_type=TEXT))
    assert not refused(await client.post("a/1", b"x" * 10, content_type=TEXT))
    assert refused(await client.put("a/2"))


@with_app(quotas="a/=1stream")
async def test_expiry_makes_room(client: Client) -> None:
    await ready(client)
    await client.put("a/1", stream_ttl="10")
    client.clock.advance(11)
    await client.engine.reap()
    await settle(client.engine)
    assert not refused(await client.put("a/2"))


@with_app(quotas="s=400B")
async def test_a_compaction_counts_what_it_leaves(client: Client) -> None:
    await ready(client)
    schema = json.dumps({"types": {}}).encode()
    await client.put("s", content_type=JSON)
    assert (await client.send("PUT", "/v1/schema/s", schema, content_type=JSON)).status < 300
    event = {"type": "t", "key": "k", "value": "v" * 50, "headers": {"operation": "upsert"}}
    while not refused(await client.post("s", json.dumps(event).encode(), content_type=JSON)):
        pass
    answer = await client.send("POST", "/v1/stream/s/__ds/compact")
    assert answer.status < 300, answer
    assert not refused(await client.post("s", json.dumps(event).encode(), content_type=JSON))
    assert usage(client.engine) == await recount(client.engine)


@with_app(quotas="a=1000B")
async def test_concurrent_writers_cannot_overshoot(client: Client) -> None:
    await ready(client)
    await client.put("a", content_type=TEXT)
    answers = await asyncio.gather(
        *(client.post("a", b"x" * 30, content_type=TEXT) for _ in range(100))
    )
    assert [refused(answer) for answer in answers].count(False) == 33
    assert usage(client.engine) == [(1, 990, 0, 0)]


@with_app(quotas="=3streams,40B", registry=True, audit="on")
async def test_the_records_of_the_server_count_for_nobody(client: Client) -> None:
    await ready(client)
    for name in ("1", "2", "3"):
        assert not refused(await client.put(name))
    assert refused(await client.put("4"))
    assert (await client.delete("1")).status == 204
    await settle(client.engine)
    assert usage(client.engine) == [(2, 0, 0, 0)]


@with_app(quotas="a/=5streams,600B b=10streams,300B =8streams,700B")
async def test_random_changes_are_counted_exactly(client: Client) -> None:
    await ready(client)
    engine: Engine = client.engine
    paths = ["a/1", "a/2", "a/3", "b", "b/1", "c"]
    for seed in range(8):
        chance = random.Random(seed)
        for _ in range(60):
            path, other = chance.choice(paths), chance.choice(paths)
            size = chance.randrange(1, 60)
            calls = {
                "put": partial(client.put, path, b"x" * (size // 2), content_type=TEXT),
                "post": partial(client.post, path, b"x" * size, content_type=TEXT),
                "delete": partial(client.delete, path),
                "fork": partial(client.put, path, stream_forked_from=f"/v1/stream/{other}"),
                "trim": partial(trim, client, path, "now"),
            }
            chosen = [calls[chance.choice([*calls, "post", "put"])] for _ in range(3)]
            await asyncio.gather(*(call() for call in chosen))
        await settle(engine)
        assert usage(engine) == await recount(engine)
    assert any(streams or size for streams, size, _, _ in usage(engine))


def test_a_failed_write_gives_back_what_it_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        settings = settings_of("disk", tmp_path, quotas="a/=2streams,100B")
        engine = open_engine(settings)
        await engine.start()
        assert isinstance(engine.store, DiskStore)
        app = App(engine, settings)
        client = Client(app, engine, ManualClock())
        await ready(client)
        await client.put("a/1", b"x" * 50, content_type=TEXT)
        journal = engine.store._journal

        def fail(*_: Any) -> Any:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(journal, "write", fail)
        monkeypatch.setattr(journal, "stage", lambda *_: False)  # all takes `write`
        answers = await asyncio.gather(
            client.post("a/1", b"x" * 50, content_type=TEXT), client.put("a/2")
        )
        assert all(answer.status >= 500 for answer in answers)
        monkeypatch.undo()
        assert usage(engine) == [(1, 50, 0, 0)] == await recount(engine)
        app.close()
        await engine.stop()

    asyncio.run(run())


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_counts_are_exact_after_a_restart(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "PAGE", 3)
    options = {**TINY, "quotas": "a/=30streams,2KiB =40streams", "active_streams_max": 4}
    settings = settings_of("disk", tmp_path, **options)

    async def fill(client: Client) -> None:
        await ready(client)
        for n in range(20):
            await client.put(f"a/{n}", b"x" * (n * 3), content_type=TEXT)
        await client.put("fork", b"y" * 9, stream_forked_from="/v1/stream/a/19", content_type=TEXT)
        await client.delete("a/19")
        assert await client.engine.store.checkpoint()
        # These are in the journal alone.
        await client.delete("a/3")
        await trim(client, "a/18", "now")
        await client.post("a/4", b"z" * 100, content_type=TEXT)
        await client.put("a/new", b"n" * 7, content_type=TEXT)
        assert usage(client.engine) == await recount(client.engine)
        seen.append(usage(client.engine))

    async def first() -> None:
        engine = open_engine(settings)
        await engine.start()
        app = App(engine, settings)
        await fill(Client(app, engine, ManualClock()))
        app.close()
        if ending == "stop":
            await engine.stop()
        else:
            assert isinstance(engine.store, DiskStore)
            engine._reap_task.cancel()
            engine._retention_task.cancel()
            await abandon(engine.store)

    async def again(client: Client) -> None:
        # Changes go on while the streams are counted, before and behind where that is.
        client.engine._count_task.cancel()
        changes = 0
        while not client.engine.quotas.is_ready:
            await client.engine.quotas._count_page(client.engine.store)
            changes += 1
            await client.post("a/1", b"x", content_type=TEXT)
            await client.post("a/new", b"x", content_type=TEXT)
            await client.put(f"while/{changes}")
        assert changes > 1
        await settle(client.engine)
        assert usage(client.engine) == await recount(client.engine)
        (streams, size, *_), (everything, *_) = usage(client.engine)
        assert (streams, size) == (seen[0][0][0], seen[0][0][1] + 2 * changes)
        assert everything == seen[0][1][0] + changes

    seen: list[list[tuple[int, int, int, int]]] = []
    asyncio.run(first())
    monkeypatch.setattr(quotas, "REST", 100_000)  # The test counts all pages but the first.
    run_with_app(again, settings)


def test_quotas_take_effect_when_all_streams_are_counted(tmp_path: Path) -> None:
    async def run() -> None:
        settings = settings_of("disk", tmp_path, quotas="=0streams")
        engine = open_engine(settings)
        await engine.start()
        # The count has not had a turn yet.
        assert engine.quotas is not None
        assert not engine.quotas.is_ready
        config = StreamConfig(TEXT, None, None)
        early = engine.create("early", config)
        assert (await early).created
        assert engine._count_task is not None
        await engine._count_task
        with pytest.raises(QuotaExceeded):
            await engine.create("late", config)
        assert usage(engine) == [(1, 0, 0, 0)]
        await engine.stop()

    asyncio.run(run())


def test_streams_that_cannot_be_counted_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(client: Client) -> None:
        counted = quotas.Quotas([("", Quota(1, None))], exempts_registry=False)

        class Broken:
            def sizes(self, after_id: int, limit: int) -> Any:
                raise PenstockError("The catalog is damaged.")

        await counted.count(Broken())  # type: ignore[arg-type]
        assert not counted.is_ready

    run_with_app(test, settings_of("memory", tmp_path))
    assert "Cannot count the streams for the quotas" in caplog.text


@with_app(message_bytes_max=20)
async def test_a_message_of_a_json_stream_has_so_many_bytes(client: Client) -> None:
    await client.put("j", content_type=JSON)
    fits, too_long = json.dumps("x" * 18).encode(), json.dumps("x" * 19).encode()
    for body in (fits, b"[%b,%b]" % (fits, fits)):
        assert (await client.post("j", body, content_type=JSON)).status == 204
    large = b"[%b]" % b",".join([fits] * 9999 + [too_long])  # framed on a thread
    for body in (too_long, b"[1,%b]" % too_long, large):
        answer = await client.post("j", body, content_type=JSON)
        assert (answer.status, answer.json()["code"]) == (413, "message-too-large")
    assert (await client.put("other", too_long, content_type=JSON)).status == 413
    assert (await client.put("text", too_long, content_type=TEXT)).status == 201


# -- helpers


async def trim(client: Client, path: str, before: str) -> Answer:
    body = json.dumps({"before": before}).encode()
    return await client.send("POST", f"/v1/stream/{path}/__ds/trim", body, content_type=JSON)


async def settle(engine: Engine) -> None:
    """Wait until nothing is in flight."""
    while any(stream.in_flight for stream in engine.active_streams()):
        await asyncio.sleep(0.001)


def usage(engine: Engine) -> list[tuple[int, int, int, int]]:
    assert engine.quotas is not None
    return [
        (each.streams, each.bytes, each.reserved_streams, each.reserved_bytes)
        for each in engine.quotas.usages
    ]


async def recount(engine: Engine) -> list[tuple[int, int, int, int]]:
    """What another count of everything that is stored says."""
    assert engine.quotas is not None
    rules = [(each.rule, each.quota) for each in engine.quotas.usages]
    fresh = quotas.Quotas(rules, exempts_registry=engine.quotas._exempts_registry)
    while not fresh.is_ready:
        await fresh._count_page(engine.store)
    assert fresh._counted_id == inf
    return [(each.streams, each.bytes, 0, 0) for each in fresh.usages]
