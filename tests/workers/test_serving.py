"""Two workers answer as one server: whichever of them a client reaches, it gets what there is."""

from __future__ import annotations

import json
import re
from contextlib import closing
from typing import Any

import httpx2
import pytest

from tests.helpers.server import Server, running_server
from tests.workers.server import JSON, RawConnection, path_at

pytestmark = pytest.mark.xdist_group("workers")
CONNECTIONS = 24  # so many that some reach each worker


def _metric(http: httpx2.Client, name: str) -> float:
    match = re.search(rf"^{name} (.+)$", http.get("/metrics").text, re.MULTILINE)
    assert match is not None, name
    return float(match[1])


def _make(http: httpx2.Client, path: str, *messages: Any) -> str:
    """Create a JSON stream with messages; its offset after them."""
    body = json.dumps(list(messages)) if messages else None
    response = http.put(f"/v1/stream/{path}", content=body, headers=JSON)
    assert response.status_code == 201, response.text
    return response.headers["stream-next-offset"]


def _read(http: httpx2.Client, path: str, offset: str = "-1") -> Any:
    return http.get(f"/v1/stream/{path}", params={"offset": offset}).json()


# -- requests reach their owner


def test_a_connection_is_handed_to_the_owner_and_stays_there(
    server: Server, http: httpx2.Client
) -> None:
    paths = [path_at(worker) for worker in (0, 1)]
    for path in paths:
        _make(http, path)
    handed = _metric(http, "penstock_handovers_total")
    forwarded = _metric(http, "penstock_forwarded_requests_total")
    for number in range(CONNECTIONS):
        with closing(RawConnection(server)) as connection:
            path = paths[number % 2]
            assert [connection.append(path, b"%d" % number) for _ in range(3)] == [204] * 3
    assert _read(http, paths[0]) == [n for n in range(0, CONNECTIONS, 2) for _ in range(3)]
    # The kernel spreads connections: about half of them were at the wrong worker, once.
    assert 0 < _metric(http, "penstock_handovers_total") - handed <= CONNECTIONS + 4
    # Those of the metrics themselves, and of what was sent on `http`.
    assert _metric(http, "penstock_forwarded_requests_total") - forwarded < 10


def test_a_connection_that_asks_for_both_workers_is_forwarded_in_the_end(
    server: Server, http: httpx2.Client
) -> None:
    paths = [path_at(worker) for worker in (0, 1)]
    for path in paths:
        _make(http, path)
    forwarded = _metric(http, "penstock_forwarded_requests_total")
    handed = _metric(http, "penstock_handovers_total")
    with closing(RawConnection(server)) as connection:
        for n in range(12):
            assert [connection.append(path, b"%d" % n) for path in paths] == [204, 204]
    assert [_read(http, path) for path in paths] == [list(range(12))] * 2
    assert _metric(http, "penstock_forwarded_requests_total") - forwarded >= 8
    assert _metric(http, "penstock_handovers_total") - handed <= 4 + 4  # and those of `http`


def test_pipelined_requests_for_both_workers_are_answered_in_order(
    server: Server, http: httpx2.Client
) -> None:
    paths = [path_at(worker) for worker in (0, 1)]
    offsets = [_make(http, path, *range(count)) for count, path in enumerate(paths, 1)]
    with closing(RawConnection(server)) as connection:
        for _ in range(5):
            for path in paths:
                connection.send(f"HEAD /v1/stream/{path} HTTP/1.1")
        got = [_head(connection) for _ in range(10)]
    assert got == offsets * 5


def _head(connection: RawConnection) -> str:
    head = connection._until(b"\r\n\r\n").decode()
    return str(re.findall(r"stream-next-offset: (\S+)", head)[0])


def test_large_bodies_pass_unchanged_in_both_directions(
    server: Server, http: httpx2.Client
) -> None:
    data = bytes(range(256)) * 8192
    for worker in (0, 1):
        path = path_at(worker)
        http.put(f"/v1/stream/{path}", headers={"content-type": "application/octet-stream"})
        headers = {"content-type": "application/octet-stream", "connection": "close"}
        for _ in range(2):  # whichever worker the connections reach
            assert http.post(f"/v1/stream/{path}", content=data, headers=headers).is_success
            with closing(RawConnection(server)) as connection:
                connection.send(f"GET /v1/stream/{path}?offset=-1 HTTP/1.1", "connection: close")
                assert connection.response()[2][: len(data)] == data


@pytest.mark.parametrize("keep", ["keep-alive", "close"], ids=["handed-over", "forwarded"])
def test_live_reads_get_what_is_appended_elsewhere(
    server: Server, http: httpx2.Client, keep: str
) -> None:
    for worker in (0, 1):
        path = path_at(worker)
        offset = _make(http, path)
        with closing(RawConnection(server)) as sse, closing(RawConnection(server)) as poll:
            sse.send(
                f"GET /v1/stream/{path}?offset={offset}&live=sse HTTP/1.1", f"connection: {keep}"
            )
            assert sse._until(b"\r\n\r\n").startswith(b"HTTP/1.1 200")
            events = sse.events()
            while b"upToDate" not in next(events):
                pass
            poll.send(
                f"GET /v1/stream/{path}?offset={offset}&live=long-poll HTTP/1.1",
                f"connection: {keep}",
            )
            http.post(f"/v1/stream/{path}", content=b'{"x":1}', headers=JSON)
            assert poll.response()[2] == b'[{"x":1}]'
            while b'{"x":1}' not in next(events):
                pass


def test_a_client_that_goes_away_leaves_no_reader_behind(
    server: Server, http: httpx2.Client
) -> None:
    readers = 'penstock_live_readers{mode="sse"}'
    for worker in (0, 1):
        path = path_at(worker)
        _make(http, path)
        connection = RawConnection(server)
        connection.send(f"GET /v1/stream/{path}?offset=-1&live=sse HTTP/1.1", "connection: close")
        assert connection._until(b"\r\n\r\n").startswith(b"HTTP/1.1 200")
        assert _metric(http, re.escape(readers)) >= 1
        connection.close()
        while _metric(http, re.escape(readers)):
            pass


# -- lists


def test_a_listing_has_the_streams_of_all_workers_in_order(http: httpx2.Client) -> None:
    paths = sorted(path_at(n % 2, "listed") for n in range(9))
    for path in paths:
        _make(http, path)
    found, after = [], ""
    while True:
        page = http.get(
            "/v1/streams", params={"prefix": "listed", "limit": 2, "after": after}
        ).json()
        found += [each["path"] for each in page["streams"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == paths


def test_what_is_known_of_the_whole_server_is_the_same_at_every_worker(server: Server) -> None:
    answers = []
    for _ in range(6):
        with httpx2.Client(base_url=server.url) as http:  # a new connection: another worker
            assert http.get("/healthz").is_success
            assert http.get("/readyz").json() == {"status": "ok"}
            assert http.get("/v1/activity").json()["version"]
            assert http.get("/openapi.json").is_success
            answers.append(_metric(http, "penstock_workers"))
    assert answers == [2] * 6


# -- forks


def test_a_fork_of_another_workers_stream_is_a_stream_like_any_other(http: httpx2.Client) -> None:
    for source_at, fork_at in ((0, 1), (1, 0), (0, 0)):
        source, fork = path_at(source_at, "source"), path_at(fork_at, "fork")
        _make(http, source, 1, 2)
        headers = {"stream-forked-from": f"/v1/stream/{source}"}
        assert http.put(f"/v1/stream/{fork}", headers=headers).status_code == 201
        assert http.put(f"/v1/stream/{fork}", headers=headers).status_code == 200
        http.post(f"/v1/stream/{source}", content=b"3", headers=JSON)
        http.post(f"/v1/stream/{fork}", content=b"4", headers=JSON)
        assert _read(http, source) == [1, 2, 3]
        assert _read(http, fork) == [1, 2, 4]
        entries = http.get("/v1/streams", params={"prefix": fork}).json()["streams"]
        assert [each["forked_from"] for each in entries] == [source]
        forks = http.get(f"/v1/stream/{source}/__ds/forks").json()
        assert fork in json.dumps(forks)


def test_the_path_of_a_fork_is_taken_until_the_fork_is_deleted(http: httpx2.Client) -> None:
    source, other, fork = path_at(0, "source"), path_at(1, "source"), path_at(1, "fork")
    _make(http, source, 1)
    _make(http, other, 9)
    headers = {"stream-forked-from": f"/v1/stream/{source}"}
    assert http.put(f"/v1/stream/{fork}", headers=headers).status_code == 201
    assert http.put(f"/v1/stream/{fork}", headers=JSON).status_code == 409
    elsewhere = {"stream-forked-from": f"/v1/stream/{other}"}
    assert http.put(f"/v1/stream/{fork}", headers=elsewhere).status_code == 409
    assert http.delete(f"/v1/stream/{fork}").status_code == 204
    assert http.get(f"/v1/stream/{fork}").status_code == 404
    # Now it is made where its path is at home, and then again with a source.
    assert http.put(f"/v1/stream/{fork}", headers=elsewhere).status_code == 201
    assert _read(http, fork) == [9]
    assert http.delete(f"/v1/stream/{fork}").status_code == 204
    assert http.put(f"/v1/stream/{fork}", headers=JSON).status_code == 201
    assert _read(http, fork) == []


def test_a_fork_of_nothing_leaves_its_path_free(http: httpx2.Client) -> None:
    fork = path_at(0, "fork")
    missing = {"stream-forked-from": f"/v1/stream/{path_at(1, 'missing')}"}
    assert http.put(f"/v1/stream/{fork}", headers=missing).status_code == 404
    _make(http, fork, 5)
    assert _read(http, fork) == [5]


# -- several streams on one response


def _entries(events: Any) -> tuple[list[dict[str, Any]], str]:
    """The entries of the next event, and its id."""
    for data in events:
        text = data.decode()
        if "id: " in text:
            lines = [line[5:] for line in text.split("\n") if line.startswith("data:")]
            return json.loads("".join(lines)), text.rpartition("id: ")[2].strip()
    raise AssertionError("the response has ended")


def test_one_response_has_the_streams_of_all_workers_and_resumes(
    server: Server, http: httpx2.Client
) -> None:
    paths = [path_at(worker, "live/many") for worker in (0, 1)]
    for path in paths:
        _make(http, path, path)
    seen: dict[str, list[Any]] = {path: [] for path in paths}
    with closing(RawConnection(server)) as connection:
        connection.send("GET /v1/streams/live?match=live/*@-1 HTTP/1.1")
        assert connection._until(b"\r\n\r\n").startswith(b"HTTP/1.1 200")
        events, up_to_date = connection.events(), 0
        while not up_to_date:
            entries, cursor = _entries(events)
            for entry in entries:
                if "messages" in entry:
                    seen[entry["stream"]] += entry["messages"]
            up_to_date += {"upToDate": True} in entries
        assert seen == {path: [path] for path in paths}
        new = path_at(1, "live/new")
        _make(http, new, "n")
        while not any(entry.get("messages") == ["n"] for entry in entries):
            entries, cursor = _entries(events)
    for path in paths:
        http.post(f"/v1/stream/{path}", content=b'"later"', headers=JSON)
    with closing(RawConnection(server)) as connection:
        connection.send(f"GET /v1/streams/live?match=live/*@-1&cursor={cursor} HTTP/1.1")
        assert connection._until(b"\r\n\r\n").startswith(b"HTTP/1.1 200")
        got: dict[str, Any] = {}
        events = connection.events()
        while len(got) < 2:
            for entry in _entries(events)[0]:
                if "messages" in entry:
                    got[entry["stream"]] = entry["messages"]
    assert got == {path: ["later"] for path in paths}


def test_a_response_over_closed_streams_of_all_workers_ends(
    server: Server, http: httpx2.Client
) -> None:
    paths = [path_at(worker, "closed") for worker in (0, 1)]
    for path in paths:
        http.put(f"/v1/stream/{path}", headers={**JSON, "stream-closed": "true"}, content=b"[1]")
    query = "&".join(f"stream={path}@-1" for path in paths)
    with closing(RawConnection(server)) as connection:
        connection.send(f"GET /v1/streams/live?{query} HTTP/1.1")
        assert connection._until(b"\r\n\r\n").startswith(b"HTTP/1.1 200")
        blocks = b"".join(connection.events()).decode()
    assert blocks.count('"messages":[1]') == 2
    cursor = blocks.rpartition("id: ")[2].strip()
    assert http.get(f"/v1/streams/live?{query}&cursor={cursor}").status_code == 204


# -- subscriptions


def test_a_subscription_wakes_for_streams_of_all_workers(http: httpx2.Client) -> None:
    for number in range(3):  # ids of both workers
        id, prefix = f"all-{number}", f"news{number}"
        wakes = path_at(number % 2, "wakes")
        _make(http, wakes)
        paths = [path_at(worker, f"{prefix}/s") for worker in (0, 1)]
        _make(http, paths[0])
        url = f"/v1/stream/__ds/subscriptions/{id}"
        config = {"type": "pull-wake", "pattern": f"{prefix}/*", "wake_stream": wakes}
        assert http.put(url, json=config).status_code == 201
        _make(http, paths[1])
        for path in paths:
            http.post(f"/v1/stream/{path}", content=b'"x"', headers=JSON)
        event = http.get(f"/v1/stream/{wakes}", params={"offset": "-1", "live": "long-poll"}).json()
        assert event[0]["subscription_id"] == id
        claim = http.post(f"{url}/claim", json={"worker": "w"}).json()
        pending = {each["path"]: each["tail_offset"] for each in claim["streams"]}
        assert set(pending) == set(paths)
        acks = [{"stream": path, "offset": offset} for path, offset in pending.items()]
        answer = http.post(
            f"{url}/ack",
            json={
                "wake_id": claim["wake_id"],
                "generation": claim["generation"],
                "acks": acks,
                "done": True,
            },
            headers={"authorization": f"Bearer {claim['token']}"},
        )
        assert answer.json() == {"ok": True, "next_wake": False}, answer.text
        assert http.get(url).json()["pending"] == 0
    listed = http.get("/v1/stream/__ds/subscriptions").json()["subscriptions"]
    assert [each["id"] for each in listed if each["id"].startswith("all-")] == [
        "all-0",
        "all-1",
        "all-2",
    ]


# -- tables and state


def test_a_table_is_found_whichever_worker_has_its_stream(http: httpx2.Client) -> None:
    for worker in (0, 1):
        path = path_at(worker, "table")
        assert http.put(f"/v1/table/{path}", json={"schema": "s"}).status_code == 201
        for name in ("one", "two", "three"):
            declared = http.put(
                f"/v1/table/{path}/{name}", json={"stream": path, "schema": "s", "type": name}
            )
            assert declared.status_code == 201, declared.text
            put = http.put(f"/v1/table/{path}/{name}", params={"key": "k"}, content=b"v")
            assert put.status_code == 204, put.text
            rows = http.get(f"/v1/table/{path}/{name}", params={"timeout": 0}).text
            assert rows.split("\t")[2:] == ["+", "k", "v\n"]
        taken = http.put(f"/v1/table/{path}/one", json={"schema": "s"})
        assert taken.status_code == 409
    assert http.get(f"/v1/table/{path_at(0)}/nothing?timeout=0").status_code == 404


def test_schemas_and_state_are_where_their_stream_is(http: httpx2.Client) -> None:
    paths = sorted(path_at(worker, "state") for worker in (0, 1))
    for path in paths:
        _make(http, path)
        schema = {"types": {"user": {"schema": {"type": "object"}}}}
        assert http.put(f"/v1/schema/{path}", json=schema).is_success
        event = {"type": "user", "key": "1", "value": {"n": 1}, "headers": {"operation": "insert"}}
        http.post(f"/v1/stream/{path}", json=event)
        assert '"n":1' in http.get(f"/v1/state/{path}", params={"type": "user"}).text
    listed = [each["path"] for each in http.get("/v1/schema").json()["streams"]]
    assert [each for each in listed if each in paths] == paths


# -- maintenance


def test_backup_and_scrub_take_all_workers(
    server: Server, http: httpx2.Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    paths = [path_at(worker, "saved") for worker in (0, 1)]
    for path in paths:
        _make(http, path, path)
    place = tmp_path_factory.mktemp("backup")
    job = http.post("/v1/backup", json={"destination": str(place)}).json()
    while job["state"] == "running":
        job = http.get("/v1/backup").json()
    assert (job["state"], sorted(job["workers"])) == ("done", ["worker-0", "worker-1"]), job
    scrub = http.post("/v1/scrub").json()
    while scrub["state"] == "running":
        scrub = http.get("/v1/scrub").json()
    assert (scrub["state"], scrub["problem_count"]) == ("done", 0)
    folder = tmp_path_factory.mktemp("restored") / "data"
    import subprocess
    import sys

    subprocess.run(
        [sys.executable, "-m", "penstock.cli", "restore", str(place), "--data-dir", str(folder)],
        check=True,
        capture_output=True,
    )
    with (
        running_server(args=["--workers", "2"], data_dir=folder) as restored,
        httpx2.Client(base_url=restored.url) as client,
    ):
        assert [_read(client, path) for path in paths] == [[path] for path in paths]
