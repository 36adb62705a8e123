"""Streams that are written anew from the warehouse: whatever happens meanwhile, to the rewrite or
to the streams, the new one comes to what the old one did, and every reader ends up there.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pyarrow as pa
import pytest

from penstock import Client, limits
from penstock.client.sync.stream import Stream
from penstock.errors import NoWarehouse, RewriteFailed, StreamClosed
from penstock.spark.arrow_columns import STATE_ARROW
from penstock.spark.config import Pipeline, make_pipeline
from penstock.spark.pipeline import rewrite_staging
from penstock.spark.pipeline.rewrite import Rewritten, rewrite
from penstock.spark.pipeline.run import PipelineRun
from penstock.spark.server import Server as Asked
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.events import BatchResult, writer_of
from penstock.spark.warehouse.fold import fold_here
from penstock.spark.warehouse.warehouse import Warehouse
from penstock.state import LiveState, MaterializedState, SqliteBackend
from penstock.state.events import delete, reset, snapshot_end, snapshot_start, upsert
from tests.helpers.server import ROOT, Server
from tests.spark.clients import close_clients
from tests.spark.direct import Query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S = 60.0
_numbers = itertools.count()


class Shop:
    """A stream, and a warehouse that is fed from it as a pipeline would."""

    def __init__(self, url: str, client: Client, folder: Path, **changes: Any) -> None:
        self.home = f"rewrite-{next(_numbers)}"
        self.client = client
        self.old, self.new = f"{self.home}/users", f"{self.home}/users-2"
        self.stream = client.stream(self.old)
        self.stream.create()
        self.given: dict[str, Any] = {
            "source": {"url": url, "streams": [f"{self.home}/**"]},
            "warehouse": {"path": str(folder / "warehouse")},
            "types": {"user": {"schema": "name STRING NOT NULL"}},
            **changes,
        }
        self.pipeline: Pipeline = make_pipeline(self.given)
        self._query = Query(url, f"{self.home}/**")
        self._batches = 0

    def append(self, *events: Any) -> str:
        return self.stream.append_many([_json(event) for event in events]).offset

    def ingest(self, *, fold: bool = False) -> None:
        """A batch of all there is, committed as a run of the pipeline commits it."""
        rows = self._query.everything()
        warehouse = Warehouse(self.pipeline.warehouse.path)
        warehouse.open()
        events = warehouse.events
        now = datetime(2026, 1, 1, tzinfo=UTC)
        write = writer_of(events.uri, self.pipeline.types, events.record.batch + 1, now)
        made = write([pa.RecordBatch.from_pylist(rows, schema=STATE_ARROW)])
        appended = BatchResult.of(row for each in made for row in each.to_pylist())
        events.append(appended, query="q", batch=self._batches, positions=self._query.offset)
        self._batches += 1
        if fold:
            duck = Duck(warehouse, self.pipeline.types)
            for entity in duck.entities():
                fold_here(duck, entity, events.record)
            duck.close()
        warehouse.close()

    def rewrite(self, **options: Any) -> Rewritten:
        return rewrite(self.pipeline, self.old, self.new, **options)

    def messages(self, path: str) -> list[Any]:
        return list(self.client.stream(path).read().messages)

    def check(self, before: dict[str, Any]) -> None:
        """The new stream comes to what the old one did; the old one only leads there."""
        assert fold(self.messages(self.new)) == before
        last = self.messages(self.old)[-1]
        assert last == {"headers": {"control": "reset", "location": f"/v1/stream/{self.new}"}}


def _json(event: Any) -> Any:
    return event if isinstance(event, dict) else json.loads(event.to_json())


def fold(messages: list[Any]) -> dict[str, Any]:
    """As the server and live states do it; what is no event is left out."""
    state = MaterializedState(on_invalid="skip")

    def on_control(event: Any) -> None:
        if event.control == "reset":
            state.clear()

    state.apply_json(json.dumps(messages), on_control=on_control)
    return state.to_dict()


@pytest.fixture
def shop(server: Server, client: Client, tmp_path: Path) -> Shop:
    return Shop(server.url, client, tmp_path)


def user(number: int, name: Any = "n") -> Any:
    return upsert("user", f"u{number}", {"name": name, "number": number})


def test_the_new_stream_is_a_snapshot_and_what_came_after_it(shop: Shop) -> None:
    shop.append(user(1), user(2), user(3), upsert("flag", "f", None), delete("user", "u3"))
    shop.append(
        upsert("user", "u1", {"name": "x"}, txid="t", timestamp="2026-01-02T03:04:05+01:00")
    )
    shop.ingest()
    shop.append(user(4), delete("user", "u2"), {"no": "event"})
    before = fold(shop.messages(shop.old))
    copied = shop.messages(shop.old)[-3:]
    done = shop.rewrite()
    assert (done.entities, done.copied, done.is_read, done.earliest) == (3, 3, True, None)
    shop.check(before)
    start, *rows, end = shop.messages(shop.new)[:5]
    assert (start, end) == (_json(snapshot_start()), _json(snapshot_end()))
    assert all(row["headers"]["operation"] == "insert" for row in rows)
    headers = next(row for row in rows if row["key"] == "u1")["headers"]
    assert headers["txid"] == "t"
    assert headers["timestamp"] == "2026-01-02T02:04:05.000000Z"
    assert shop.messages(shop.new)[5:] == copied
    with pytest.raises(StreamClosed) as refused:
        shop.append(user(5))
    assert refused.value.successor == f"/v1/stream/{shop.new}"
    with pytest.raises(RewriteFailed, match="already continues in"):
        shop.rewrite()


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("snapshots", ["keep", "replace"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_any_history_comes_to_the_same_state(
    server: Server, client: Client, tmp_path: Path, folded: bool, snapshots: str, seed: int
) -> None:
    """Resets, snapshots, dead letters of the pipeline's own schema, and other streams among it."""
    shop = Shop(server.url, client, tmp_path, pipeline={"snapshots": snapshots})
    chance = random.Random(seed)
    other = client.stream(f"{shop.home}/other")
    other.create()
    for number in range(4):
        for _ in range(40):
            key = chance.randrange(12)
            event: Any = user(key, chance.choice(["a", "b", 7]))
            kind = chance.random()
            if kind < 0.2:
                event = delete("user", f"u{key}")
            elif kind < 0.24:
                event = reset()
            elif kind < 0.3:
                event = chance.choice([snapshot_start(), snapshot_end()])
            elif kind < 0.35:
                event = {"no": "event"}
            elif kind < 0.45:
                event = upsert("flag", str(key), chance.random())
            shop.append(event)
            other.append(_json(user(chance.randrange(12), "other")))
        if number < 3:
            shop.ingest(fold=folded and number < 2)
    before = fold(shop.messages(shop.old))
    shop.rewrite()
    shop.check(before)


class Crash(Exception):
    """The process is gone."""


@contextmanager
def crashing(at: int, *, answered: bool) -> Iterator[Callable[[], int]]:
    """Requests end with a crash at the one of that number, before or after the server has it."""
    send, count = Asked.send, itertools.count()
    done = 0

    def crash(self: Asked, request: Any) -> Any:
        nonlocal done
        number = next(count)
        if number == at and not answered:
            raise Crash
        try:
            return send(self, request)
        finally:
            done = number + 1
            if number == at:
                raise Crash

    Asked.send = crash  # type: ignore[method-assign]
    try:
        yield lambda: done
    finally:
        Asked.send = send  # type: ignore[method-assign]


def small_chunks(monkeypatch: pytest.MonkeyPatch, messages: int) -> None:
    monkeypatch.setattr(limits, "SPARK_CHUNK_MESSAGES", messages)


@pytest.mark.parametrize("answered", [False, True])
def test_a_crash_at_any_request_changes_nothing(
    server: Server, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    small_chunks(monkeypatch, 3)
    for at in itertools.count():
        shop = Shop(server.url, client, tmp_path / str(at))
        shop.append(*(user(number) for number in range(8)))
        shop.ingest()
        for number in (1, 3, 5):
            shop.append(user(number, "later"))
        with crashing(at, answered=answered) as done:
            try:
                shop.rewrite()
            except Crash:
                crashed = True
            else:
                crashed = False
        if client.stream(shop.old).head().closed:
            # Everybody may be there already, though the rewrite does not know it.
            client.stream(shop.new).append_many([_json(user(9)), _json(delete("user", "u2"))])
        else:
            shop.append(user(9), delete("user", "u2"))
        before = fold([each for each in shop.messages(shop.old) if "type" in each])
        before["user"]["u9"] = {"name": "n", "number": 9}
        before["user"].pop("u2", None)
        if crashed:
            shop.rewrite()
        shop.check(before)
        snapshot = [message for message in shop.messages(shop.new) if message.get("value")]
        first = {json.dumps(row) for row in snapshot[:8]}
        assert len(first) == 8  # each once
        if not crashed:
            assert done() == at  # all of them were tried
            assert at >= 12
            return


@pytest.mark.parametrize("most", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_a_process_that_is_killed_goes_on(shop: Shop, tmp_path: Path, most: int) -> None:
    names = [user(number, "x" * 2000) for number in range(3000)]
    shop.append(*names[:1500])
    shop.append(*names[1500:])
    shop.ingest(fold=True)
    file = tmp_path / "pipeline.toml"
    source, warehouse = shop.given["source"], shop.given["warehouse"]
    file.write_text(
        f"[source]\nurl = {source['url']!r}\nstreams = {source['streams']!r}\n"
        f"[warehouse]\npath = {warehouse['path']!r}\n"
        "[types.user]\nschema = 'name STRING NOT NULL'\n"
    )
    command = [sys.executable, "-m", "penstock.cli", "pipeline", "rewrite", str(file), shop.old]
    new, nothing = shop.client.stream(shop.new), threading.Event()
    kills = 0
    while not shop.stream.head().closed:
        process = subprocess.Popen(
            [*command, "--to", shop.new],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        begin = new.head().offset if new.exists() else ""
        # Killed as soon as it has brought the new stream a step further.
        while kills < most and process.poll() is None:
            if new.exists() and new.head().offset > begin:
                process.kill()
                kills += 1
                break
            nothing.wait(0.002)
        _, error = process.communicate(timeout=WAIT_S)
        assert process.returncode in (0, -9), error.decode()
        if not shop.stream.head().closed:
            shop.append(user(1, f"after {kills}"))
    assert kills >= most - 1
    before = fold([message for message in shop.messages(shop.old) if "type" in message])
    # The last run may have been killed between the switch and its own end.
    done = subprocess.run([*command, "--to", shop.new], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "already continues in" in done.stderr
    shop.check(before)
    inserted = [each["key"] for each in shop.messages(shop.new) if _operation(each) == "insert"]
    assert len(inserted) == len(set(inserted)) == 3000
    assert not list((tmp_path / "warehouse/_penstock").glob("rewrite/*"))


def _operation(message: dict[str, Any]) -> Any:
    return message["headers"].get("operation")


def test_writers_and_readers_meanwhile_lose_nothing(shop: Shop, tmp_path: Path) -> None:
    shop.append(*(user(number) for number in range(500)))
    shop.ingest()
    acknowledged: list[dict[str, Any]] = []
    nothing = threading.Event()

    def write(writer: int) -> None:
        """Upserts, to whatever stream takes them, each until it is acknowledged."""
        with Client(shop.client.url) as client:
            stream: Stream = client.stream(shop.old)
            for number in range(1000):
                event = _json(upsert("user", f"w{writer}-{number % 10}", {"name": str(number)}))
                try:
                    stream.append(event)
                except StreamClosed as closed:
                    stream = client.stream((closed.successor or "").removeprefix("/v1/stream/"))
                    stream.append(event)
                acknowledged.append(event)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    with (
        LiveState(shop.stream) as memory,
        LiveState(shop.stream, backend=SqliteBackend(tmp_path / "state")) as disk,
    ):
        memory.wait_up_to_date(WAIT_S)
        disk.wait_up_to_date(WAIT_S)
        gone: list[Any] = []
        memory.on_change(lambda *change: gone.append(change) if change[3] is None else None)
        for thread in writers:
            thread.start()
        done = shop.rewrite()
        assert any(thread.is_alive() for thread in writers)  # it was written to all the time
        for thread in writers:
            thread.join()
        assert len(acknowledged) == 4000
        wanted = fold(shop.messages(shop.new))
        for event in acknowledged:
            assert event["key"] in wanted["user"]
        last = {event["key"]: event["value"] for event in acknowledged}
        assert {key: wanted["user"][key] for key in last} == last
        assert len(wanted["user"]) == 540
        with LiveState(shop.stream) as late:
            for state in (memory, disk, late):
                while state._core.url != shop.client.stream(shop.new).url:
                    nothing.wait(0.01)
                state.wait_up_to_date(WAIT_S)
                assert state.to_dict() == wanted
    assert gone == []  # nobody saw anything go
    assert done.copied > 0


def test_what_was_appended_together_stays_together(shop: Shop) -> None:
    """So that who begins with the snapshot, and waits for a transaction, sees all of it."""
    shop.append(user(9), upsert("flag", "z", 1))
    shop.append(
        *(
            upsert(kind, key, 1, txid="t")
            for kind, key in (("user", "a"), ("flag", "z"), ("x", "b"))
        )
    )
    shop.append(upsert("flag", "a", 1), user(1))
    shop.ingest()
    shop.rewrite()
    rows = [(row["type"], row["key"]) for row in shop.messages(shop.new)[1:-1]]
    assert rows == [
        ("user", "u9"), ("user", "a"), ("flag", "z"), ("x", "b"), ("flag", "a"), ("user", "u1"),
    ]  # fmt: skip


def test_what_the_stream_is_the_new_one_is_too(shop: Shop) -> None:
    base = shop.client.url
    declared = {"types": {"user": {"schema": {"type": "object"}}}}
    assert httpx2.put(f"{base}/v1/schema/{shop.old}", json=declared).status_code == 201
    shop.stream.set_retention(bytes=1_000_000, compact=4)
    shop.append(user(1))
    shop.ingest()
    shop.rewrite()
    assert httpx2.get(f"{base}/v1/schema/{shop.new}").json()["types"] == declared["types"]
    policy = httpx2.get(f"{base}/v1/stream/{shop.new}/__ds/retention").json()
    assert (policy["bytes"], policy["compact"], policy["own"]) == (1_000_000, 4, True)
    assert httpx2.get(f"{base}/v1/state/{shop.old}").json()["types"] == {}
    state = httpx2.get(f"{base}/v1/state/{shop.new}").json()["types"]
    assert state == fold(shop.messages(shop.new))


def test_the_old_stream_can_be_let_go_of(shop: Shop) -> None:
    shop.append(user(1), user(2))
    shop.ingest()
    shop.append(delete("user", "u2"))
    before = fold(shop.messages(shop.old))
    done = shop.rewrite(trim=True)
    assert done.earliest is not None
    assert len(shop.messages(shop.old)) == 1
    shop.check(before)
    with LiveState(shop.stream) as late:
        while not late.get("user", "u1"):
            late.wait_up_to_date(WAIT_S)
        assert late.to_dict() == before


def test_a_stream_may_be_kept_open(shop: Shop) -> None:
    shop.append(user(1))
    shop.ingest()
    before = fold(shop.messages(shop.old))
    shop.rewrite(keep_open=True)
    shop.check(before)
    shop.append(user(2))
    assert shop.stream.head().successor is None


def test_what_cannot_be_rewritten_is_refused(
    shop: Shop, server: Server, client: Client, tmp_path: Path
) -> None:
    with pytest.raises(NoWarehouse):
        shop.rewrite()
    shop.append(user(1))
    shop.ingest()
    with pytest.raises(RewriteFailed, match="another name"):
        rewrite(shop.pipeline, shop.old, f"/{shop.old}")
    client.stream(f"{shop.home}/unread").create()
    with pytest.raises(RewriteFailed, match="has no position of"):
        rewrite(shop.pipeline, f"{shop.home}/unread", shop.new)
    latest = make_pipeline({**shop.given, "source": {**shop.given["source"], "starting": "latest"}})
    with pytest.raises(RewriteFailed, match="did not begin at the start"):
        rewrite(latest, shop.old, shop.new)
    shop.append(reset(offset="0000000000000001_0000000000000000"))
    with pytest.raises(RewriteFailed, match="names an offset"):
        shop.rewrite()
    with pytest.raises(RewriteFailed, match="is being rewritten as"):
        rewrite(shop.pipeline, shop.old, f"{shop.new}-3")
    closed = Shop(server.url, client, tmp_path / "closed")
    closed.append(user(1))
    closed.ingest()
    closed.stream.close()
    with pytest.raises(RewriteFailed, match="is closed"):
        closed.rewrite()


def test_a_new_stream_that_is_not_new_is_refused(shop: Shop) -> None:
    shop.append(user(1))
    shop.ingest()
    new = shop.client.stream(shop.new)
    new.create()
    new.append(_json(user(7)))
    with pytest.raises(RewriteFailed, match="not of this rewrite"):
        shop.rewrite()
    assert not shop.stream.head().closed
    new.delete()
    shop.rewrite()
    shop.check({"user": {"u1": {"name": "n", "number": 1}}})


@pytest.mark.parametrize("copied", [0, 2])
def test_somebody_who_writes_to_it_too_early_is_noticed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    small_chunks(monkeypatch, 2)
    shop.append(*(user(number) for number in range(6)))
    shop.ingest()
    for number in range(copied):
        shop.append(user(number, "again"))
    with crashing(8, answered=True), pytest.raises(Crash):
        shop.rewrite()
    shop.client.stream(shop.new).append(_json(user(7)))
    for _ in range(2):  # also when it is tried again
        with pytest.raises(RewriteFailed, match="not of this rewrite"):
            shop.rewrite()
    assert not shop.stream.head().closed


def test_a_stream_that_never_rests_is_given_up_and_taken_up_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.append(user(1))
    shop.ingest()
    send = Asked.send

    def interrupted(self: Asked, request: Any) -> Any:
        if request.method == "POST" and request.url.endswith("users"):
            shop.append(user(2, "in between"))
        return send(self, request)

    with monkeypatch.context() as patched:
        patched.setattr(Asked, "send", interrupted)
        with pytest.raises(RewriteFailed, match="3 times"):
            shop.rewrite(attempts_max=3)
    assert shop.stream.head().successor is None
    before = fold(shop.messages(shop.old))
    assert shop.rewrite().copied == 3
    shop.check(before)


def test_a_pipeline_reads_the_old_stream_as_reset_and_the_new_one_beside_it(
    spark: SparkSession, shop: Shop
) -> None:
    shop.append(*(user(number) for number in range(20)), user(1, 7))
    PipelineRun(shop.pipeline, spark).run(once=True)
    shop.append(user(3, "later"))
    before = fold(shop.messages(shop.old))
    shop.rewrite()
    shop.check(before)
    PipelineRun(shop.pipeline, spark).run(once=True)
    duck = Duck(Warehouse(shop.pipeline.warehouse.path), shop.pipeline.types)
    rows = duck.sql("SELECT _stream, _key, _value FROM state_user").to_pylist()
    duck.close()
    assert {row["_stream"] for row in rows} == {shop.new}
    found = {row["_key"]: json.loads(row["_value"]) for row in rows}
    # What the schema refuses is in the stream, and a dead letter here as it was before.
    assert found == {key: value for key, value in before["user"].items() if key != "u1"}


def test_a_state_of_any_size_is_held_a_part_at_a_time(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite_staging, "_PART_BYTES", 10_000)
    monkeypatch.setattr(rewrite_staging, "_ROWS_AT_ONCE", 64)
    shop.append(*(user(number, "x" * 50) for number in range(1000)))
    shop.ingest()
    staging = rewrite_staging.Staging(Warehouse(shop.pipeline.warehouse.path), shop.old)
    small_chunks(monkeypatch, 30)
    plan = staging.write(shop.pipeline, shop.new)
    assert len(plan.parts) > 5
    assert plan.messages == 1002
    chunks = list(staging.chunks(plan, 0))
    assert [number for number, _ in chunks] == list(range(plan.chunks))
    assert sum(len(messages) for _, messages in chunks) == 1002
    assert list(staging.chunks(plan, 7)) == chunks[7:]
    close_clients()
    shop.rewrite()
    assert len(fold(shop.messages(shop.new))["user"]) == 1000
