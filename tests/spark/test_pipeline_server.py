"""`/v1/pipelines`: a server beside a warehouse shows it, queries it and replays dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import jsonschema_rs
import msgspec
import pytest

from penstock import Client
from penstock.config.setting import InvalidSetting
from penstock.config.settings import Settings
from penstock.http.app import App, open_app
from penstock.http.pipelines import commands
from penstock.http.pipelines.operations import describe
from penstock.http.pipelines.resource import files_by_name
from penstock.spark.pipeline.status import status_of
from tests.helpers.app import Answer, finish, make_request
from tests.spark.pipelines import Make, append, run, user
from tests.spark.warehouse_bench import USER, WarehouseBench, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOML = """
[source]
url = "http://127.0.0.1:9"
streams = ["s"]
attempts = 1
[warehouse]
path = "warehouse"
[types.user]
schema = "{schema}"
"""
LONG = {"query": "SELECT count(*) FROM range(100000000) a, range(100000) b"}
Send = Callable[..., Awaitable[Answer]]
encoded = msgspec.json.encode


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A pipeline of two batches, with dead letters whose schema can be corrected."""
    bench = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    bench.batch(put("a", '{"name":"Ada"}'), put("b", '{"name":1}'))
    bench.batch(put("c", '{"name":2}'), {"kind": "invalid", "value": "zzz", "error": "No JSON."})
    bench.duck.close()
    bench.warehouse.close()
    file = tmp_path / "pipeline.toml"
    file.write_text(TOML.format(schema="name STRING, age INT"))
    return file


def serve(test: Callable[[Send], Awaitable[None]], file: Path, **settings: Any) -> None:
    async def body() -> None:
        app = await open_app(Settings(memory=True, pipelines=(f"shop={file}",), **settings))
        try:
            await test(lambda *request: send(app, *request))
        finally:
            await app.stop()

    asyncio.run(body())


async def send(app: App, method: str, target: str, content: Any = None) -> Answer:
    body = b"" if content is None else msgspec.json.encode(content)
    request = make_request(method, f"/v1/pipelines{target}", body)
    refused = app.refuse(request)
    if refused is not None:
        return await finish(refused)
    answer = app.handle(request)
    return await finish(await answer if isinstance(answer, Awaitable) else answer)


def check_schema(content: Any, name: str) -> None:
    """Check an answer against what the OpenAPI document says of it."""
    schema = {**describe().components[name], "components": {"schemas": describe().components}}
    jsonschema_rs.Draft202012Validator(schema).validate(content)


def test_a_pipeline_is_shown_queried_and_replayed(shop: Path) -> None:
    async def test(ask: Send) -> None:
        listing = await ask("GET", "")
        assert listing.json() == {"pipelines": [{"name": "shop", "file": str(shop)}]}

        status = (await ask("GET", "/shop")).json()
        assert status["name"] == "shop"
        assert (status["status"]["batch"], status["status"]["dead_letters"]) == (2, 3)
        details = status["status"]["details"]
        assert [batch["events"] for batch in details["batches"]] == [2, 2]
        assert details["reasons"]["No JSON."] == 1
        assert {"name": "age", "type": "INTEGER"} in details["relations"]["state_user"]

        check_schema(status, "PipelineStatus")

        first = (await ask("GET", "/shop/dead-letters?limit=2")).json()
        assert [each["key"] for each in first["dead_letters"]] == ["b", "c"]
        assert first["next"] == 2

        reason = "value.name: Expected `str | null`, got `int`"
        chosen = (await ask("GET", f"/shop/dead-letters?key=b&reason={quote(reason)}")).json()
        assert [each["error"] for each in chosen["dead_letters"]] == [reason]

        shop.write_text(TOML.format(schema="name BIGINT, age INT"))
        fixed = {"key": "c", "fix": "json_object('name', 7, 'age', 3)"}
        replayed = await ask("POST", "/shop/replay", fixed)
        assert replayed.json() == {"replayed": 1, "invalid": 2, "discarded": 0}
        replayed = await ask("POST", "/shop/replay")
        assert replayed.json() == {"replayed": 1, "invalid": 1, "discarded": 0}
        discarded = await ask("POST", "/shop/replay", {"reason": "No JSON.", "discard": True})
        assert discarded.json() == {"replayed": 0, "invalid": 0, "discarded": 1}

        answer = (await ask("POST", "/shop/sql", {"query": "SELECT 7 AS n", "limit": 5})).json()
        assert (answer["columns"], answer["rows"]) == ([{"name": "n", "type": "INTEGER"}], [[7]])
        check_schema(answer, "SqlResult")
        rest = (await ask("GET", "/shop/dead-letters?limit=2")).json()
        assert (len(rest["dead_letters"]), rest["next"]) == (0, None)

    serve(test, shop)


def test_requests_that_mean_nothing_start_no_process(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "create_subprocess_exec", None)

    async def test(ask: Send) -> None:
        codes = [
            (await ask(*request)).json()["code"]
            for request in [
                ("GET", "/nobody"),
                ("GET", "/shop/nothing"),
                ("POST", "/shop/nothing"),
                ("POST", "/shop"),
                ("POST", "/shop/sql", {"sql": "SELECT 1"}),
                ("POST", "/shop/sql", {"query": "SELECT 1", "limit": 0}),
                ("POST", "/shop/replay", {"why": "x"}),
                ("POST", "/shop/replay", {"fix": "value", "discard": True}),
                ("POST", "/shop/replay", {"key": "a\0b"}),
                ("GET", "/shop/dead-letters?after=x"),
                ("DELETE", "/shop"),
            ]
        ]
        assert codes == [
            "pipeline-not-found",
            *["route-not-found"] * 2,
            "method-not-allowed",
            *["invalid-query"] * 5,
            "invalid-parameter",
            "method-not-allowed",
        ]

    serve(test, shop)


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(TOML.format(schema="name STRING"))

    async def test(ask: Send) -> None:
        answer = await ask("GET", "/shop")
        assert (answer.status, answer.json()["code"]) == (409, "pipeline-failed")
        assert "There are no tables in" in answer.json()["detail"]

    serve(test, file)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.subprocess.Process]:
    """The processes that a test starts."""
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def spy(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*arguments, **options)
        started.append(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spy)
    return started


def test_a_query_ends_with_its_client(
    shop: Path, processes: list[asyncio.subprocess.Process]
) -> None:
    async def test(ask: Send) -> None:
        request = asyncio.ensure_future(ask("POST", "/shop/sql", LONG))
        while not processes:
            await asyncio.sleep(0.01)
        request.cancel()
        await asyncio.wait([request])
        assert processes[0].returncode == -9

    serve(test, shop)


def test_a_command_that_takes_too_long_is_ended(
    shop: Path, processes: list[asyncio.subprocess.Process]
) -> None:
    async def test(ask: Send) -> None:
        answer = await ask("POST", "/shop/sql", LONG)
        assert answer.status == 409
        assert "pipelines_timeout_s" in answer.json()["detail"]
        assert processes[0].returncode == -9

    serve(test, shop, pipelines_timeout_s=1.0)


def test_output_and_the_number_of_waiting_requests_have_limits(
    shop: Path,
    processes: list[asyncio.subprocess.Process],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands, "OUTPUT_BYTES_MAX", 8)
    monkeypatch.setattr(commands, "WAITING_MAX", 1)

    async def test(ask: Send) -> None:
        query = {"query": "SELECT 1"}
        answers = await asyncio.gather(*(ask("POST", "/shop/sql", query) for _ in range(2)))
        assert sorted(answer.status for answer in answers) == [409, 503]
        assert len(processes) == 1
        assert any("more than 8 bytes" in answer.json()["detail"] for answer in answers)

    serve(test, shop, pipelines_commands_max=1)


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        ((), []),
        (("shop/pipeline.toml", "b.toml"), ["shop", "b"]),
        (("pipeline.toml",), ["pipeline"]),
        (("x=/srv/a=b/pipeline.toml", "/srv/a=b/y.toml"), ["x", "y"]),
    ],
)
def test_pipelines_are_named(entries: tuple[str, ...], names: list[str]) -> None:
    assert list(files_by_name(entries)) == names


@pytest.mark.parametrize("entries", [("a.toml", "b/a.toml"), ("=x",), ("x=",)])
def test_names_have_to_be_clear(entries: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSetting, match="pipelines"):
        files_by_name(entries)


def test_details_of_real_runs(spark: SparkSession, make: Make, client: Client, home: str) -> None:
    pipeline = make(publish=None)
    append(client, f"{home}/users", user("a", "Rome"), user("b", 7))
    run(pipeline, spark)
    append(client, f"{home}/users", user("c", "Oslo"))
    run(pipeline, spark)
    append(client, f"{home}/users", user("d", "Bern"))
    details = status_of(pipeline, details=True).details
    assert details is not None
    assert not details.is_running
    assert [batch.events for batch in details.batches] == [2, 1]
    assert [batch.dead_letters for batch in details.batches] == [1, 0]
    assert all(batch.seconds is not None and 0 < batch.seconds < 600 for batch in details.batches)
    assert [(each.first_batch, each.last_batch, each.events) for each in details.runs] == [
        (2, 2, 1),
        (1, 1, 2),
    ]
    (stream,) = details.streams.items()
    assert stream[0] == f"{home}/users"
    of_stream = stream[1]
    messages = client.stream(stream[0]).read_json()
    assert (of_stream.lag_messages, of_stream.lag_bytes) == (1, len(encoded(messages[-1])) + 2)
    # One message of the second run, in the time between the two commits.
    size = len(encoded(messages[2])) + 2
    assert of_stream.messages_per_s is not None
    assert of_stream.bytes_per_s == pytest.approx(size * of_stream.messages_per_s)
    assert list(details.reasons.values()) == [1]
