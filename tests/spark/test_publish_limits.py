"""What a published result may be: how large, how many, under which names; and what is said of the
rest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Client, limits
from penstock.errors import InvalidPipeline, PublishFailed
from penstock.spark.config import make_pipeline
from penstock.spark.pipeline.outbox_rows import Change, body_bytes, cut
from penstock.spark.pipeline.status import status_of
from penstock.stp import Table
from tests.helpers.server import Server, running_server
from tests.spark.clients import close_clients
from tests.spark.publishing import Rows, Run, folded


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Run:
    return Run(server.url, tmp_path, chunk=1000)


# Bytes


def sizes(run: Run) -> list[int]:
    """Bytes of each chunk's messages in the outbox."""
    found: dict[int, int] = {}
    for row in run.outbox_rows().to_pylist():
        found[row["chunk"]] = found.get(row["chunk"], 0) + len(row["message"].encode())
    return [found[chunk] for chunk in sorted(found)]


@pytest.mark.soak
def test_long_rows_are_sent_in_requests_that_the_server_takes(run: Run, client: Client) -> None:
    rows = {str(number): "é" * 150_000 for number in range(60)}  # 18 MB
    assert run.publish(rows) == 60
    assert max(sizes(run)) <= limits.SPARK_CHUNK_BYTES
    assert len(sizes(run)) == 20
    # With the value before it, an update is as long as two.
    assert run.publish({key: value + "." for key, value in rows.items()}) == 60
    assert max(sizes(run)) <= limits.SPARK_CHUNK_BYTES
    assert folded(client.stream(run.target()).read().messages) == {
        key: {"n": value + "."} for key, value in rows.items()
    }


def change(size: int, letter: str = "x") -> Change:
    return Change("insert", "k", None, letter * size)


@pytest.mark.parametrize(
    ("lengths", "chunks"),
    [
        ([], []),
        ([8, 8, 8], [[8, 8], [8]]),
        ([8, 8], [[8, 8]]),
        ([8, 9], [[8], [9]]),
        ([100, 1, 1, 1, 1], [[100], [1, 1, 1], [1]]),
        ([1, 100], [[1], [100]]),
    ],
)
def test_a_chunk_ends_by_messages_or_bytes(lengths: list[int], chunks: list[list[int]]) -> None:
    found = cut([change(length) for length in lengths], messages_max=3, bytes_max=20)
    assert [[len(each.message) for each in chunk] for chunk in found] == chunks


@pytest.mark.parametrize("letter", ["x", "é", "漢", "😀"])
def test_no_body_is_larger_than_it_was_taken_for(letter: str) -> None:
    changes = [change(5, letter)] * 3
    body = b"[" + b",".join(each.message.encode() for each in changes) + b"]"
    assert len(body) <= sum(map(body_bytes, changes)) <= len(body) + 2


def test_a_row_that_no_request_can_hold_is_refused_before_it_is_committed(
    server: Server, client: Client, tmp_path: Path
) -> None:
    run = Run(server.url, tmp_path, body_bytes_max=1000)
    run.publish({"a": "x" * 500})
    for value in ("y" * 1000, "y" * 500):  # the other one is too long with the one before it
        with pytest.raises(PublishFailed, match=r"update of 'a'.*publish\.p\.body_bytes_max"):
            run.publish({"a": value, "b": "z"})
        assert len(run.outbox_rows()) == 1
    # Either way out is open, to this run and to another.
    run.publish({"a": "short", "b": "z"})
    other = Run(server.url, tmp_path)
    other.publish({"a": "y" * 1000, "b": "z"})
    found = client.stream(run.target()).read().messages
    assert folded(found) == {"a": {"n": "y" * 1000}, "b": {"n": "z"}}


def test_a_chunk_that_the_server_does_not_take_says_the_way_out(tmp_path: Path) -> None:
    folder, data = tmp_path / "warehouse", tmp_path / "data"
    rows = {str(number): "x" * 50_000 for number in range(3)}
    with running_server(data_dir=data, args=["--max-body", "100k"]) as small:
        words = r"--max-body 150\d\d\d.*new \[publish\]"
        run = Run(small.url, folder, chunk=1000)
        with pytest.raises(PublishFailed, match=words):
            run.publish(rows)
        with pytest.raises(PublishFailed, match=words):
            Run(small.url, folder)
        close_clients()
        port = str(small.port)
    with running_server(data_dir=data, args=["--port", port]) as large:
        run = Run(large.url, folder)
        assert run.publish(rows) == 0
        with Client(large.url) as client:
            assert len(client.stream(run.target()).read().messages) == 3
        close_clients()


# Rows


def test_no_more_rows_are_fetched_than_can_be_published(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PIPELINE_PUBLISH_KEYS_MAX", 3)
    fetched: list[int] = []
    to_arrow = Rows.toArrow

    def counted(rows: Rows) -> pa.Table:
        found = to_arrow(rows)
        fetched.append(found.num_rows)
        return found

    monkeypatch.setattr(Rows, "toArrow", counted)
    assert run.publish({"a": 1, "b": 1, "c": 1}) == 3
    with pytest.raises(PublishFailed, match="more than 3 rows"):
        run.publish({str(number): 1 for number in range(100)})
    assert fetched == [3, 4]


def test_rows_without_a_key_are_counted(run: Run) -> None:
    assert run.publish({"a": 1}) == 1
    assert status_of(run.pipeline).unkeyed == {"p": 0}
    rows: list[dict[str, Any]] = [{"key": "a", "n": 1}, {"key": None, "n": 2}, {"key": "", "n": 3}]
    run.results.rows["p"] = pa.Table.from_pylist(rows)
    assert run.batch() == 0
    assert run.publisher.unkeyed == 2
    status = status_of(run.pipeline)
    assert (status.published, status.unkeyed) == ({"p": 1}, {"p": 2}), "written down at once"
    assert run.publish({"a": 1}) == 0
    assert status_of(run.pipeline).unkeyed == {"p": 0}


# Names


@pytest.mark.parametrize("to", ["", "table:"])
@pytest.mark.parametrize("name", ["x" * 33, "n" * 128, "-" + "d" * 126 + "-", "0"])
def test_every_name_that_is_allowed_works(
    server: Server, client: Client, tmp_path: Path, name: str, to: str
) -> None:
    target = f"{tmp_path.name}/target"
    for start in range(2):
        run = Run(server.url, tmp_path, name, to=to + target)
        run.publish(**{name: {"a": start, "b": 1}})
    if to:
        found = {key: json.loads(text) for key, text in Table(client, target).state().items()}
    else:
        found = folded(client.stream(target).read().messages)
    assert found == {"a": {"n": 1}, "b": {"n": 1}}


def test_a_name_that_is_too_long_is_said() -> None:
    given = {
        "source": {"url": "http://127.0.0.1:1", "streams": ["x"]},
        "warehouse": {"path": "w"},
        "publish": {"n" * 129: {"sql": "…", "to": "x"}},
    }
    with pytest.raises(InvalidPipeline, match="more than 128 characters"):
        make_pipeline(given)
