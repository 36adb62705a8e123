"""The generated reference: every route and every metric is in it, and nothing else."""

from __future__ import annotations

import asyncio
import re

from penstock.config.settings import SETTINGS, Settings
from penstock.http.app import open_app
from scripts.metrics_guide import CALM, WORRY
from scripts.reference import http_list, metric_list, metrics


def test_every_route_is_on_the_page() -> None:
    async def served() -> set[tuple[str, str]]:
        app = await open_app(Settings(memory=True))
        templates = app._router.templates()
        await app.stop()
        return {(method, path) for path, methods in templates.items() for method in methods}

    listed = set(re.findall(r"^### ([A-Z]+) (/\S*)$", http_list(), re.M))
    routes = asyncio.run(served())
    assert listed <= routes
    # The page says once that HEAD is served wherever GET is.
    assert {(method, path) for method, path in routes - listed if method != "HEAD"} == set()


def test_an_operation_has_its_parameters_answers_and_errors() -> None:
    section = http_list().partition("### POST /v1/stream/{path}\n")[2].partition("\n### ")[0]
    for text in ("| `Producer-Epoch` | header |", "| 204 | Appended", "`stream-closed`"):
        assert text in section
    assert "`rate-limited`" not in section  # one of those that every request may get


def test_every_metric_has_its_meaning_and_when_to_worry() -> None:
    entries = [(name, worry) for group in WORRY.values() for name, worry in group.items()]
    assert sorted(name for name, _ in entries) == sorted(metrics())
    assert [name for name, worry in entries if worry != CALM and not worry.endswith(".")] == []
    rows = re.findall(
        r"^\| `penstock_(\w+)` \| (\w+) \| ([\w ]+) \| .+\. \| .+ \|$", metric_list(), re.M
    )
    assert len(rows) == len(entries)
    units = {name: unit for name, _, unit in rows}
    assert (units["commit_seconds"], units["bytes_in_total"], units["appends_total"]) == (
        "seconds",
        "bytes",
        "count",
    )


def test_advice_names_settings_that_exist() -> None:
    named = set(
        re.findall(r"`([a-z]+_[a-z_]+)`", " ".join(w for g in WORRY.values() for w in g.values()))
    )
    assert named - {setting.name for setting in SETTINGS} - set(metrics()) == set()
