"""Pipelines over streams that were trimmed, compacted, made anew or deleted before they were read:
a clear error, or a reset, after which state and results are what a replay of the log that is left
comes to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2
import pytest

from penstock import Client
from penstock.errors import DataLost
from penstock.spark.config import Pipeline
from penstock.state.events import delete
from tests.spark.checking import check_cities, replay_of
from tests.spark.pipelines import Make, append, ask, run, user

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE = "SELECT _stream, _key, _value, _generation, _ordinal FROM state_user"
OPEN = "SELECT _stream, _key, _value, _valid_from_ordinal FROM history_user WHERE _is_current"


def lenient(pipeline: Pipeline) -> dict[str, object]:
    source = {"url": pipeline.source.url, "streams": pipeline.source.streams, "max_messages": 9}
    return {**source, "fail_on_data_loss": False}


LOSSES = ("trimmed", "compacted", "recreated", "deleted")


def lose(client: Client, name: str, how: str) -> None:
    """Let a stream lose what nobody has read: a dead key, a changed one and a new one."""
    stream = client.stream(name)
    if how == "compacted":
        httpx2.put(f"{client.url}/v1/schema/{name}", content=b'{"types": {}}')
    append(client, name, delete("user", "u0").to_json(), user("u1", "c9"), user("u7", "c7"))
    if how == "trimmed":
        stream.trim(stream.read(count=7).next_offset)
    elif how == "compacted":
        stream.compact()
    else:
        stream.delete()
    if how == "recreated":
        append(client, name, user("u8", "c8"))


def test_what_was_lost_is_an_error_or_a_reset(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    pipeline = make()
    for how in (*LOSSES, "whole"):
        append(client, f"{home}/{how}", *(user(f"u{n}", f"c{n % 3}") for n in range(6)))
    run(pipeline, spark)
    for how in LOSSES:
        lose(client, f"{home}/{how}", how)
    before = ask(pipeline, STATE)
    with pytest.raises(DataLost, match="failOnDataLoss=false") as caught:
        run(pipeline, spark)
    assert "\n" not in caught.value.detail
    assert ask(pipeline, STATE) == before, "nothing was changed"
    forgiving = make(source=lenient(pipeline))
    run(forgiving, spark)
    _is_what_is_left(forgiving, client)
    for how in LOSSES[:3]:
        append(client, f"{home}/{how}", user("u9", "c1"), delete("user", "u1").to_json())
    run(forgiving, spark)
    _is_what_is_left(forgiving, client)
    resets = ask(forgiving, "SELECT stream, value FROM events WHERE control = 'reset'")
    reasons = {row["stream"].rpartition("/")[2]: row["value"] for row in resets}
    assert reasons == {
        "trimmed": '{"reason":"stream-trimmed"}',
        "compacted": '{"reason":"stream-trimmed"}',
        "recreated": '{"reason":"stream-recreated"}',
        "deleted": '{"reason":"stream-deleted"}',
    }
    assert len(resets) == len(LOSSES), "each once"


def _is_what_is_left(pipeline: Pipeline, client: Client) -> None:
    replay = replay_of(pipeline)
    found = sorted(tuple(row.values()) for row in ask(pipeline, STATE))
    assert found == replay.state_rows("user")
    current = sorted((row[0], row[1], row[2]) for row in replay.state_rows("user"))
    assert sorted(tuple(row.values())[:3] for row in ask(pipeline, OPEN)) == current
    check_cities(pipeline, client, replay)


@pytest.mark.soak  # test_trimmed_reads has it without Spark
def test_a_resumed_warehouse_takes_a_trimmed_stream_as_it_is(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    append(client, f"{home}/one", *(user(f"u{n}", "c") for n in range(4)))
    pipeline = make()
    run(pipeline, spark)
    append(client, f"{home}/one", *(user(f"u{n}", "d") for n in range(2, 6)))
    stream = client.stream(f"{home}/one")
    stream.trim(stream.read(count=6).next_offset)
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        run(pipeline, spark, resume_from_warehouse=True)
    forgiving = make(source=lenient(pipeline))
    run(forgiving, spark, resume_from_warehouse=True)
    _is_what_is_left(forgiving, client)
