"""Every route says where it is answered, and the pure rules of several processes."""

from __future__ import annotations

import asyncio
from operator import itemgetter

import msgspec
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock.config.settings import Settings
from penstock.http.app import open_app
from penstock.http.documents import document
from penstock.http.forwarding import merging
from penstock.http.forwarding.gather import merged_page
from penstock.http.forwarding.hop import Hops
from penstock.http.forwarding.places import PAGES, PLACES, Page, Place
from penstock.http.message import Request
from penstock.http.sender import Certificate, Sender
from penstock.protocol.shards import Shard, shard_of


async def _routes() -> set[str]:
    app = await open_app(Settings(memory=True))
    try:
        return {stats.route for stats in app.traffic.routes.all if stats.route.startswith("/")}
    finally:
        await app.stop()


def test_every_route_has_a_place_and_no_place_is_left_over() -> None:
    assert asyncio.run(_routes()) == set(PLACES)
    assert {route for route, place in PLACES.items() if place is Place.PAGES} <= set(PAGES)


@pytest.mark.parametrize(
    ("path", "of_2", "of_3", "of_8"),
    [("orders", 1, 1, 5), ("orders/eu", 0, 0, 2), ("a", 1, 2, 7), ("ü/β", 1, 0, 7)],
)
def test_the_home_of_a_path_never_changes(path: str, of_2: int, of_3: int, of_8: int) -> None:
    assert [shard_of(path, count) for count in (1, 2, 3, 8)] == [0, of_2, of_3, of_8]


def test_ids_of_different_shards_never_meet() -> None:
    ids = {shard: [Shard(shard, 3).next_id(start) for start in range(50)] for shard in range(3)}
    assert all(each % 3 == shard for shard, some in ids.items() for each in some)
    assert all(0 <= each - start < 3 for some in ids.values() for start, each in enumerate(some))
    assert [Shard(0, 1).next_id(start) for start in range(5)] == [0, 1, 2, 3, 4]


def test_a_hop_says_who_the_client_is_to_those_who_know_the_secret_only() -> None:
    certificate = Certificate("cn", ("a.example",), (), (), "00")
    sender = Sender("192.0.2.7", "https", certificate)
    hop = Hops("secret").parse(Hops("secret").value(sender, is_local=True))
    assert hop is not None
    assert (hop.sender, hop.is_local) == (sender, True)
    assert Hops("other").parse(Hops("secret").value(sender)) is None
    assert Hops("secret").parse(b"secret not-base64!") is None


@pytest.mark.parametrize(
    ("parts", "limit", "paths", "following"),
    [
        ([(["a", "c"], None), (["b"], None)], 10, ["a", "b", "c"], None),
        ([(["a", "c"], "c"), (["b", "d"], "d")], 2, ["a", "b"], "b"),
        # The first part may have more before "d".
        ([(["a", "b"], "b"), (["d"], None)], 10, ["a", "b"], "b"),
        ([([], "m"), (["a", "z"], None)], 10, ["a"], "m"),
        ([([], None), ([], None)], 10, [], None),
    ],
)
def test_pages_of_parts_become_one_without_a_gap(
    parts: list[tuple[list[str], str | None]], limit: int, paths: list[str], following: str | None
) -> None:
    page = Page("streams", itemgetter("path"), 100)
    responses = [
        document({"streams": [{"path": each} for each in items], "next": end})
        for items, end in parts
    ]
    request = Request("GET", b"/v1/streams", b"limit=%d" % limit)
    body = merged_page(page, request, responses).body
    assert isinstance(body, bytes)
    merged = msgspec.json.decode(body)
    assert [each["path"] for each in merged["streams"]] == paths
    assert merged["next"] == following


def test_metrics_are_summed_unless_they_are_no_amounts() -> None:
    text = (
        "# HELP penstock_appends_total Appends.\n# TYPE penstock_appends_total counter\n"
        'penstock_appends_total{{kind="a\\"b"}} {appends}\n'
        "# HELP penstock_ready Ready.\n# TYPE penstock_ready gauge\npenstock_ready {ready}\n"
        "# HELP penstock_s S.\n# TYPE penstock_s histogram\n"
        'penstock_s_bucket{{le="+Inf"}} 2.0\npenstock_s_count 2.0\npenstock_s_sum 0.5\n'
    )
    merged = merging.metrics([text.format(appends=1, ready=1), text.format(appends=2, ready=0)])
    lines = merged.decode().splitlines()
    assert 'penstock_appends_total{kind="a\\"b"} 3.0' in lines
    assert "penstock_ready 0.0" in lines
    assert 'penstock_s_bucket{le="+Inf"} 4.0' in lines
    assert "penstock_s_sum 1.0" in lines


def test_what_all_parts_of_one_process_report_alike_is_not_summed() -> None:
    text = (
        "# TYPE process_open_fds gauge\nprocess_open_fds {open}\n"
        "# TYPE penstock_loop_stalls_total counter\npenstock_loop_stalls_total {stalls}\n"
        "# TYPE penstock_appends_total counter\npenstock_appends_total 2.0\n"
        "# TYPE penstock_streams gauge\npenstock_streams 1.0\n"
    )
    texts = [text.format(open=7, stalls=3), text.format(open=8, stalls=3)]
    parts = [list(text_string_to_metric_families(text)) for text in texts]
    counted = {"penstock_loop_stalls_total": 3.0, "penstock_appends_total": 4.0}
    amounts = {"process_open_fds": 8.0, "penstock_streams": 2.0}
    assert _values(merging.families(parts, of_one_process=True)) == counted | amounts
    assert _values(merging.counters(parts)) == counted


def _values(metrics: list[Metric]) -> dict[str, float]:
    return {sample.name: sample.value for metric in metrics for sample in metric.samples}


def test_what_one_process_did_about_a_notify_the_others_did_not_ignore() -> None:
    outcome = merging.outcome(
        [
            {"ignored": {"surl": "there is no such table here", "x": "no event"}},
            {"ignored": {"x": "no event"}, "told_of": {"changed": "t"}},
            {"ignored": {"x": "no event"}, "waiting": {"changed": ["t"]}},
        ]
    )
    assert outcome == {"ignored": {"x": "no event"}, "told_of": {"changed": "t"}}
