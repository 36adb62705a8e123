"""The page of a stream in a real Chromium: its messages, live and from anywhere, its actions."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.console import Filler, violations, visiting
from tests.helpers.server import ROOT, Server, running_server

pytestmark = pytest.mark.xdist_group("browser")  # one worker, one Chromium

TOKEN = "operator-token"
TEXT = {"content-type": "text/plain"}
BYTES = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(memory=True) as server:
        yield server


@pytest.fixture
def filler(server: Server) -> Filler:
    return Filler(server)


def rows(page: Page) -> Locator:
    return page.locator(".rows > li")


def is_live(page: Page) -> None:
    expect(page.locator(".rows")).to_have_attribute("data-state", "live")


# Messages


def test_the_last_messages_are_shown_and_new_ones_come_live(
    browser: Browser, server: Server, filler: Filler
) -> None:
    filler.create("live", json.dumps([{"id": number} for number in range(80)]))
    with visiting(browser, server.url, "stream/live") as page:
        is_live(page)
        expect(rows(page)).to_have_count(50)
        expect(rows(page).last).to_contain_text('{"id": 79}')
        filler.append("live", '{"id": 80}')
        expect(rows(page).last).to_contain_text('{"id": 80}')
        page.get_by_role("button", name="Pause").click()
        filler.append("live", "[81, 82, 83]")
        page.get_by_role("button", name="3 new messages while paused").wait_for()
        expect(rows(page)).to_have_count(51)
        page.get_by_role("button", name="Resume").click()
        expect(rows(page)).to_have_count(54)
        # However many come, the page holds a bounded number of them, the newest.
        filler.append("live", json.dumps([{"n": number} for number in range(5000)]))
        expect(rows(page).last).to_contain_text('{"n": 4999}')
        assert rows(page).count() <= 300
        page.get_by_role("searchbox", name="Filter what is shown").fill('"n": 4321')
        expect(rows(page)).to_have_count(1)
        page.get_by_text("1 message of 2,000").wait_for()


def test_messages_are_read_from_an_offset_a_time_and_the_start(
    browser: Browser, server: Server, filler: Filler
) -> None:
    filler.create("jump", json.dumps(["ü" * number for number in range(150)], ensure_ascii=False))
    time.sleep(0.02)  # the times of two appends have to differ
    middle = time.time()
    time.sleep(0.02)
    filler.append("jump", '["after"]')
    with visiting(browser, server.url, "stream/jump?first=1", expected="status of 400") as page:
        expect(rows(page)).to_have_count(100)
        page.get_by_role("button", name="Read on").click()
        expect(rows(page)).to_have_count(151)
        page.get_by_text("at the tail").wait_for()
        # The offset beside a message is where it begins, as the server sees it.
        rows(page).nth(120).locator("summary").click()
        offset = rows(page).nth(120).locator("code").inner_text()
        start = page.get_by_role("combobox", name="Where to begin")
        start.select_option("offset")
        page.get_by_role("textbox", name="Offset").fill(offset)
        page.get_by_role("button", name="Go").click()
        expect(rows(page)).to_have_count(31)
        expect(rows(page).first).to_contain_text("ü" * 120)
        page.get_by_role("textbox", name="Offset").fill("nonsense")
        page.get_by_role("button", name="Go").click()
        page.get_by_text("is not an offset").wait_for()
        start.select_option("at")
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(middle))
        page.get_by_role("textbox", name="Time").fill(f"{stamp}.{int(middle % 1 * 1000):03d}Z")
        page.get_by_role("button", name="Go").click()
        expect(rows(page)).to_have_count(1)
        expect(rows(page).first).to_contain_text("after")
        page.get_by_role("button", name="Follow live").click()
        is_live(page)
        filler.append("jump", '["later"]')
        expect(rows(page).last).to_contain_text("later")
        page.get_by_role("textbox", name="Number of messages").fill("3")
        page.get_by_role("button", name="Go").click()
        expect(rows(page)).to_have_count(3)
        page.reload()
        expect(rows(page)).to_have_count(3)


def test_text_and_bytes_are_shown_as_what_they_are(
    browser: Browser, server: Server, filler: Filler
) -> None:
    filler.create("log", "one\ntwo\n", TEXT)
    filler.create("raw", bytes(range(64)), BYTES)
    with visiting(browser, server.url, "stream/log") as page:
        expect(rows(page).first).to_contain_text("one\ntwo")
        page.goto(f"{server.url}/#/stream/raw?first=1")
        expect(rows(page).first).to_contain_text("00 01 02 03")
        rows(page).first.locator("summary").click()
        expect(page.locator("pre.text")).to_contain_text("00000030  30 31 32")
        page.goto(f"{server.url}/#/stream/raw")
        is_live(page)
        filler.send("POST", "/v1/stream/raw", content=b"\xff\x00", headers=BYTES)
        expect(rows(page).first).to_contain_text("ff 00")


def test_hostile_messages_are_text(browser: Browser, server: Server, filler: Filler) -> None:
    hostile = {
        "<script>alert(1)</script>": "<img src=x onerror=alert(2)>",
        "abc\u202edef": "\u2066\u0001\u200b\U000e0041",
        "number": 12345678901234567890,
        "</pre>": ["javascript:alert(3)", None, True, 1.5],
    }
    filler.create("hostile", json.dumps([hostile], ensure_ascii=False))
    with visiting(browser, server.url, "stream/hostile") as page:
        rows(page).first.locator("summary").click()
        view = page.locator(".json")
        expect(view).to_contain_text("<script>alert(1)</script>")
        expect(view).to_contain_text("<img src=x onerror=alert(2)>")
        expect(view).to_contain_text("abc\\u{202e}def")
        expect(view).to_contain_text("\\u{2066}\\u0001\\u{200b}\\u{e0041}")
        expect(view).to_contain_text("12345678901234567890")
        assert not set("\u202e\u2066\u200b") & set(page.content())
        assert page.locator("main script, main img").count() == 0
        assert violations(page) == []


def test_messages_of_a_megabyte_are_shown_in_steps(
    browser: Browser, server: Server, filler: Filler
) -> None:
    large = {"text": "x" * 1_000_000, "list": list(range(20_000)), "last": "here"}
    filler.create("large", json.dumps([large, large, large]))
    with visiting(browser, server.url, "stream/large") as page:
        expect(rows(page)).to_have_count(3)
        rows(page).last.locator("summary").click()
        view = page.locator(".json")
        expect(view).to_contain_text("998,000 characters more")
        expect(view).to_contain_text("here")
        view.get_by_text("20,000 elements").click()
        view.get_by_role("button", name="19,900 more").wait_for()
        assert page.locator("main *").count() < 1500


def test_the_tail_goes_on_over_a_crash_of_the_server(browser: Browser, tmp_path: Path) -> None:
    expected = (
        "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY|ERR_CONNECTION_RESET|50[0-9]"
    )
    with running_server(data_dir=tmp_path) as first:
        Filler(first).create("lasting", '[{"before": true}]')
        with visiting(browser, first.url, "stream/lasting", expected=expected) as page:
            is_live(page)
            Filler(first).append("lasting", '{"live": true}')
            expect(rows(page)).to_have_count(2)
            first.kill()
            page.get_by_text("reconnecting in").wait_for()
            with running_server(data_dir=tmp_path, args=["--port", str(first.port)]) as second:
                Filler(second).append("lasting", '{"after": true}')
                expect(rows(page)).to_have_count(3, timeout=30_000)
                is_live(page)
                expect(rows(page).last).to_contain_text("after")
                assert rows(page).all_inner_texts()[0].count("before") == 1


def test_state_events_are_filtered_by_the_server(
    browser: Browser, server: Server, filler: Filler
) -> None:
    def event(kind: str, key: str, value: int) -> dict[str, object]:
        return {"type": kind, "key": key, "value": {"n": value}, "headers": {"operation": "upsert"}}

    events = [event("user", "a", 1), event("user", "b", 2), event("order", "a", 3)]
    filler.create("state", json.dumps(events))
    with visiting(browser, server.url, "stream/state?type=user&key=b") as page:
        expect(rows(page)).to_have_count(1)
        expect(rows(page).first).to_contain_text('"n": 2')
        filler.append("state", json.dumps([event("order", "b", 4), event("user", "b", 5)]))
        expect(rows(page)).to_have_count(2)
        expect(rows(page).last).to_contain_text('"n": 5')


# Appending


def test_what_is_appended_is_checked_and_arrives_once(
    browser: Browser, server: Server, filler: Filler
) -> None:
    filler.create("box")
    with visiting(browser, server.url, "stream/box", expected="ERR_FAILED") as page:
        page.get_by_role("tab", name="Append").click()
        text = page.get_by_label("What to append")
        button = page.get_by_role("button", name="Append", exact=True)
        text.fill('{"a": ')
        button.click()
        page.get_by_text("Nothing was sent.").wait_for()
        assert filler.read("box") == []
        text.fill("[1, 2]")
        page.get_by_text("2 messages.").wait_for()
        # The answer to the first attempt is lost: the repetition must not append it again.
        lost: list[str] = []

        def lose(route: object) -> None:
            if lost:
                route.fallback()  # type: ignore[attr-defined]  # a Route
            else:
                lost.append(route.fetch().headers["stream-next-offset"])  # type: ignore[attr-defined]
                route.abort()  # type: ignore[attr-defined]

        page.route("**/v1/stream/box", lambda route: lose(route), times=2)
        text.press("Control+Enter")
        page.get_by_text("Appended.").wait_for()
        assert len(lost) == 1
        assert filler.read("box") == [1, 2]
        text.fill('"three"')
        button.click()
        page.get_by_role("tab", name="Messages").click()
        expect(rows(page)).to_have_count(3)
        assert filler.read("box") == [1, 2, "three"]


# Actions


def test_a_stream_is_forked_trimmed_closed_and_deleted(
    browser: Browser, server: Server, filler: Filler
) -> None:
    filler.create("acts/a b".replace(" ", "%20"), "[1, 2, 3]")
    expected = "status of 40[49]"
    with visiting(browser, server.url, "stream/acts/a%20b?first=1", expected=expected) as page:
        rows(page).nth(2).locator("summary").click()
        offset = rows(page).nth(2).locator("code").inner_text()
        page.get_by_role("button", name="Fork").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Path of the fork").fill("acts/fork")
        dialog.get_by_label("Fork point").fill(offset)
        assert violations(page) == []
        dialog.get_by_role("button", name="Fork").click()
        page.get_by_role("heading", name="acts/fork").wait_for()
        assert filler.read("acts/fork") == [1, 2]
        page.locator(".facts").get_by_role("link", name="acts/a b").wait_for()
        page.get_by_role("tab", name="Forks").click()
        tree = page.get_by_role("list", name="Forks")
        expect(tree).to_contain_text(f"up to {offset}")
        tree.get_by_role("link", name="acts/a b").click()
        page.get_by_role("heading", name="acts/a b").wait_for()
        page.get_by_role("tab", name="Forks").click()
        tree.get_by_role("link", name="acts/fork").wait_for()

        page.get_by_role("button", name="Trim").click()
        dialog.get_by_label("Delete everything before").fill(offset)
        dialog.get_by_role("button", name="Trim").click()
        page.get_by_text("1, 2 trimmed").wait_for()
        assert filler.read("acts/a%20b") == [3]

        page.get_by_role("button", name="Close").click()
        dialog.get_by_role("button", name="Close the stream").click()
        page.locator(".page-head").get_by_text("closed", exact=True).wait_for()

        page.get_by_role("button", name="Delete").click()
        button = dialog.get_by_role("button", name="Delete the stream")
        expect(button).to_be_disabled()
        dialog.get_by_label("to confirm").fill("acts/a")
        expect(button).to_be_disabled()
        dialog.get_by_label("to confirm").fill("acts/a b")
        button.click()
        page.get_by_role("heading", name="Streams").wait_for()
        page.get_by_role("link", name="acts/fork").wait_for()
        expect(page.get_by_role("link", name="acts/a b")).to_have_count(0)


def test_producers_and_subscriptions_are_shown(
    browser: Browser, server: Server, filler: Filler
) -> None:
    filler.create("busy", "[1]")
    producer = {"producer-id": "web-1", "producer-epoch": "3", "producer-seq": "0"}
    filler.append("busy", "2", **producer)
    filler.create("wakes")
    subscription = {"type": "pull-wake", "streams": ["busy"], "wake_stream": "wakes"}
    filler.send("PUT", "/v1/stream/__ds/subscriptions/mailer", json=subscription)
    filler.append("busy", "[3, 4]")
    with visiting(browser, server.url, "stream/busy") as page:
        page.get_by_role("tab", name="Producers").click()
        row = page.get_by_role("region", name="Producers").get_by_role("row").nth(1)
        assert row.get_by_role("cell").all_inner_texts() == ["web-1", "3", "0"]
        page.get_by_role("tab", name="Subscriptions").click()
        expect(page.get_by_role("row", name="mailer")).to_contain_text("2 messages, 6 B")
        for name in ("Append", "Code", "Forks", "Producers"):
            page.get_by_role("tab", name=name).click()
            expect(page.get_by_text("Loading …")).to_have_count(0)
            assert violations(page) == [], name


# Code to copy


def test_copied_code_runs(browser: Browser) -> None:
    path = "it's%20%22odd%22%20$HOME%20%60id%60"
    with running_server(memory=True, args=["--token", TOKEN]) as closed:
        filler = Filler(closed, TOKEN)
        filler.create(path, "[1]")
        with visiting(
            browser, closed.url, f"stream/{path}", expected="status of 401", fresh=True
        ) as page:
            page.context.grant_permissions(["clipboard-read", "clipboard-write"])
            page.get_by_label("Token").fill(TOKEN)
            page.get_by_role("button", name="Sign in").click()
            page.get_by_role("tab", name="Code").click()
            codes = {}
            for section in page.locator("section.card").all():
                title = section.get_by_role("heading").inner_text()
                section.get_by_role("button", name="Copy").click()
                codes[title] = str(page.evaluate("navigator.clipboard.readText()"))
                assert codes[title] == section.locator("pre").inner_text()
        assert TOKEN not in str(codes)
        env = {**os.environ, "PENSTOCK_TOKEN": TOKEN, "PYTHONPATH": str(ROOT / "src")}

        def run(*command: str) -> str:
            done = subprocess.run(
                command, env=env, check=True, capture_output=True, text=True, timeout=60
            )
            return done.stdout

        assert json.loads(run("sh", "-c", codes["Read with curl"])) == [1]
        run("sh", "-c", codes["Append with curl"])
        assert filler.read(path) == [1, {"hello": "world"}]
        assert shlex.split(codes["Append with curl"])[0] == "curl"
        run(sys.executable, "-c", codes["Append with Python"])
        shown = run(sys.executable, "-c", codes["Read with Python"])
        assert shown == "1\n{'hello': 'world'}\n{'hello': 'world'}\n"
        if node := shutil.which("node"):
            run(node, "--input-type=module", "-e", codes["Append with JavaScript"])
            assert run(node, "--input-type=module", "-e", codes["Read with JavaScript"])
            assert len(filler.read(path)) == 4
            follow = [node, "--input-type=module", "-e", codes["Follow live with JavaScript"]]
            with subprocess.Popen(follow, env=env, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                lines = iter(process.stdout.readline, "")
                next(line for line in lines if "streamNextOffset" in line)  # it is there
                filler.append(path, '{"live": 1}')
                assert any('"live": 1' in line for line in lines)
                process.kill()
