"""Nodes that differ in a setting that all should share: their logs and the status say so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.cli.commands.cluster.command import lines_of
from penstock.config.settings import Settings
from penstock.log.cluster.node import Node
from penstock.log.cluster.status import read_status
from tests.helpers.postgres import ON_POSTGRES, shared

pytestmark = list(ON_POSTGRES)
TOKEN = "hunter2-and-more"


def settings_of(name: str, dsn: str, **options: Any) -> Settings:
    return Settings(cluster=dsn, cluster_durability="single", cluster_node=name, **options)


@asynccontextmanager
async def joined(name: str, dsn: str, **options: Any) -> AsyncIterator[Node]:
    node = Node(settings_of(name, dsn, **options))
    await node.join("1")
    try:
        yield node
    finally:
        await node.leave()


def test_nodes_that_differ_say_so_and_so_does_the_status(caplog: pytest.LogCaptureFixture) -> None:
    dsn = shared().fresh_database()

    async def run() -> list[str]:
        async with joined("a", dsn) as a, joined("b", dsn) as b:
            await a.look()
            assert a.differing == []
            async with joined("c", dsn, auth_token=TOKEN, quotas="x/=1streams") as c:
                for node in (a, b, c, a):
                    await node.look()
                assert (a.differing, b.differing, c.differing) == (["c"], ["c"], ["a", "b"])
                lines = lines_of(await read_status(settings_of("", dsn)))
            await a.look()
            assert a.differing == []
            return lines

    with caplog.at_level(logging.WARNING, "penstock.log"):
        lines = asyncio.run(run())
    warnings = [line for line in caplog.messages if "other settings" in line]
    assert len(warnings) == 4  # two nodes of one, one of two; said once
    assert warnings[0].startswith("The node c has other settings than this one (a): auth_token, ")
    assert lines[-2:] == [
        "Nodes differ in the setting auth_token: a, b | c. Give all the same.",
        "Nodes differ in the setting quotas: a, b | c. Give all the same.",
    ]
    assert TOKEN not in caplog.text + str(lines)


def test_a_node_that_comes_again_with_others_is_compared_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dsn = shared().fresh_database()

    async def run() -> None:
        async with joined("a", dsn) as a:
            for quotas in ("x/=1streams", "x/=2streams", "x/=2streams"):
                async with joined("b", dsn, quotas=quotas):
                    await a.look()
                    assert a.differing == ["b"]

    with caplog.at_level(logging.WARNING, "penstock.log"):
        asyncio.run(run())
    assert len([line for line in caplog.messages if "other settings" in line]) == 2
