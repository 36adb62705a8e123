"""Any node takes any request: a node that owns nothing forwards it to the one that does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.config.settings import Settings
from penstock.errors import ClusterRefused
from penstock.http.native.cluster import ClusterNode
from penstock.http.watchdog import TICK_S
from tests.cluster.workload import QUICK, SHARDS, Cluster, until
from tests.helpers.collector import collecting
from tests.helpers.postgres import ON_POSTGRES, shared
from tests.helpers.server import Server, running_server

pytestmark = list(ON_POSTGRES)

JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}


class Pair(NamedTuple):
    """Two nodes. With one shard `standby` owns nothing; with several both own some."""

    cluster: Cluster
    owner: Server
    standby: Server
    dsn: str

    @property
    def client(self) -> httpx.Client:
        return self.cluster.client

    def there(self, path: str) -> str:
        """Return the URL of a stream at its owner."""
        return f"{self.cluster.owner(path).url}/v1/stream/{path}"

    def at(self, path: str) -> str:
        """Return the URL of a stream at the node that does not own it."""
        owner = self.cluster.owner(path)
        node = self.standby if owner is self.owner else self.owner
        return f"{node.url}/v1/stream/{path}"


@pytest.fixture(scope="module", params=[1, 6], ids=["one shard", "several shards"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        dsn = shared().fresh_database()
        args = ("--cluster-durability", "single", "--token", "sesame")
        cluster = Cluster(stack, dsn, *args, shards=request.param)
        cluster.client.headers["authorization"] = "Bearer sesame"
        first, second = cluster.start(2)
        cluster.spread()
        owner = cluster.owner()
        yield Pair(cluster, owner, second if owner is first else first, dsn)


def query(dsn: str, text: str) -> list[str]:
    return shared().query(text, dsn.rpartition("/")[2])


def test_a_stream_lives_its_life_at_a_node_that_does_not_own_it(pair: Pair) -> None:
    client, url = pair.client, pair.at("life")
    assert client.put(url, headers=TEXT).status_code == 201
    assert client.post(url, content=b"one", headers=TEXT).status_code == 204
    assert client.post(pair.there("life"), content=b"two", headers=TEXT).status_code == 204
    answer = client.get(url)
    assert answer.content == b"onetwo"
    assert answer.headers["stream-up-to-date"] == "true"
    head = client.head(url)
    assert head.headers["stream-next-offset"] == answer.headers["stream-next-offset"]
    assert client.get(url, headers={"if-none-match": answer.headers["etag"]}).status_code == 304
    assert client.delete(url).status_code == 204
    assert client.get(pair.there("life")).status_code == 404
    assert client.get(url).status_code == 404


def test_answers_are_those_of_the_owner_but_for_the_date(pair: Pair) -> None:
    client = pair.client
    client.put(pair.at("same"), headers=TEXT, content=b"x" * 1_000_000)
    for target in ("/v1/stream/same", "/v1/streams", "/v1/stream/none", "/nowhere", "/", "/docs"):
        here = client.get(pair.standby.url + target)
        there = client.get(pair.owner.url + target)
        assert here.status_code == there.status_code, target
        assert here.content == there.content, target
        assert {**here.headers, "date": ""} == {**there.headers, "date": ""}, target


def test_the_owner_decides_who_is_let_in(pair: Pair) -> None:
    with httpx.Client() as stranger:
        for node in (pair.standby, pair.owner):
            for target in ("/v1/streams", "/metrics", "/v1/stream/mine"):
                assert stranger.get(node.url + target).status_code == 401
            assert stranger.get(f"{node.url}/healthz").status_code == 200
            assert pair.client.post(f"{node.url}/healthz").status_code == 405
        assert stranger.put(pair.at("mine"), headers=TEXT).status_code == 401


def test_a_long_poll_at_a_standby_returns_with_what_the_owner_commits(pair: Pair) -> None:
    client = pair.client
    client.put(pair.at("poll"), headers=TEXT)
    offset = client.head(pair.at("poll")).headers["stream-next-offset"]
    answers: list[httpx.Response] = []
    target = f"{pair.at('poll')}?offset={offset}&live=long-poll"
    thread = threading.Thread(target=lambda: answers.append(client.get(target)))
    thread.start()
    client.post(pair.there("poll"), content=b"news", headers=TEXT)
    thread.join()
    assert answers[0].content == b"news"


def test_events_at_a_standby_are_those_that_the_owner_sends(pair: Pair) -> None:
    client = pair.client
    client.put(pair.at("events"), headers=JSON)
    seen: list[str] = []
    with client.stream("GET", f"{pair.at('events')}?offset=-1&live=sse") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        for number in range(5):
            url = pair.at("events") if number % 2 else pair.there("events")
            client.post(url, content=f"[{number}]".encode(), headers=JSON)
            while f"data:{number}" not in seen:
                seen.append(next(lines))
    data = [line for line in seen if line in {f"data:{number}" for number in range(5)}]
    assert data == [f"data:{number}" for number in range(5)]


def test_a_listing_has_the_streams_of_all_nodes_in_order(pair: Pair) -> None:
    client = pair.client
    paths = [f"listed/{number:02}" for number in range(20)]
    for number, path in enumerate(paths):
        node = (pair.owner, pair.standby)[number % 2]
        assert client.put(f"{node.url}/v1/stream/{path}", headers=TEXT).status_code == 201
    for node in (pair.owner, pair.standby):
        seen: list[str] = []
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            query = f"prefix=listed/&limit=7&after={page['next']}"
            page = client.get(f"{node.url}/v1/streams?{query}").json()
            seen += [each["path"] for each in page["streams"]]
        assert seen == paths


def test_several_streams_on_one_connection_wherever_they_are(pair: Pair) -> None:
    client = pair.client
    paths = [f"many/{number}" for number in range(6)]
    for path in paths[:3]:
        client.put(pair.at(path), headers=JSON)
    url = f"{pair.standby.url}/v1/streams/live?match=many/*@-1"
    expected = {f"{path} {number}" for path in paths for number in range(2)}
    seen: set[str] = set()
    with client.stream("GET", url) as answer:
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()
        for path in paths[3:]:
            client.put(pair.there(path), headers=JSON)
        for number in range(2):
            for path in paths:
                body = json.dumps([f"{path} {number}"]).encode()
                assert client.post(pair.at(path), content=body, headers=JSON).is_success
        while seen != expected:
            line = next(lines)
            seen |= {each for each in expected if f'"{each}"' in line}


def test_a_fork_lives_with_its_source_and_has_its_path_everywhere(pair: Pair) -> None:
    client = pair.client
    for number in range(4):
        source, fork = f"source-{number}", f"fork-{number}"
        client.put(pair.at(source), headers=TEXT, content=b"shared ")
        headers = {**TEXT, "stream-forked-from": f"/v1/stream/{source}"}
        answer = client.put(pair.at(fork), headers=headers)
        assert answer.status_code == 201, answer.text
        assert client.post(pair.at(fork), content=b"own", headers=TEXT).is_success
        for node in (pair.owner, pair.standby):
            assert client.get(f"{node.url}/v1/stream/{fork}").content == b"shared own"
            assert client.get(f"{node.url}/v1/stream/{source}").content == b"shared "
            # Nobody else can have the path.
            other = client.put(f"{node.url}/v1/stream/{fork}", headers=JSON)
            assert other.status_code == 409


def test_a_token_counts_on_every_node_until_it_is_revoked(pair: Pair) -> None:
    client = pair.client
    answer = client.post(
        f"{pair.standby.url}/v1/tokens",
        json={"allow": ["read:**"]},
    )
    assert answer.status_code == 201, answer.text
    headers = {"authorization": f"Bearer {answer.json()['token']}"}
    client.put(pair.at("guarded"), headers=TEXT)
    urls = [f"{node.url}/v1/stream/guarded" for node in (pair.owner, pair.standby)]
    with httpx.Client(headers=headers) as reader:
        assert [reader.get(url).status_code for url in urls] == [200, 200]
        token_id = answer.json()["id"]
        assert client.delete(f"{pair.owner.url}/v1/tokens/{token_id}").is_success
        assert [reader.get(url).status_code for url in urls] == [401, 401]


def test_a_subscription_wakes_for_streams_of_all_nodes(pair: Pair) -> None:
    client = pair.client
    for number, node in enumerate((pair.owner, pair.standby)):
        id, prefix, wakes = f"all-{number}", f"news{number}", f"wakes-{number}"
        client.put(pair.at(wakes), headers=JSON)
        paths = [f"{prefix}/{each}" for each in range(6)]
        for path in paths[:3]:
            client.put(pair.at(path), headers=JSON)
        url = f"{node.url}/v1/stream/__ds/subscriptions/{id}"
        config = {"type": "pull-wake", "pattern": f"{prefix}/*", "wake_stream": wakes}
        answer = client.put(url, json=config)
        assert answer.status_code == 201, answer.text
        for path in paths[3:]:
            client.put(pair.there(path), headers=JSON)
        for path in paths:
            client.post(pair.at(path), content=b'"x"', headers=JSON)
        first = until(lambda: client.get(f"{pair.at(wakes)}?offset=-1").json(), "a wake")  # noqa: B023
        assert first[0]["subscription_id"] == id
        claim = client.post(f"{url}/claim", json={"worker": "w"}).json()
        assert {each["path"] for each in claim["streams"]} == set(paths)
        other = (pair.owner, pair.standby)[1 - number]
        listed = client.get(f"{other.url}/v1/stream/__ds/subscriptions").json()["subscriptions"]
        assert id in [each["id"] for each in listed]


def test_a_table_is_found_at_every_node(pair: Pair) -> None:
    client = pair.client
    for number in range(4):
        path = f"table-{number}"
        nodes = (pair.owner, pair.standby)
        table = f"/v1/table/{path}"
        assert client.put(nodes[number % 2].url + table, json={"schema": "s"}).status_code == 201
        answers = [client.get(f"{node.url}{table}?timeout=0") for node in nodes]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].content == answers[1].content


def test_a_name_that_another_node_takes_ends_the_first() -> None:
    """Two nodes of one name would claim each other's shards for ever."""
    with ExitStack() as stack:
        dsn = shared().fresh_database()
        args = ["--cluster", dsn, "--cluster-durability", "single", "--cluster-node", "same"]
        first = stack.enter_context(running_server(args=args))
        stack.enter_context(running_server(args=args))
        assert first.wait() != 0
        assert "cluster_node" in first.stderr
        assert "Traceback" not in first.stderr


def test_metrics_are_those_of_the_node_that_is_asked(pair: Pair) -> None:
    def figures(node: Server) -> dict[str, str]:
        text = pair.client.get(f"{node.url}/metrics").text
        lines = [line.split() for line in text.splitlines() if line.startswith("penstock_cluster")]
        return {line[0]: line[1] for line in lines}

    both = [figures(node) for node in (pair.owner, pair.standby)]
    owned = [float(each["penstock_cluster_shards_owned"]) for each in both]
    assert sum(owned) == float(both[0]["penstock_cluster_shards"]) == pair.cluster.shards
    assert [each["penstock_cluster_lease"] for each in both] == ["1.0", "1.0"]
    assert [each["penstock_cluster_differing_nodes"] for each in both] == ["0.0", "0.0"]
    name = "penstock_cluster_forwarded_requests_total"
    before = sum(float(each[name]) for each in both)
    pair.client.get(pair.at("counted"))
    after = sum(float(figures(node)[name]) for node in (pair.owner, pair.standby))
    assert after > before


def test_a_node_counts_itself_once_however_many_shards_it_has(pair: Pair) -> None:
    for node in (pair.owner, pair.standby):
        figures = sampled(pair.client, node)
        descriptors = len(os.listdir(f"/proc/{node.pid}/fd"))
        assert figures["process_open_fds"] < 1.5 * descriptors
        assert figures["process_start_time_seconds"] < time.time()
        assert 1 <= figures["penstock_connections"] <= descriptors
        lived_s = time.time() - figures["process_start_time_seconds"]
        assert 0 < figures["penstock_loop_lag_seconds_count"] <= lived_s / TICK_S
    until(lambda: (activity(pair)["current"] or {}).get("connections"), "connections are counted")


def activity(pair: Pair) -> Any:
    return pair.client.get(f"{pair.standby.url}/v1/activity").json()


def sampled(client: httpx.Client, node: Server) -> dict[str, float]:
    """Return the samples of a node's metrics, those of all labels together."""
    figures: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(client.get(f"{node.url}/metrics").text):
        for sample in family.samples:
            figures[sample.name] += sample.value
    return figures


def test_counters_do_not_fall_when_a_shard_leaves() -> None:
    """Prometheus would take a smaller value for a restart, and the rest for new."""
    dsn = shared().fresh_database()
    with ExitStack() as stack:
        cluster = Cluster(stack, dsn, "--cluster-durability", "single")
        node = cluster.add()
        cluster.settle()
        for number in range(50):
            url = f"{node.url}/v1/stream/counted-{number}"
            cluster.client.put(url, headers=TEXT, content=b"x").raise_for_status()
        before = sampled(cluster.client, node)
        assert before["penstock_creates_total"] >= 50
        cluster.add()
        cluster.spread()
        after = sampled(cluster.client, node)
        assert after["penstock_cluster_shards_owned"] < before["penstock_cluster_shards_owned"]
        fallen = {
            name: (before[name], after[name])
            for name in before
            if name.endswith(("_total", "_count", "_sum")) and after[name] < before[name]
        }
        assert fallen == {}


def test_a_node_sends_what_all_its_shards_have_counted() -> None:
    with collecting() as (collector, endpoint), ExitStack() as stack:
        dsn = shared().fresh_database()
        args = ("--cluster-durability", "single", "--otel-endpoint", endpoint)
        cluster = Cluster(stack, dsn, *args, "--otel-metrics-interval", "0.2")
        node = cluster.add()
        cluster.settle()
        for number in range(SHARDS):
            url = f"{node.url}/v1/stream/sent-{number}"
            cluster.client.put(url, headers=TEXT, content=b"x").raise_for_status()

        def value(name: str) -> float:
            metric = collector.metrics.get(name)
            if metric is None:
                return -1.0
            points = getattr(metric, metric.WhichOneof("data")).data_points
            return float(sum(getattr(point, point.WhichOneof("value")) for point in points))

        collector.wait_for(lambda _: value("penstock_creates") == SHARDS)
        assert value("penstock_cluster_shards_owned") == SHARDS
        collector.metrics.clear()
        assert node.terminate() == 0
        assert value("penstock_creates") == SHARDS
        assert value("penstock_cluster_shards_owned") == 0


def test_the_address_for_nodes_answers_nobody_else(pair: Pair) -> None:
    rows = query(pair.dsn, "SELECT peer FROM penstock.node ORDER BY name")
    secret = query(pair.dsn, "SELECT secret FROM penstock.cluster")[0]
    assert len(rows) == 2
    for row in rows:
        for hop in ("", "wrong e30=", f"{secret[:-1]} e30="):
            answer = httpx.get(f"http://{row}/v1/streams", headers={"penstock-hop": hop})
            assert answer.status_code == 503
            assert answer.json()["code"] == "not-owner"


def test_a_request_is_forwarded_once(pair: Pair) -> None:
    """A node that does not own the streams either says so to the one that asks it."""
    secret = query(pair.dsn, "SELECT secret FROM penstock.cluster")[0]
    headers = {"penstock-hop": f"{secret} e30=", "authorization": "Bearer sesame"}
    pair.client.put(pair.at("once"), headers=TEXT)
    answers = [
        httpx.get(f"http://{row}/v1/stream/once", headers=headers)
        for row in query(pair.dsn, "SELECT peer FROM penstock.node")
    ]
    assert sorted(answer.status_code for answer in answers) == [200, 503]


def test_a_stranger_cannot_pretend_to_be_a_node(pair: Pair) -> None:
    secret = query(pair.dsn, "SELECT secret FROM penstock.cluster")[0]
    hop = {"penstock-hop": f"{secret} e30="}
    for node in (pair.owner, pair.standby):
        assert httpx.get(f"{node.url}/v1/streams", headers=hop).status_code == 401


def test_an_owner_that_does_not_answer_is_503_until_another_goes_on() -> None:
    with ExitStack() as stack:
        dsn = shared().fresh_database()
        args = ("--cluster-durability", "single", "--cluster-hold", "0.1", *QUICK)
        cluster = Cluster(stack, dsn, *args, shards=1)
        first, second = cluster.start(2)
        cluster.spread()
        owner = cluster.owner()
        url = f"{(second if owner is first else first).url}/v1/stream/log"
        assert cluster.client.put(url, headers=TEXT).status_code == 201
        os.kill(owner.pid, signal.SIGSTOP)
        try:
            # Whatever is waiting for the frozen owner is answered when it is replaced.
            answer = httpx.post(url, content=b"x", headers=TEXT, timeout=30, verify=False)
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
            until(
                lambda: (
                    httpx.post(
                        url, content=b"y", headers=TEXT, timeout=30, verify=False
                    ).status_code
                    == 204
                ),
                "the other node goes on",
            )
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        # The woken node does what it was asked before it was frozen no more.
        late = until(lambda: _read(owner), "the woken node answers")
        assert late.content == b"y"


def _read(node: Server) -> httpx.Response | None:
    try:
        answer = httpx.get(f"{node.url}/v1/stream/log", timeout=30)
    except httpx.HTTPError:
        return None
    # Until it knows that it was replaced it says what it has, but not that this is all.
    return answer if "stream-up-to-date" in answer.headers else None


def test_a_node_that_others_cannot_reach_is_refused() -> None:
    settings = Settings(cluster="postgresql://nowhere/none", cluster_node_url="http://0.0.0.0:1")

    async def run() -> None:
        with closing(socket.socket()) as sock:
            node = ClusterNode(settings, sock, None, asyncio.get_running_loop().create_future())
            with pytest.raises(ClusterRefused, match="cluster_node_url"):
                await node.run(lambda server: None)

    asyncio.run(run())


def test_every_node_says_which_nodes_live_and_who_owns_what(pair: Pair) -> None:
    client, both = pair.client, (pair.owner, pair.standby)
    states = [client.get(f"{node.url}/v1/cluster") for node in both]
    assert [answer.status_code for answer in states] == [200, 200]
    for state in (answer.json() for answer in states):
        assert {node["url"] for node in state["nodes"]} == {node.url for node in both}
        assert all(node["lives"] for node in state["nodes"])
        names = {node["name"] for node in state["nodes"]}
        assert {shard["owner"] for shard in state["shards"]} <= names
        assert len(state["shards"]) == pair.cluster.shards
        assert "streams_at_checkpoint" not in state  # it takes a look at each
    with httpx.Client() as stranger:
        assert [stranger.get(f"{node.url}/v1/cluster").status_code for node in both] == [401, 401]
