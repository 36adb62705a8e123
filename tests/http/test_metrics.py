"""/metrics: every number is there and moves with what it counts."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from penstock import __version__
from penstock.http import metrics
from penstock.http.message import Request, Response
from penstock.http.native.connections import BUSY_REQUESTS_PER_S, UNMEASURED_BUSY
from penstock.http.route_stats import Routes
from penstock.log import open_engine
from penstock.log.disk.store import DiskStore
from penstock.log.requests import Append
from penstock.log.stats import Totals
from penstock.protocol.lifecycle import StreamConfig
from tests.helpers.app import Client, make_request, settings_of, with_app
from tests.http.wire import get, native, on_loop

TEXT = "text/plain"


async def scrape(client: Client) -> dict[str, float]:
    answer = await client.send("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return values


@with_app()
async def test_their_text_is_written_beside_the_event_loop(client: Client) -> None:
    """Every route, method and status has its own lines: hundreds of kilobytes on a busy server."""
    threads: list[threading.Thread] = []

    def generate(collected: Collector) -> bytes:
        threads.append(threading.current_thread())
        return generate_latest(collected)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "generate_latest", generate)
        assert "penstock_appends_total" in await scrape(client)
    assert threading.main_thread() not in threads
    assert len(threads) == 1


@with_app()
async def test_appends_and_bytes_are_counted(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    before = await scrape(client)
    await client.post("a", b"hello", content_type=TEXT)
    await client.get("a")
    after = await scrape(client)
    assert after["penstock_appends_total"] - before["penstock_appends_total"] == 1
    assert after["penstock_bytes_in_total"] - before["penstock_bytes_in_total"] == 5
    assert after["penstock_bytes_out_total"] - before["penstock_bytes_out_total"] == 5
    assert after["penstock_open_streams"] == 1
    assert after["penstock_commit_batch_size_count"] > before["penstock_commit_batch_size_count"]
    assert (
        after["penstock_commit_seconds_bucket{le=+Inf}"] == after["penstock_commit_seconds_count"]
    )
    assert "penstock_fsync_seconds_count" in after
    assert "penstock_journal_bytes" in after


@with_app()
async def test_bytes_in_memory_tails_come_and_go_with_their_streams(client: Client) -> None:
    before = (await scrape(client))["penstock_tail_bytes"]
    await client.put("a", b"hello", content_type=TEXT)
    await client.post("a", b" world", content_type=TEXT)
    await client.put("b", b"abc", content_type=TEXT)
    assert (await scrape(client))["penstock_tail_bytes"] - before == 14
    await client.delete("a")
    assert (await scrape(client))["penstock_tail_bytes"] - before == 3


@with_app()
async def test_requests_and_errors_are_counted_once(client: Client) -> None:
    await client.put("a", content_type=TEXT)  # answered later
    await client.head("a")  # at once
    await client.get("a", "count=1")  # by a coroutine that fails
    await client.post("a", b"x")  # fails at once
    await client.post("a", b"x", content_type="text/html")  # fails in the engine
    await client.send("BREW", "/v1/stream/a")  # refused by the head alone
    await client.send("OPTIONS", "/anything")
    values = await scrape(client)
    counts = {
        name.removeprefix("penstock_requests_total"): value
        for name, value in values.items()
        if name.startswith("penstock_requests_total")
    }
    assert counts == {
        "{method=PUT,status=2xx}": 1,
        "{method=HEAD,status=2xx}": 1,
        "{method=GET,status=4xx}": 1,
        "{method=POST,status=4xx}": 2,
        "{method=other,status=4xx}": 1,
        "{method=OPTIONS,status=2xx}": 1,
    }
    errors = {name: value for name, value in values.items() if name.startswith("penstock_errors_")}
    assert errors == {
        "penstock_errors_total{code=invalid-parameter}": 1,
        "penstock_errors_total{code=missing-content-type}": 1,
        "penstock_errors_total{code=content-type-mismatch}": 1,
        "penstock_errors_total{code=method-not-allowed}": 1,
    }


@with_app()
async def test_live_readers_are_counted_while_they_last(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    sinks = [await client.sse("a") for _ in range(3)]
    await client.post("a", b"x", content_type=TEXT)
    values = await scrape(client)
    assert values["penstock_live_readers{mode=sse}"] == 3
    assert values["penstock_live_readers{mode=long-poll}"] == 0
    assert values["penstock_sse_events_total"] == 3
    sinks[0].body.detach()
    assert (await scrape(client))["penstock_live_readers{mode=sse}"] == 2


@with_app()
async def test_a_bug_is_answered_with_500_and_nothing_more(client: Client) -> None:
    def broken(path: str, *, touch: bool) -> None:
        raise ZeroDivisionError("secret detail")

    client.engine.find = broken
    answer = await client.get("a")
    assert (answer.status, answer.json()["code"]) == (500, "internal")
    assert b"secret" not in answer.body
    assert (await scrape(client))["penstock_errors_total{code=internal}"] == 1


NAMES = [
    "backups_total",
    "backup_failures_total",
    "backup_last_success_timestamp_seconds",
    "scrub_bytes_total",
    "scrub_errors_total",
    "scrub_last_finished_timestamp_seconds",
    "audit_events_total",
    "audit_events_lost_total",
    "requests_total",
    "errors_total",
    "live_readers",
    "sse_events_total",
    "sse_dropped_total",
    "bytes_out_total",
    "build_info",
    "ready",
    "connections",
    "reads_total",
    "request_seconds",
    "request_bytes",
    "response_bytes",
    "loop_lag_seconds",
    "loop_lag_max_seconds",
    "loop_stalls_total",
    "appends_total",
    "append_messages_total",
    "bytes_in_total",
    "duplicates_total",
    "creates_total",
    "forks_total",
    "trims_total",
    "compactions_total",
    "compacted_bytes_total",
    "deletes_total",
    "expired_total",
    "open_streams",
    "streams",
    "stored_bytes",
    "disk_free_bytes",
    "commit_batch_size",
    "commit_seconds",
    "fsync_seconds",
    "commit_failures_total",
    "journal_bytes",
    "journal_written_bytes_total",
    "journal_cut_bytes_total",
    "journal_files_set_aside_total",
    "catalog_repairs_total",
    "checkpoints_total",
    "checkpoint_failures_total",
    "checkpoint_seconds",
    "tail_bytes",
    "state_lag_streams",
    "state_lag_bytes",
    "state_indexed_bytes_total",
    "state_skipped_total",
    "state_refused_total",
    "state_warnings_total",
    "state_expired_total",
    "state_checks_ended_total",
    "stp_notices_total",
    "stp_notices_ignored_total",
    "stp_notifies_total",
    "stp_notify_failures_total",
    "stp_notify_given_up_total",
    "stp_notifies_pending",
    "stp_listeners",
    "stp_follows",
    "stp_follow_rows_total",
    "stp_follow_unchanged_total",
    "stp_follow_conflicts_total",
    "stp_follow_requests_total",
    "egress_requests_total",
    "egress_failures_total",
    "egress_refused_total",
    "subscriptions",
    "subscriptions_pending",
    "webhooks_in_flight",
    "subscription_wakes_total",
    "subscription_claims_total",
    "subscription_acks_total",
    "subscription_releases_total",
    "subscription_fenced_total",
    "subscription_leases_expired_total",
    "webhook_deliveries_total",
    "webhook_failures_total",
    "table_readers",
    "table_readers_dropped_total",
    "table_bytes_out_total",
    "table_rows_written_total",
    "table_refused_total",
    "table_resets_total",
    "table_keys",
    "table_keys_unknown_total",
    "table_cache_bytes",
    "table_blocks_total",
    "proxy_calls",
    "proxy_recordings_total",
]


@with_app()
async def test_the_names_that_dashboards_use_do_not_change(client: Client) -> None:
    text = (await client.send("GET", "/metrics")).body.decode()
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE penstock_")]
    assert sorted(names) == sorted(f"penstock_{name}" for name in NAMES)
    assert "# TYPE process_cpu_seconds_total counter" in text


@with_app()
async def test_streams_and_their_bytes_are_counted_as_they_come_and_go(client: Client) -> None:
    await client.engine._totals_task

    async def totals() -> tuple[float, float]:
        values = await scrape(client)
        return values["penstock_streams"], values["penstock_stored_bytes"]

    assert await totals() == (0, 0)
    first = await client.put("a", b"hello", content_type=TEXT)
    await client.post("a", b" world", content_type=TEXT)
    assert await totals() == (1, 11)
    await client.put("b", content_type=TEXT, stream_forked_from="/v1/stream/a")
    await client.post("b", b"!!", content_type=TEXT)
    assert await totals() == (2, 13)  # a fork holds only its own bytes
    before = json.dumps({"before": first.offset}).encode()
    await client.send("POST", "/v1/stream/a/__ds/trim", before, content_type="application/json")
    assert await totals() == (2, 13)  # the fork may still read what was trimmed
    await client.delete("a")
    assert await totals() == (1, 13)
    await client.delete("b")
    assert await totals() == (0, 0)


def test_streams_are_counted_after_a_restart_and_an_unclean_stop(tmp_path: Path) -> None:
    async def run(number: int, *, is_clean: bool) -> tuple[Totals | None, Totals | None]:
        engine = open_engine(settings_of("disk", tmp_path))
        await engine.start()
        await engine._totals_task
        opened = engine.stats.totals
        await engine.create(f"s{number}", StreamConfig(TEXT), b"12345")
        await engine.append(f"s{number}", Append(b"678", TEXT, False, None, None, None))
        if number == 2:
            await engine.delete("s0")
        ended = engine.stats.totals
        if not is_clean:
            assert isinstance(engine.store, DiskStore)
            engine.store._schedule.abandon()
        await engine.stop()
        return opened, ended

    ends = [asyncio.run(run(number, is_clean=number % 2 == 1)) for number in range(4)]
    assert [ended for _, ended in ends] == [(1, 8), (2, 16), (2, 16), (3, 24)]
    assert [opened for opened, _ in ends] == [(0, 0), (1, 8), (2, 16), (2, 16)]


@with_app()
async def test_durations_and_sizes_are_counted_by_route(client: Client) -> None:
    routes = client.app.traffic.routes
    for method, target, body in (
        ("PUT", "/v1/stream/a", b""),
        ("POST", "/v1/stream/a", b"x" * 64),
        ("POST", "/v1/stream/a", b"x" * 65),
        ("POST", "/v1/stream/b", b"x"),
        ("GET", "/v1/stream/a", b""),
        ("HEAD", "/v1/stream/a", b""),
        ("GET", "/v1/stream/a?live=long-poll&offset=-1", b""),
        ("BREW", "/nowhere", b""),
    ):
        request = make_request(method, target, body, content_type=TEXT)
        response = client.app.refuse(request)
        if response is None:
            answer = client.app.handle(request)
            response = answer if isinstance(answer, Response) else await answer
        routes.answered(request, response, 0.002, len(body))
    values = await scrape(client)

    def of(name: str, method: str, route: str, status: str, more: str = "") -> float:
        labels = f"{more}method={method},route={route},status={status}"
        return values[f"penstock_{name}{{{labels}}}"]

    stream = "/v1/stream/{path}"
    assert of("request_seconds_count", "POST", stream, "2xx") == 2
    assert of("request_seconds_sum", "POST", stream, "2xx") == 0.004
    assert of("request_seconds_bucket", "POST", stream, "2xx", "le=0.001,") == 0
    assert of("request_seconds_bucket", "POST", stream, "2xx", "le=0.0025,") == 2
    assert of("request_bytes_bucket", "POST", stream, "2xx", "le=64,") == 1
    assert of("request_bytes_bucket", "POST", stream, "2xx", "le=256,") == 2
    assert of("request_bytes_sum", "POST", stream, "2xx") == 129
    assert of("request_bytes_count", "POST", stream, "4xx") == 1
    assert of("response_bytes_sum", "GET", stream, "2xx") == 129
    assert of("response_bytes_sum", "HEAD", stream, "2xx") == 0
    assert of("response_bytes_bucket", "HEAD", stream, "2xx", "le=64,") == 1
    assert of("request_seconds_count", "GET", "live", "2xx") == 1
    assert of("request_seconds_count", "other", "none", "4xx") == 1
    assert not any("route=/v1/stream/a" in name for name in values)


@with_app()
async def test_what_runs_here_is_shown(client: Client) -> None:
    labels = next(name for name in await scrape(client) if name.startswith("penstock_build_info"))
    assert f"version={__version__}" in labels


@on_loop
async def test_of_many_requests_one_is_measured_for_several() -> None:
    async with native() as server:
        table, client = server.table, await server.connect()
        table.measure_some()
        assert table.unmeasured == 0
        table.turn += int(BUSY_REQUESTS_PER_S * table._tick_s) + 1
        table.measure_some()
        assert table.unmeasured == UNMEASURED_BUSY
        counted: list[int] = []
        table.answered = lambda *values: counted.append(values[4])
        for _ in range(2 * (UNMEASURED_BUSY + 1)):
            table.unmeasured = UNMEASURED_BUSY  # whatever the timer says meanwhile
            assert (await client.ask(get("/a"))).status == 200
        assert counted == [UNMEASURED_BUSY + 1] * 2


def test_a_measured_request_counts_for_as_many_as_it_stands_for() -> None:
    routes = Routes(("POST",))
    routes.answered(Request("POST", b"/a"), Response(200, body=b"12345678"), 0.5, 100, 8)
    (cell,) = [cell for stats in routes.all for cell in stats.cells if cell is not None]
    assert (sum(cell.seconds), cell.seconds_total) == (8, 4.0)
    assert (sum(cell.received), cell.received_bytes) == (8, 800)
    assert (sum(cell.sent), cell.sent_bytes) == (8, 64)
    assert cell.by_size(cell.sent)[0] == 8
