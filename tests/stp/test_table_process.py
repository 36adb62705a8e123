"""Tables of real servers: both transports, a clean restart, and a kill in the middle of writing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.config.settings import Settings
from penstock.http.origins import origin_headers
from penstock.stp.rows import Row, RowDecoder
from tests.helpers.server import Server, running_server

# Nothing here waits for these: answers are ended by the reader, or do not wait.
PATIENT = ["--table-idle", "30", "--table-timeout", "30", "--cors-origin", "*"]


@pytest.fixture(scope="module", params=["native", "asgi"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running_server(memory=True, asgi=request.param == "asgi", args=PATIENT) as running:
        yield running


def declare(url: str, **members: object) -> None:
    httpx.put(url, json={"schema": "s", **members}).raise_for_status()


def read(url: str, query: str = "timeout=0") -> list[Row]:
    answer = httpx.get(f"{url}?{query}", timeout=20)
    answer.raise_for_status()
    return RowDecoder().feed(answer.content)


def test_an_answer_streams_rows_as_they_are_written(server: Server) -> None:
    url = f"{server.url}/v1/table/live"
    declare(url)
    httpx.post(url, content="+\ta\t1\n+\tb\t2\n").raise_for_status()
    decoder, found = RowDecoder(), []
    with httpx.stream("GET", f"{url}?since_id=1", timeout=20) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == (
            "text/sequence; charset=utf-8; schema=s; version=1"
        )
        assert answer.headers["stp-last-seqno"] == "2"
        for piece in answer.iter_bytes():
            found += decoder.feed(piece)
            if len(found) == 1:
                httpx.put(f"{url}?key=c", content="3").raise_for_status()
            elif len(found) == 2:
                httpx.delete(f"{url}?key=a").raise_for_status()
            else:
                break
    assert [(row.seqno, row.action, row.key) for row in found] == [
        (2, "+", "b"), (3, "+", "c"), (4, "-", "a"),
    ]  # fmt: skip
    assert decoder.end() == b""


def test_large_answers_are_whole_in_every_encoding(server: Server) -> None:
    url = f"{server.url}/v1/table/large"
    declare(url)
    for turn in range(4):
        body = "".join(f"+\tk{n}\t{turn}{'x' * 60}\n" for n in range(2500))
        httpx.post(url, content=body).raise_for_status()
    bodies = []
    for coding in ("identity", "gzip", "deflate", "zstd"):
        answer = httpx.get(f"{url}?timeout=0", headers={"accept-encoding": coding}, timeout=20)
        assert answer.headers.get("content-encoding", "identity") == coding
        bodies.append(answer.content)
        tag = answer.headers["etag"]
        assert httpx.get(f"{url}?timeout=0", headers={"if-none-match": tag}).status_code == 304
    assert [row.seqno for row in RowDecoder().feed(bodies[0])] == list(range(1, 10_001))
    assert all(body == bodies[0] for body in bodies)
    assert len(read(url, "timeout=0&view=active")) == 2500
    assert httpx.get(f"{url}?timeout=0.1", timeout=20).content == bodies[0]


def test_head_cors_and_refusals_over_the_wire(server: Server) -> None:
    url = f"{server.url}/v1/table/head"
    declare(url)
    httpx.put(f"{url}?key=a", content="1")
    head = httpx.head(url)
    assert (head.status_code, head.headers["stp-last-seqno"]) == (200, "1")
    assert head.headers["access-control-allow-origin"] == "*"
    preflight = httpx.options(
        url, headers={"origin": "https://a", "access-control-request-method": "PUT"}
    )
    assert preflight.status_code in (200, 204)
    assert "PUT" in preflight.headers["access-control-allow-methods"]
    assert httpx.get(f"{url}?since_id=").status_code == 400
    assert httpx.get(url, headers={"accept": "text/sequence;version=9"}).status_code == 406


def test_named_origins_may_see_the_seqno() -> None:
    origin = "https://app.example"
    headers = dict(origin_headers(Settings(cors_origins=(origin,)))[origin.encode()])
    exposed = headers[b"access-control-expose-headers"].decode().split(", ")
    assert {"STP-Last-SeqNo", "STP-First-SeqNo", "STP-Earliest-SeqNo"} <= set(exposed)


def test_a_restart_changes_no_byte_of_a_table(tmp_path: Path) -> None:
    answers: list[dict[str, bytes]] = []
    queries = ("", "since_id=700", "since_id=-3", "view=active")
    for turn in range(2):
        with running_server(data_dir=tmp_path / "data", args=PATIENT) as running:
            url = f"{running.url}/v1/table/t"
            declare(url)
            if turn == 0:
                httpx.post(url, content="".join(f"+\tk{n % 50}\tv{n}\n" for n in range(1500)))
                event = '{"type":"s","key":"plain","value":"v","headers":{"operation":"insert"}}'
                stream = f"{running.url}/v1/stream/t"
                sent = httpx.post(
                    stream, content=event, headers={"content-type": "application/json"}
                )
                assert sent.status_code == 204
            found = {}
            for query in queries:
                answer = httpx.get(f"{url}?timeout=0&{query}", timeout=20)
                assert answer.headers["stp-last-seqno"] == "1501"
                found[query] = answer.content + answer.headers["etag"].encode()
            answers.append(found)
    assert answers[0] == answers[1]


def test_acknowledged_rows_survive_a_kill_in_their_order(tmp_path: Path) -> None:
    acknowledged: dict[int, str] = {}

    def writer(url: str, name: int) -> None:
        with httpx.Client(timeout=20) as client:
            for number in range(10_000):
                try:
                    answer = client.put(f"{url}?key=w{name}-{number}", content=f"{number}")
                except httpx.HTTPError:
                    return
                acknowledged[int(answer.headers["stp-last-seqno"])] = f"w{name}-{number}"
                if len(acknowledged) > 150:
                    enough.set()

    enough = threading.Event()
    with running_server(data_dir=tmp_path / "data", args=PATIENT) as running:
        url = f"{running.url}/v1/table/t"
        declare(url)
        threads = [threading.Thread(target=writer, args=(url, name)) for name in range(3)]
        for thread in threads:
            thread.start()
        assert enough.wait(60)
        running.kill()
        for thread in threads:
            thread.join()
    with running_server(data_dir=tmp_path / "data", args=PATIENT) as running:
        url = f"{running.url}/v1/table/t"
        declare(url)
        found = read(url)
        assert [row.seqno for row in found] == list(range(1, len(found) + 1))
        keys = {row.seqno: row.key for row in found}
        assert {seqno: keys.get(seqno) for seqno in acknowledged} == acknowledged
        active = read(url, "timeout=0&view=active")
        assert len(active) == len({row.key for row in found})
        answer = httpx.put(f"{url}?key=next", content="v")
        assert answer.headers["stp-last-seqno"] == str(len(found) + 1)
