"""The console in a real Chromium: state at any offset, its history, and the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.console import Filler, visiting
from tests.helpers.server import Server, running_server

pytestmark = pytest.mark.xdist_group("browser")  # one worker, one Chromium

SCRIPT = "<img src=x onerror=alert(1)>"
BIDI = "\u202egnp.exe"
BIG = "x" * 1_000_000
MANY = 2_600  # more than the slider has stops for


def event(key: str, value: Any = None, operation: str = "upsert", type: str = "user") -> Any:
    content = {"type": type, "key": key, "headers": {"operation": operation}}
    return content if operation == "delete" else {**content, "value": value}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(memory=True) as server:
        filler = Filler(server)
        filler.create("team/users")
        filler.send(
            "PUT", "/v1/schema/team/users", json={"types": {"user": {"schema": {"type": "object"}}}}
        )
        changes = [
            event("1", {"name": "Ann", "city": "Rome", "tags": ["a", "c"]}),
            event("2", {"name": "Bob"}),
            event("1", {"name": "Ann", "city": "Bern", "tags": ["a", "b", "c"]}),
            event("2", operation="delete"),
            {"headers": {"control": "reset"}},
            event("1", {"name": "Anna", "digits": 0}),
        ]
        # The digits of this number are more than JavaScript has.
        messages = json.dumps(changes).replace('"digits": 0', '"digits": 12345678901234567890')
        filler.append("team/users", messages)
        hostile = [event(SCRIPT, {"a": SCRIPT}), event(BIDI, 1), event("big", BIG)]
        filler.create("hostile", json.dumps(hostile))
        filler.create("many", json.dumps([event(f"k{n:05d}", n) for n in range(MANY)]))
        filler.create("plain", '[{"no": "event"}]')
        filler.create("bytes", b"x", {"content-type": "text/plain"})
        yield server


def rows(page: Page) -> list[str]:
    return page.get_by_role("region", name="Entities").locator("tbody tr").all_inner_texts()


def test_a_slider_shows_the_state_at_any_offset(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url, "state") as page:
        page.get_by_role("link", name="team/users").click()
        page.get_by_role("heading", name="State of team/users").wait_for()
        entities = page.get_by_role("region", name="Entities")
        expect(entities).to_contain_text("12345678901234567890")
        page.get_by_text("After 6 of 6 messages").wait_for()
        slider = page.get_by_role("slider", name="Point of the stream")
        slider.focus()
        page.keyboard.press("Home")
        page.get_by_text("At the start of the stream there is no entity yet").wait_for()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        expect(entities).to_contain_text('"name":"Bob"')
        expect(entities).to_contain_text("Rome")
        page.get_by_text("Last change: upsert user 2").wait_for()
        page.get_by_text("in the past").wait_for()
        address = page.url
        page.get_by_role("button", name="One message forward").click()
        expect(entities).to_contain_text("Bern")
        page.get_by_role("button", name="One message back").click()
        expect(entities).to_contain_text("Rome")
        assert page.url == address
        page.reload()
        expect(entities).to_contain_text('"name":"Bob"')
        page.get_by_role("button", name="Live", exact=True).click()
        expect(entities).to_contain_text("Anna")
        Filler(server).append("team/users", json.dumps(event("9", {"name": "Zoe"})))
        expect(entities).to_contain_text("Zoe")
        page.get_by_text("After 7 of 7 messages").wait_for()


def test_an_entity_has_a_history_with_differences(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url, "state/team/users") as page:
        page.get_by_role("button", name="1", exact=True).click()
        entity = page.get_by_role("region", name="Entity")
        expect(entity.get_by_role("heading", name="user 1")).to_be_focused()
        steps = entity.locator(".history > li")
        expect(steps).to_have_count(4)
        expect(steps.nth(1)).to_contain_text("The stream was reset")
        expect(steps.nth(2).locator(".diff li")).to_have_text(
            ['~changed: city "Rome" → "Bern"', '+added: tags[1] "b"']
        )
        steps.nth(2).get_by_role("button", name="State after this").click()
        page.get_by_text("After 3 of ").wait_for()
        expect(entity.locator(".history > li")).to_have_count(2)
        assert "key=1" in page.url
        entity.get_by_role("button", name="Close").click()
        expect(entity).to_have_count(0)


def test_the_schema_is_shown_or_how_to_declare_one(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url, "state/team/users") as page:
        page.get_by_role("tab", name="Schema").click()
        expect(page.get_by_role("tabpanel", name="Schema")).to_contain_text("are refused")
    with visiting(browser, server.url, "state/hostile", expected="404") as page:
        page.get_by_role("tab", name="Schema").click()
        page.get_by_text("penstock schema set hostile FILE").wait_for()


def test_hostile_state_is_text(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url, "state/hostile") as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        page.get_by_role("button", name=SCRIPT).wait_for()
        page.get_by_text("\\u{202e}").first.wait_for()
        page.get_by_role("button", name=SCRIPT).click()
        expect(page.get_by_role("region", name="Entity")).to_contain_text(SCRIPT)
        page.get_by_role("button", name="big", exact=True).click()
        page.get_by_role("button", name="998,000 characters more").wait_for()
        page.get_by_role("searchbox", name="Filter by key").fill("gnp")
        page.get_by_text("1 of 3 entities").wait_for()


def test_a_long_stream_has_fewer_stops_and_every_message(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url, "state/many") as page:
        page.get_by_text("the first 200 entities").wait_for()
        page.get_by_role("button", name="Load more").click()
        page.get_by_text("the first 400 entities").wait_for()
        slider = page.get_by_role("slider", name="Point of the stream")
        assert int(slider.get_attribute("max") or 0) <= 500
        page.get_by_role("button", name="One message back").click()
        page.get_by_text(f"After {MANY - 1:,} of {MANY:,} messages").wait_for()
        page.get_by_role("button", name="One message back").click()
        page.get_by_text(f"After {MANY - 2:,} of {MANY:,} messages").wait_for()
        page.get_by_role("button", name="One message forward").click()
        page.get_by_text(f"After {MANY - 1:,} of {MANY:,} messages").wait_for()


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("plain", "No entities", ""),
        ("bytes", "only application/json streams have state", "40[09]"),
        ("nosuch", "There is no stream at", "404"),
    ],
)
def test_what_has_no_state_says_so(
    browser: Browser, server: Server, path: str, text: str, fault: str
) -> None:
    with visiting(browser, server.url, f"state/{path}", expected=fault) as page:
        page.get_by_text(text).first.wait_for()
