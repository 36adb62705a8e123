"""The console in a real Chromium: its frame, signing in, the overview and the streams."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount

import penstock
from penstock.protocol.globs import matches
from penstock.protocol.headers import parse_stream_path
from tests.browser.console import (
    Filler,
    is_wider_than_the_screen,
    violations,
    visiting,
)
from tests.helpers.server import Server, running_server

pytestmark = pytest.mark.xdist_group("browser")  # one worker, one Chromium

ROOT = "operator-token"
HOSTILE = "hostile/%3Cimg%20src=x%20onerror=alert(1)%3E"
BIDI = "hostile/%E2%80%AEgnp.exe"
PAGES = ["", "streams", "streams?view=tree", "stream/shop/orders", "nothing"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """An open server with a few streams."""
    with running_server(memory=True, args=["--activity-interval", "0.2"]) as server:
        filler = Filler(server)
        filler.create("shop/orders", '[{"id": 1}, {"id": 2}]')
        filler.create("shop/carts", "[" + ",".join(["1"] * 500) + "]")
        filler.create("sensors/berlin", headers={"content-type": "text/plain"})
        filler.create(HOSTILE)
        filler.create(BIDI)
        yield server


@pytest.fixture(scope="module")
def closed() -> Iterator[Server]:
    """A server with tokens and cookies."""
    with running_server(memory=True, args=["--token", ROOT, "--cookies"]) as server:
        filler = Filler(server, ROOT)
        filler.create("team/a", '[{"secret": false}]')
        filler.create("other/b", '[{"secret": true}]')
        yield server


# The frame


def test_a_browser_is_shown_the_overview(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url) as page:
        Filler(server).append("shop/orders", "3")
        page.get_by_role("heading", name="Overview").wait_for()
        page.locator("#main").get_by_text("Ready").wait_for()
        page.get_by_text(penstock.__version__).wait_for()
        appends = page.get_by_role("img", name="Appends: ")
        appends.wait_for()
        page.get_by_role("region", name="Busiest streams").wait_for()
        assert page.title() == "Overview · Penstock"
        expect(page.locator("figure.chart polyline").first).to_be_attached()
        page.get_by_role("link", name="Docs").click()
        page.get_by_role("heading", name="First steps").wait_for()
        page.get_by_role("row", name="The console").get_by_role("link").click()
        page.get_by_role("heading", name="Overview").wait_for()


def test_addresses_can_be_opened_directly_and_the_back_button_works(
    browser: Browser, server: Server
) -> None:
    with visiting(browser, server.url, "stream/shop/orders") as page:
        page.get_by_role("heading", name="shop/orders").wait_for()
        page.get_by_role("link", name="Overview", exact=True).click()
        page.get_by_role("heading", name="Overview").wait_for()
        page.go_back()
        page.get_by_role("heading", name="shop/orders").wait_for()
        page.goto(f"{server.url}/console#/streams")
        page.get_by_role("heading", name="Streams").wait_for()
        page.goto(f"{server.url}/console/#/streams")
        page.get_by_role("link", name="shop/carts").wait_for()
        page.goto(f"{server.url}/#/nothing")
        page.get_by_role("heading", name="There is no such page").wait_for()


def test_everything_can_be_reached_with_the_keyboard(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url) as page:
        page.get_by_role("heading", name="Overview").wait_for()
        page.keyboard.press("Tab")
        skip = page.get_by_role("link", name="Skip to content")
        expect(skip).to_be_focused()
        assert "0px" not in str(skip.evaluate("each => getComputedStyle(each).outlineWidth"))
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        assert page.title() == "Overview · Penstock"
        page.keyboard.press("/")
        expect(page.locator("#search")).to_be_focused()
        page.keyboard.type("orders")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Streams").wait_for()
        page.get_by_role("link", name="shop/orders").wait_for()
        expect(page.get_by_role("link", name="shop/carts")).to_have_count(0)
        expect(page.locator("#main")).to_be_focused()
        page.keyboard.press("/")
        expect(page.get_by_role("searchbox", name="Filter by path")).to_be_focused()
        page.get_by_role("link", name="shop/orders").focus()
        page.keyboard.press("Enter")
        page.get_by_role("tab", name="Messages").wait_for()
        page.get_by_role("tab", name="Messages").focus()
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name="Append")).to_be_focused()
        page.get_by_role("button", name="Append").wait_for()


def test_the_theme_follows_the_system_or_the_switch(browser: Browser, server: Server) -> None:
    def ground(page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))

    with visiting(browser, server.url, fresh=True) as page:
        theme = page.get_by_role("combobox", name="Theme")
        light = ground(page)
        theme.select_option("dark")
        dark = ground(page)
        assert dark != light
        page.reload()
        expect(theme).to_have_value("dark")
        assert ground(page) == dark
        theme.select_option("system")
        assert ground(page) == light
    with visiting(browser, server.url, dark=True) as page:
        assert ground(page) == dark


@pytest.mark.parametrize("is_phone", [False, True], ids=["light", "dark-phone"])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(
    browser: Browser, server: Server, closed: Server, is_phone: bool
) -> None:
    wrong: dict[str, list[str]] = {}
    # A theme changes the colours, a small screen the places of things.
    rules = ["color-contrast", "target-size"] if is_phone else []

    def check(name: str, page: Page) -> None:
        wrong[name] = violations(page, *rules)
        if is_wider_than_the_screen(page):
            wrong[name].append("it scrolls sideways")

    with visiting(browser, server.url, phone=is_phone, dark=is_phone) as page:
        for address in PAGES:
            page.goto(f"{server.url}/#/{address}")
            page.get_by_role("heading", level=1).or_(page.locator("h2")).first.wait_for()
            expect(page.get_by_text("Loading …")).to_have_count(0)
            check(address, page)
        page.goto(f"{server.url}/#/streams")
        page.get_by_role("button", name="Create stream").click()
        check("create", page)
    with visiting(
        browser, closed.url, phone=is_phone, dark=is_phone, expected="status of 401"
    ) as page:
        page.get_by_role("heading", name="Sign in to Penstock").wait_for()
        check("sign in", page)
    assert {name: faults for name, faults in wrong.items() if faults} == {}


# Signing in


def sign_in(page: Page, token: str, *, stay: bool = False) -> None:
    page.get_by_label("Token").fill(token)
    if stay:
        page.get_by_label("Stay signed in").check()
    page.get_by_role("button", name="Sign in").click()


def test_a_token_is_kept_in_the_page_alone(browser: Browser, closed: Server) -> None:
    with visiting(browser, closed.url, "streams", expected="status of 401", fresh=True) as page:
        sign_in(page, "wrong")
        page.get_by_text("This token is not accepted").wait_for()
        sign_in(page, ROOT)
        page.get_by_role("link", name="other/b").wait_for()
        kept = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
        assert ROOT not in kept
        assert page.context.cookies() == []
        assert ROOT not in page.content()
        page.reload()
        page.get_by_role("heading", name="Sign in to Penstock").wait_for()
        sign_in(page, ROOT)
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("heading", name="Sign in to Penstock").wait_for()


def test_a_cookie_stays_and_no_script_can_read_it(browser: Browser, closed: Server) -> None:
    with visiting(browser, closed.url, "streams", expected="status of 401", fresh=True) as page:
        sign_in(page, ROOT, stay=True)
        page.get_by_role("link", name="other/b").wait_for()
        (cookie,) = page.context.cookies()
        assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
        assert ROOT not in str(cookie.get("value"))
        assert page.evaluate("document.cookie") == ""
        page.reload()
        page.get_by_role("link", name="other/b").wait_for()
        # Changes go through as well: they come from the server's own page.
        page.goto(f"{closed.url}/#/stream/other/b")
        page.get_by_role("tab", name="Append").click()
        page.get_by_label("What to append").fill('{"by": "cookie"}')
        page.get_by_role("button", name="Append", exact=True).click()
        page.get_by_text("Appended.").wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("heading", name="Sign in to Penstock").wait_for()
        assert page.context.cookies() == []


def test_a_guest_sees_what_its_rules_allow(browser: Browser, closed: Server) -> None:
    guest = Filler(closed, ROOT).token("read:team/**", "list:team/**")
    with visiting(browser, closed.url, "streams", expected="status of 40[134]") as page:
        sign_in(page, guest)
        page.get_by_role("link", name="team/a").wait_for()
        expect(page.get_by_role("link", name="other/b")).to_have_count(0)
        expect(page.get_by_role("button", name="Create stream")).to_be_disabled()
        page.get_by_role("link", name="team/a").click()
        page.get_by_text('{"secret": false}').wait_for()
        for name in ("Close", "Trim", "Delete"):
            button = page.get_by_role("button", name=name, exact=True)
            expect(button).to_be_disabled()
            assert "Not allowed" in str(button.get_attribute("title"))
        page.get_by_role("tab", name="Append").click()
        page.get_by_text("append:team/a").wait_for()
        page.goto(f"{closed.url}/#/stream/other/b")
        page.get_by_role("heading", name="There is no such stream").wait_for()
        page.goto(f"{closed.url}/#/")
        page.get_by_role("heading", name="Activity is not shown").wait_for()


def test_a_token_that_ends_leads_back_to_the_form(browser: Browser, closed: Server) -> None:
    filler = Filler(closed, ROOT)
    guest = filler.token("read:team/**", "list:team/**")
    with visiting(browser, closed.url, "stream/team/a", expected="status of 401") as page:
        sign_in(page, guest)
        page.get_by_text('{"secret": false}').wait_for()
        filler.send("DELETE", f"/v1/tokens/{guest.split('_')[1]}")
        page.get_by_role("heading", name="Sign in to Penstock").wait_for()


# Where it is mounted


@contextmanager
def mounted() -> Iterator[str]:
    """A server within another application, below a path of it."""
    app = penstock.asgi(memory=True)
    config = uvicorn.Config(
        Starlette(routes=[Mount("/deep/er", app)]), port=0, log_level="error", lifespan="off"
    )
    outer = uvicorn.Server(config)
    sock = config.bind_socket()
    sock.listen()  # a page may come before the thread has got that far
    thread = threading.Thread(target=outer.run, kwargs={"sockets": [sock]}, name="outer")
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/deep/er"
    finally:
        outer.should_exit = True
        thread.join()


def test_the_console_works_below_another_application(browser: Browser) -> None:
    with mounted() as url, visiting(browser, url) as page:
        page.get_by_role("heading", name="Overview").wait_for()
        page.goto(f"{url}/console#/streams")
        page.get_by_role("button", name="Create stream").click()
        page.get_by_role("dialog").get_by_label("Path").fill("below")
        page.get_by_label("First content").fill("[1]")
        page.get_by_role("button", name="Create", exact=True).click()
        page.get_by_role("heading", name="below").wait_for()
        expect(page.locator(".rows li")).to_have_count(1)
        page.get_by_role("tab", name="Code").click()
        expect(page.locator("pre.code").first).to_contain_text("/deep/er/v1/stream/below")


# What it decides itself, as the server does


def test_rules_and_paths_mean_what_they_mean_to_the_server(
    browser: Browser, server: Server
) -> None:
    chance = random.Random(17)
    segments = ["a", "b", "ab", "*", "a*", "*b", "a*b", "**"]

    def some(choices: list[str]) -> str:
        return "/".join(chance.choices(choices, k=chance.randint(1, 4)))

    pairs = [(some(segments), some(["a", "b", "ab", "axb", "ba"])) for _ in range(2000)]
    texts = ["a b", "ü/日本", "100%", "a%20b", "~!$&'()*+,;=:@", "?#[]", '"<>\\^`{|}', "/a//"[:3]]
    with visiting(browser, server.url) as page:
        base = page.evaluate("document.querySelector('script[type=module]').src")
        decided = page.evaluate(
            """async ([base, pairs]) => {
                const { matches } = await import(new URL("lib/session.js", base));
                return pairs.map(([one, other]) => matches(one.split("/"), other.split("/")));
            }""",
            [base, pairs],
        )
        paths = page.evaluate(
            """async ([base, texts]) => {
                const { canonicalPath, pathText } = await import(new URL("lib/format.js", base));
                return texts.map(text => [canonicalPath(text), pathText(canonicalPath(text))]);
            }""",
            [base, texts],
        )
    assert decided == [matches(*pair) for pair in pairs]
    assert 0 < sum(decided) < len(decided)
    for text, (path, shown) in zip(texts, paths, strict=True):
        assert parse_stream_path(path.encode()) == path
        assert shown == text.strip("/")


# Streams


def paths(page: Page) -> list[str]:
    page.get_by_role("region", name="Streams").wait_for()
    return page.locator("tbody tr td:first-child a").all_inner_texts()


def test_streams_are_sorted_filtered_and_shown_as_a_tree(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url, "streams") as page:
        page.get_by_role("link", name="shop/orders").wait_for()
        page.get_by_role("button", name="Size").click()
        assert paths(page)[0] == "shop/carts"
        expect(page.get_by_role("columnheader", name="Size")).to_have_attribute(
            "aria-sort", "descending"
        )
        page.get_by_role("button", name="Size").click()
        assert paths(page)[-1] == "shop/carts"
        assert page.url.endswith("#/streams?sort=bytes")
        page.get_by_role("searchbox", name="Filter by path").fill("SHOP carts")
        assert paths(page) == ["shop/carts"]
        page.get_by_role("searchbox", name="Filter by path").fill("nothing like it")
        page.get_by_text("No path contains this text.").wait_for()
        page.get_by_role("searchbox", name="Filter by path").fill("")
        page.get_by_role("button", name="Tree").click()
        shop = page.get_by_role("button", name="shop/")
        expect(shop).to_have_attribute("aria-expanded", "false")
        shop.click()
        page.get_by_role("link", name="carts", exact=True).click()
        page.get_by_role("heading", name="shop/carts").wait_for()
        page.go_back()
        expect(page.get_by_role("button", name="Tree")).to_have_attribute("aria-pressed", "true")


def test_a_page_that_is_left_changes_no_other_address(browser: Browser, server: Server) -> None:
    """What it has waited for may come when the address has changed, and nothing is drawn yet."""
    leave = """async (script) => {
        const { replaceQuery } = await import(script);
        location.hash = "#/streams?view=tree";
        replaceQuery({ tail: "10" });
        return location.hash;
    }"""
    with visiting(browser, server.url, "stream/shop/carts") as page:
        page.get_by_role("heading", name="shop/carts").wait_for()
        script = page.locator("script[type=module]").evaluate("each => each.src")
        script = script.rpartition("/")[0] + "/lib/pages.js"
        assert page.evaluate(leave, script) == "#/streams?view=tree"
        expect(page.get_by_role("button", name="Tree")).to_have_attribute("aria-pressed", "true")


def test_a_press_reaches_what_was_shown_when_it_began(browser: Browser, server: Server) -> None:
    """What is polled must not be drawn again between press and release: the click would be lost."""
    with visiting(browser, server.url, "streams") as page:
        page.get_by_role("searchbox", name="Filter by path").focus()
        page.get_by_role("link", name="shop/carts").hover()
        with page.expect_response("**/v1/activity*") as response:  # rates come after 1.2 seconds
            page.mouse.down()
        response.value.finished()
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        page.mouse.up()
        page.get_by_role("heading", name="shop/carts").wait_for()


@pytest.mark.soak  # it waits for rates
def test_last_writes_and_rates_are_shown(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url, "streams?sort=-touched_at") as page:
        page.get_by_role("link", name="shop/orders").wait_for()
        row = page.get_by_role("row", name="shop/orders")
        filler = Filler(server)

        def written() -> bool:
            filler.append("shop/orders", "4")
            return "/s" in row.inner_text()

        page.wait_for_function("document.querySelectorAll('tbody tr').length >= 5")
        for _ in range(200):
            if written():
                break
            page.wait_for_timeout(100)
        assert written()


def test_paths_of_any_kind_are_created_and_opened(browser: Browser, server: Server) -> None:
    names = ["a b/ü/100%", "<script>alert(1)</script>", "what?#not", "日本/語"]
    with visiting(browser, server.url, "streams", expected="status of 409") as page:
        for name in names:
            page.goto(f"{server.url}/#/streams")
            page.get_by_role("button", name="Create stream").click()
            page.get_by_role("dialog").get_by_label("Path").fill(name)
            page.get_by_role("button", name="Create", exact=True).click()
            expect(page.get_by_role("heading", level=1)).to_contain_text(name)
            expect(page.locator(".rows")).to_have_attribute("data-state", "live")
        page.goto(f"{server.url}/#/streams")
        page.get_by_role("button", name="Create stream").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Path").fill("shop/orders")
        dialog.locator("select[name=type]").select_option("text/plain")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(dialog.get_by_role("alert").first).to_contain_text("Content-Type is")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
    found = {entry["path"] for entry in Filler(server).send("GET", "/v1/streams").json()["streams"]}
    assert {"a%20b/%C3%BC/100%25", "what%3F%23not", "%E6%97%A5%E6%9C%AC/%E8%AA%9E"} <= found


def test_hostile_paths_are_text_and_hide_nothing(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url, "streams") as page:
        page.get_by_role("link", name="<img src=x onerror=alert(1)>").wait_for()
        link = page.get_by_role("link", name="gnp.exe")
        assert link.inner_text() == "hostile/\\u{202e}gnp.exe"
        assert "\u202e" not in page.content()
        link.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("\\u{202e}gnp.exe")
        assert "\u202e" not in page.title() + page.content()
        page.goto(f"{server.url}/#/stream/{HOSTILE}")
        expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x")
        assert page.locator("main img").count() == 0


def test_ten_thousand_streams_are_searched_and_sorted(browser: Browser) -> None:
    with running_server(memory=True) as many:
        Filler(many).create_many([f"many/{each % 100:02d}/{each:05d}" for each in range(10_000)])
        with visiting(browser, many.url, "streams") as page:
            page.get_by_text("10,000 streams").wait_for()
            assert page.locator("tbody tr").count() < 200
            region = page.get_by_role("region", name="Streams")
            region.evaluate("each => each.scrollTo(0, each.scrollHeight)")
            page.get_by_role("link", name="many/99/09999").wait_for()
            page.get_by_role("button", name="Path").click()
            region.evaluate("each => each.scrollTo(0, 0)")
            page.get_by_role("link", name="many/99/09999").wait_for()
            page.get_by_role("searchbox", name="Filter by path").fill("/04242")
            page.get_by_text("1 of 10,000 streams").wait_for()
            page.get_by_role("link", name="many/42/04242").wait_for()
            page.get_by_role("searchbox", name="Filter by path").fill("")
            page.get_by_role("button", name="Tree").click()
            page.get_by_text("100 streams, 0 B").first.wait_for()
