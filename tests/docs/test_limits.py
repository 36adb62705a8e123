"""docs/limits.md is true and complete: every limit with its default, status and code."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from penstock import errors, limits
from penstock.config.settings import SETTINGS, Settings
from penstock.errors import PenstockError
from penstock.http.app import App
from penstock.log import open_engine

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
ROWS = re.findall(r"^\| ([^|]+) \| `(\w+)` \| ([^|]*) ?\| (\d{3}) \| `([a-z-]+)` \|$", PAGE, re.M)
DEFAULTS = {setting.name: setting.show(setting.default) for setting in SETTINGS}
STATUS = {
    error.code: error.status
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, PenstockError)
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_every_row_says_what_the_code_says(row: tuple[str, str, str, str, str]) -> None:
    _, name, default, status, code = row
    value = default.strip().strip("`")
    if name.isupper():
        assert value == str(getattr(limits, name))
    else:
        assert value == DEFAULTS[name]
    assert STATUS[code] == int(status)


def test_every_limit_among_the_settings_is_on_the_page_once() -> None:
    named = [row[1] for row in ROWS if row[1].islower()]
    named += re.findall(r"`(\w+)`", PAGE.partition("refuse nobody:")[2].partition("\n\n")[0])
    bounds = {
        setting.name
        for setting in SETTINGS
        if setting.name.endswith(("_max", "_per_s")) or setting.name == "quotas"
    }
    timed = {"header_timeout_s", "body_timeout_s"}
    assert sorted(named) == sorted(bounds | timed)


def test_every_error_of_a_limit_is_on_the_page() -> None:
    of_limits = {code for code, status in STATUS.items() if status in (413, 414, 429, 431)} - {
        "subscription-error"
    }
    assert of_limits <= {row[4] for row in ROWS}


def test_every_action_of_the_audit_log_is_on_the_page() -> None:
    async def actions() -> set[str]:
        settings = Settings(memory=True)
        engine = open_engine(settings)
        await engine.start()
        app = App(engine, settings)
        router = app._router
        resources = [
            router._streams,
            *router._fixed.values(),
            *router._prefixes.values(),
            *router._suffixes.values(),
        ]
        named = {endpoint.action for methods in resources for endpoint in methods.values()}
        await app.stop()
        return {action for action in named if isinstance(action, str) and action}

    table = PAGE.partition("| action |")[2].partition("\n\n")[0]
    listed = set(re.findall(r"`(\w+\.\w+)`", table))
    by_request = {"table.declare", "subscription.add", "pipeline.query", "pipeline.replay"}
    by_request |= {"proxy.record"}
    assert listed == asyncio.run(actions()) | by_request
