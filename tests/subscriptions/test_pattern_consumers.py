"""Everything that takes patterns matches what the table says, and refuses what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import penstock
from penstock.cli import main
from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.errors import InvalidOption, InvalidPath, InvalidPipeline, InvalidSubscription
from penstock.log import open_engine
from penstock.log.engine import Engine
from penstock.protocol.globs import parse_pattern
from penstock.protocol.lifecycle import StreamConfig
from penstock.spark.config import make_pipeline
from penstock.spark.options import source_options
from penstock.spark.server import Server as SparkServer
from penstock.spark.server import selects
from tests.helpers.app import Client, with_app
from tests.helpers.patterns import BAD, PATHS, PATTERNS, TABLE, expected
from tests.helpers.server import running_server
from tests.spark.clients import close_clients
from tests.subscriptions.desk import JSON, Desk

BYTES = StreamConfig("application/octet-stream", None, None)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that has every path of the table."""
    with running_server(memory=True) as server, penstock.Client(server.url) as client:
        for path in PATHS:
            client.stream(path).create(JSON)
        yield server.url


def agrees(pattern: str, matched: set[str]) -> None:
    """Check the paths that a pattern has matched of all paths of the table."""
    assert {path: path in matched for path in expected(pattern)} == expected(pattern)


def errors_of(text: str) -> str:
    with pytest.raises(InvalidPath) as error:
        parse_pattern(text)
    return error.value.detail


# Subscriptions


@with_app()
async def test_a_subscription_links_the_streams_that_are_there(client: Client) -> None:
    for path in PATHS:
        assert (await client.put(path, b"[]", content_type=JSON)).status == 201
    for number, pattern in enumerate(PATTERNS):
        desk = Desk(client, f"s{number}")
        answer = await desk.put(type="pull-wake", wake_stream="wake", pattern=pattern)
        assert answer.status == 201, answer.body
        agrees(pattern, {each["path"] for each in (await desk.show())["streams"]})


@with_app()
async def test_a_subscription_is_woken_by_the_streams_that_come_later(client: Client) -> None:
    await client.put("wake", b"[]", content_type=JSON)
    desks = {pattern: Desk(client, f"s{number}") for number, pattern in enumerate(PATTERNS)}
    for pattern, desk in desks.items():
        await desk.put(type="pull-wake", wake_stream="wake", pattern=pattern)
    for path in PATHS:
        await client.put(path, b"[1]", content_type=JSON)
    for pattern, desk in desks.items():
        agrees(pattern, {each["path"] for each in (await desk.show())["streams"]})


@with_app()
async def test_a_subscription_refuses_a_bad_pattern(client: Client) -> None:
    for text, _ in BAD:
        answer = await Desk(client).put(type="pull-wake", wake_stream="wake", pattern=text)
        assert answer.status == 400
        assert answer.json()["detail"] == errors_of(text)


def test_the_clients_say_the_same(url: str) -> None:
    with penstock.Client(url) as client:
        for text, reason in BAD:
            with pytest.raises(InvalidSubscription, match="is no pattern") as error:
                client.subscription("bad").create(pattern=text, wake_stream="wake")
            assert reason in error.value.detail


# The command line


def test_the_command_line_links_what_matches(url: str) -> None:
    runner = CliRunner(env={"PENSTOCK_URL": url})
    for number, pattern in enumerate(PATTERNS):
        create = ["subscription", "create", f"cli-{number}", "--wake-stream", "wake", "--json"]
        done = runner.invoke(main, [*create, "--pattern", pattern])
        assert done.exit_code == 0, done.output
        agrees(pattern, {each["path"] for each in json.loads(done.stdout)["streams"]})


def test_the_command_line_refuses_a_bad_pattern(url: str) -> None:
    runner = CliRunner(env={"PENSTOCK_URL": url})
    create = ["subscription", "create", "bad", "--wake-stream", "wake", "--pattern"]
    for text, reason in BAD:
        done = runner.invoke(main, [*create, text])
        assert done.exit_code != 0
        assert reason in str(done.exception) + done.stderr


# Spark


@pytest.mark.parametrize("pattern", PATTERNS)
def test_spark_selects_what_matches(url: str, pattern: str) -> None:
    streams = source_options({"url": url, "streams": json.dumps([pattern])}).streams
    server = SparkServer(url, None, 1)
    try:
        agrees(pattern, set(server.tails("penstock", streams)))
    finally:
        close_clients()
    agrees(pattern, {path for path in PATHS if selects("penstock", streams, path)})


@pytest.mark.parametrize(("text", "_reason"), BAD)
def test_spark_and_pipelines_refuse_a_bad_pattern(text: str, _reason: str) -> None:
    detail = errors_of(text.strip("/"))
    with pytest.raises(InvalidOption) as option:
        source_options({"url": "http://h", "streams": json.dumps([text])})
    assert option.value.detail == f"Option streams: {detail}"
    given: dict[str, Any] = {
        "source": {"url": "http://h", "streams": ["a", text]},
        "warehouse": {"path": "w"},
    }
    with pytest.raises(InvalidPipeline) as pipeline:
        make_pipeline(given)
    assert pipeline.value.detail == f"source.streams: {detail}"


def test_a_question_mark_that_was_a_wildcard_is_refused_in_a_name() -> None:
    with pytest.raises(InvalidOption, match="`\\?` is no wildcard"):
        source_options({"url": "http://h", "streams": "orders-?"})
    name = "http://h/v1/stream/a?b=*"
    assert source_options({"url": "http://h", "streams": name}).streams == (name,)


# Retention


async def engine_with(rules: str, folder: Path) -> Engine:
    settings = Settings(data_dir=folder, retention=rules, durability="buffered")
    engine = open_engine(settings, clock=ManualClock())
    await engine.start()
    return engine


def test_a_rule_of_retention_applies_to_what_matches(tmp_path: Path) -> None:
    async def run() -> None:
        for number, pattern in enumerate(PATTERNS):
            if "*" not in pattern:
                continue  # the start of a path, as ever
            engine = await engine_with(f"{pattern}=5B", tmp_path / str(number))
            try:
                for path in PATHS:
                    await engine.create(path, BYTES, b"0123456789", closed=False)
                await engine.retention.enforce()
                streams = [engine.find(path, touch=False) for path in PATHS]
                agrees(pattern, {each.path for each in streams if each.earliest == 5})
                agrees(
                    pattern,
                    {each.path for each in streams if engine.retention.keep(each).bytes == 5},
                )
            finally:
                await engine.stop()

    asyncio.run(run())


def test_the_longest_rule_that_applies_holds(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await engine_with("shop/=1B shop/*/audit=2B **=3B", tmp_path)
        try:
            sizes = {
                path: engine.retention.default(path).bytes
                for path in ("shop/eu", "shop/eu/audit", "shop/eu/audit/x", "other")
            }
        finally:
            await engine.stop()
        assert sizes == {"shop/eu": 1, "shop/eu/audit": 2, "shop/eu/audit/x": 1, "other": 3}

    asyncio.run(run())


def test_a_bad_pattern_of_retention_is_refused_before_the_folder_is_opened(tmp_path: Path) -> None:
    for text, _ in BAD:
        if "*" in text and " " not in text:  # a space begins another rule
            with pytest.raises(InvalidPath) as error:
                open_engine(Settings(data_dir=tmp_path / "data", retention=f"{text}=7d"))
            assert error.value.detail == f"Setting retention: {errors_of(text)}"
    assert not (tmp_path / "data").exists()


def test_the_table_is_used_as_a_whole() -> None:
    assert sum(len(expected(pattern)) for pattern in PATTERNS) == len(TABLE)
