"""/metrics: every number is there and moves with what it counts."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.helpers.app import Client, with_app

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
    errors = {name: value for name, value in values.items() if "errors_total" in name}
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
    "audit_events_total",
    "audit_events_lost_total",
    "requests_total",
    "errors_total",
    "live_readers",
    "sse_events_total",
    "sse_dropped_total",
    "bytes_out_total",
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
]


@with_app()
async def test_the_names_that_dashboards_use_do_not_change(client: Client) -> None:
    text = (await client.send("GET", "/metrics")).body.decode()
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE penstock_")]
    assert sorted(names) == sorted(f"penstock_{name}" for name in NAMES)
    assert "# TYPE process_cpu_seconds_total counter" in text
