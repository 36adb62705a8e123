"""What streams may hold, through a whole pipeline: empty ones, many, large messages, late, doubled
and odd ones; snapshots that replace, collisions, columns that come later, results of a function.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock.spark
from penstock import Client
from penstock.errors import InvalidJson, QueryFailed
from penstock.state.events import delete, insert, snapshot_end, snapshot_start, upsert
from tests.helpers.server import Server, running_server
from tests.spark.checking import CITIES, check_cities, check_warehouse
from tests.spark.clients import close_clients
from tests.spark.pipelines import SCHEMA, Make, append, ask, maker, run, user
from tests.spark.test_stream_reads import create_streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = "SELECT _stream, _key FROM state_user ORDER BY _stream, _key"


def test_empty_streams_have_no_rows_and_are_no_trouble(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    for name in ("one", "two"):
        client.stream(f"{home}/{name}").ensure()
    pipeline = make()
    assert run(pipeline, spark).meter.last.events == 0
    assert ask(pipeline, "SELECT * FROM events") == []
    append(client, f"{home}/two", user("a", "x"))
    run(pipeline, spark)
    check_cities(pipeline, client, check_warehouse(pipeline))


ODD: list[Any] = [
    {"name": "n", "city": "back\\slash 'quote' \"double\" \u2028 \x00 ünï 🂡"},
    {"name": "n", "city": "x" * 5000},
    {"name": "n", "city": None, "more": {"deep": [[[[1e300, -0.0, 12345678901234567890]]]]}},
    {"name": 7, "city": "x"},
    {"name": "n", "city": ["a"]},
    {"city": "x"},
    [], "text", 12, None, True, {},
]  # fmt: skip


def test_odd_values_are_kept_as_they_are_or_are_dead_letters(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    stream = client.stream(f"{home}/one")
    stream.ensure()
    stream.append_many(
        [json.loads(upsert("user", f"k{n}", v).to_json()) for n, v in enumerate(ODD)]
    )
    odd_key = "k\t\n' \\ \" é"
    stream.append(json.loads(upsert("user", odd_key, {"name": "n", "city": "c"}).to_json()))
    for message in ({}, [1], "text", 5, None, {"type": "user"}, {"headers": {"operation": "odd"}}):
        stream.append([message])  # one message that is not an event
    # A lone surrogate is JSON to some, and text to nobody.
    body = rb'{"type":"user","key":"s","value":{"name":"\ud800"},"headers":{"operation":"insert"}}'
    with contextlib.suppress(InvalidJson):
        stream.append(body)
    pipeline = make()
    run(pipeline, spark)
    replay = check_warehouse(pipeline)
    assert len(replay.dead) >= 9 + 7
    check_cities(pipeline, client, replay)
    rows = {row["_key"]: row for row in ask(pipeline, "SELECT * FROM state_user")}
    assert rows["k0"]["city"] == ODD[0]["city"]
    assert json.loads(rows["k2"]["_value"]) == ODD[2]
    assert rows[odd_key]["city"] == "c"
    tables = penstock.spark.pipeline_tables(spark, pipeline)
    in_spark = {
        row._key: row.city for row in tables.sql("SELECT _key, city FROM state_user").collect()
    }
    assert in_spark == {key: row["city"] for key, row in rows.items()}, "both engines"


@pytest.mark.soak  # test_warehouse has any order
def test_late_and_doubled_events_change_nothing_that_is_newer(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    """The order of a stream counts, and not what events say of their time."""

    def at(time: str, key: str, city: str) -> bytes:
        return upsert("user", key, {"name": "n", "city": city}, timestamp=time).to_json()

    late, early = "2030-01-01T00:00:00Z", "1999-01-01T00:00:00+02:00"
    append(client, f"{home}/one", at(late, "a", "first"), at(early, "a", "second"))
    append(client, f"{home}/one", *([at(late, "b", "same")] * 3))
    append(client, f"{home}/one", at(late, "c", "x").replace(late.encode(), b"no time"))
    pipeline = make()
    run(pipeline, spark)
    append(client, f"{home}/one", at(early, "b", "same"), delete("user", "gone").to_json())
    append(client, f"{home}/one", delete("user", "gone").to_json(), user("d", "y"))
    run(pipeline, spark)
    replay = check_warehouse(pipeline)
    check_cities(pipeline, client, replay)
    found = ask(pipeline, "SELECT _key, city FROM state_user ORDER BY _key")
    assert [tuple(row.values()) for row in found] == [
        ("a", "second"), ("b", "same"), ("c", "x"), ("d", "y"),
    ]  # fmt: skip
    assert len(replay.events) == 10, "every event is in the audit log"
    assert len(ask(pipeline, "SELECT * FROM history_user WHERE _key = 'b'")) == 1
    [row] = ask(pipeline, "SELECT time, timestamp FROM events WHERE key = 'a' AND ordinal = 1")
    assert (str(row["time"]), row["timestamp"]) == ("1998-12-31 22:00:00+00:00", early)


def test_keys_that_two_streams_have_are_in_the_view_of_collisions(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    append(client, f"{home}/one", user("a", "x"), user("b", "x"), user("c", "x"))
    append(client, f"{home}/two", user("a", "y"), user("b", "y"), delete("user", "b").to_json())
    append(client, f"{home}/three", user("a", "z"))
    sql = "SELECT _key AS key, streams FROM collisions_user"
    pipeline = make(publish={"cities": {"sql": sql, "to": f"derived-{home}/cities"}})
    run(pipeline, spark)
    assert ask(pipeline, "SELECT * FROM collisions_user") == [{"_key": "a", "streams": 3}]
    messages = client.stream(f"derived-{home}/cities").read().messages
    assert [(each["key"], each["value"]) for each in messages] == [("a", {"streams": 3})]


@pytest.mark.soak  # test_warehouse has it without Spark
def test_snapshots_replace_what_was_before_if_they_are_told_to(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    start, end = snapshot_start().to_json(), snapshot_end().to_json()
    append(client, f"{home}/one", user("a", "x"), user("b", "x"))
    append(client, f"{home}/two", user("z", "x"))
    keeps = make()
    replaces = make(
        pipeline={"snapshots": "replace"},
        warehouse={"path": f"{keeps.warehouse.path}-replaced"},
        publish={"cities": {"sql": CITIES, "to": f"derived-{home}/replaced"}},
    )
    one, two = f"{home}/one", f"{home}/two"
    # A batch that ends inside the snapshot: only its end makes it count.
    for messages in ([start, user("a", "y")], [user("c", "y"), end], [start, user("d", "y")]):
        append(client, one, *messages)
        run(replaces, spark)
        wanted = {
            2: ["a", "b"],
            4: ["a", "c"],
            6: ["a", "c", "d"],  # not finished: it replaces nothing yet
        }[len(client.stream(one).read().messages) - 2]
        rows = ask(replaces, KEYS)
        assert [row["_key"] for row in rows if row["_stream"] == one] == wanted
        assert [row["_key"] for row in rows if row["_stream"] == two] == ["z"]
    run(keeps, spark)
    assert [row["_key"] for row in ask(keeps, KEYS)] == ["a", "b", "c", "d", "z"]
    check_cities(keeps, client, check_warehouse(keeps))
    cities = client.stream(f"derived-{home}/replaced").read().messages
    folded: dict[str, int] = {}
    for each in cities:
        if each["headers"]["operation"] == "delete":
            del folded[each["key"]]
        else:
            folded[each["key"]] = each["value"]["users"]
    assert folded == {"y": 3, "x": 1}
    tables = penstock.spark.pipeline_tables(spark, replaces)
    assert sorted(row._key for row in tables.state("user").collect()) == ["a", "c", "d", "z"]


def test_columns_can_come_later_and_old_events_have_them(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    value = {"name": "n", "city": "c", "age": 7, "tags": ["x"]}
    append(client, f"{home}/one", upsert("user", "old", value).to_json())
    append(client, f"{home}/one", upsert("user", "bad", {**value, "age": "seven"}).to_json())
    run(make(), spark)
    grown = make(types={"user": {"schema": f"{SCHEMA}, age INT, tags ARRAY<STRING>"}})
    append(client, f"{home}/one", upsert("user", "new", {"name": "n", "age": 8}).to_json())
    append(client, f"{home}/one", upsert("user", "not", {"name": "n", "age": "x"}).to_json())
    run(grown, spark)
    found = ask(grown, "SELECT _key, age, tags FROM state_user ORDER BY _key")
    assert [tuple(row.values()) for row in found] == [
        ("bad", None, ["x"]), ("new", 8, None), ("old", 7, ["x"]),
    ]  # fmt: skip
    tables = penstock.spark.pipeline_tables(spark, grown)
    rows = tables.sql("SELECT _key, age, tags FROM state_user ORDER BY _key").collect()
    assert [tuple(row) for row in rows] == [tuple(row.values()) for row in found]
    [dead] = ask(grown, "SELECT key, schema_version FROM dead_letters")
    assert dead["key"] == "not"
    assert dead["schema_version"] == grown.types["user"].version
    with pytest.raises(Exception, match=r"pipeline rebuild FILE user`\. Change it back"):
        run(make(), spark)


def users_by_name(spark: SparkSession) -> DataFrame:
    """A user's own function: any DataFrame over the pipeline's relations."""
    spark.table("state_user").createOrReplaceTempView("mine")
    return spark.sql(
        "SELECT name AS key, count(*) AS users, max(city) AS last FROM mine GROUP BY 1"
    )


def broken(spark: SparkSession) -> DataFrame:
    raise ZeroDivisionError("it is the user's own mistake")


def test_the_result_of_a_python_function_is_published(
    spark: SparkSession, client: Client, make: Make, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "users_own", sys.modules[__name__])
    function = {"function": "users_own:users_by_name", "to": f"derived-{home}/names"}
    pipeline = make(publish={"cities": function})
    append(
        client, f"{home}/one", user("a", "x", "Ada"), user("b", "y", "Ada"), user("c", "x", "Bo")
    )
    run(pipeline, spark)
    append(client, f"{home}/one", delete("user", "c").to_json(), user("b", "y", "Ada"))
    run(pipeline, spark)
    messages = client.stream(f"derived-{home}/names").read().messages
    assert sorted((each["key"], json.dumps(each["value"])) for each in messages[:2]) == [
        ("Ada", '{"users": 2, "last": "y"}'), ("Bo", '{"users": 1, "last": "x"}'),
    ]  # fmt: skip
    assert [(each["headers"]["operation"], each["key"]) for each in messages[2:]] == [
        ("delete", "Bo")
    ]
    wrong = make(publish={"cities": {**function, "function": "users_own:broken"}})
    append(client, f"{home}/one", user("d", "x", "Di"))
    with pytest.raises(Exception, match=r"publish\.cities: it is the user's own mistake"):
        run(wrong, spark)


@pytest.mark.parametrize(
    ("size", "limit"),
    [((16 << 20) - 1000, None), pytest.param(100 << 20, "110m", marks=pytest.mark.soak)],
)
def test_the_largest_message_goes_through(
    spark: SparkSession, tmp_path: Path, size: int, limit: str | None
) -> None:
    """As large as a server takes by default, and as large as one takes that is told to."""
    text = "x" * size
    args = [] if limit is None else ["--max-body", limit]
    with running_server(args=args) as roomy, Client(roomy.url) as client:
        stream = client.stream("big/one")
        stream.create()
        for key, name in (("a", "small"), ("b", text), ("c", "small")):
            stream.append(insert("user", key, {"name": name, "city": "c"}))
        pipeline = maker(roomy.url, tmp_path, "big")()
        run(pipeline, spark)
        query = "SELECT _key, length(name) AS size, length(_value) AS whole FROM state_user"
        found = {row["_key"]: (row["size"], row["whole"]) for row in ask(pipeline, query)}
        assert found["b"] == (len(text), len(text) + len('{"name":"","city":"c"}'))
        assert found["a"] == found["c"] == (5, 27)
        assert client.stream("derived-big/cities").read().messages[-1]["value"] == {"users": 3}
        close_clients()


@pytest.mark.soak
@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_streams_are_one_pipeline(spark: SparkSession, tmp_path: Path, count: int) -> None:
    value = user("a", "c").decode()
    with running_server(memory=True) as many, Client(many.url) as client:
        create_streams(many.port, count, body=value)
        source = {"streams": ["many/*"], "max_messages": 1_000_000}
        sql = "SELECT _key AS key, count(*) AS streams FROM state_user GROUP BY _key"
        pipeline = maker(many.url, tmp_path, "many")(
            source=source, publish={"cities": {"sql": sql, "to": "derived/many"}}
        )
        run(pipeline, spark)
        assert ask(pipeline, "SELECT count(DISTINCT stream) AS n FROM events") == [{"n": count}]
        for number in range(0, count, count // 10):
            client.stream(f"many/{number:05}").append(json.loads(delete("user", "a").to_json()))
        create_streams(many.port, 1, body=value, first=count)  # a new match
        shutil.rmtree(str(pipeline.warehouse.checkpoint))
        run(pipeline, spark, resume_from_warehouse=True)
        messages = client.stream("derived/many").read().messages
        assert [each["value"]["streams"] for each in messages] == [count, count - 9]
        check_warehouse(pipeline)


@pytest.mark.soak  # test_pipeline has it for both engines
def test_the_past_is_the_same_in_spark(
    spark: SparkSession, client: Client, make: Make, home: str, server: Server
) -> None:
    pipeline = make(source={"url": server.url, "streams": [f"{home}/*"], "max_messages": 2})
    append(
        client,
        f"{home}/one",
        user("a", "x"),
        user("b", "x"),
        delete("user", "a").to_json(),
        user("b", "y"),
    )
    run(pipeline, spark)
    tables = penstock.spark.pipeline_tables(spark, pipeline)
    assert {row._key: row.city for row in tables.state("user", batch=1).collect()} == {
        "a": "x",
        "b": "x",
    }
    assert {row._key: row.city for row in tables.state("user").collect()} == {"b": "y"}
    at = ask(pipeline, 'SELECT "offset" AS place FROM events WHERE ordinal = 2')[0]["place"]
    rows = tables.state("user", stream=f"{home}/one", at=at).collect()
    assert [(row._key, row.city) for row in rows] == [("b", "x")]
    past = tables.history("user", batch=1).orderBy("_key").collect()
    assert [(row._key, row._is_current) for row in past] == [("a", True), ("b", True)]
    assert tables.history("user").count() == 3
    with pytest.raises(QueryFailed, match="There is no type 'order'; there are: user"):
        tables.state("order")
    with pytest.raises(QueryFailed, match="belongs to one stream"):
        tables.state("user", at=at)
