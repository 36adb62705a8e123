"""The console in a real Chromium: tables, peers, subscriptions, access, pipelines; the pages of
the documentation; and all pages without violations, on a phone and in the dark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.console import (
    TIMEOUT_MS,
    Filler,
    is_wider_than_the_screen,
    violations,
    visiting,
)
from tests.cluster.workload import QUICK, Cluster
from tests.helpers.postgres import needs_postgres, shared
from tests.helpers.server import Server, running_server
from tests.spark.warehouse_bench import USER, WarehouseBench, put

pytestmark = pytest.mark.xdist_group("browser")  # one worker, one Chromium

ROOT = "operator-token"
SCRIPT = "<img src=x onerror=alert(1)>"
TOML = """
[source]
url = "http://127.0.0.1:9"
streams = ["s"]
attempts = 1
[warehouse]
path = "warehouse"
[types.user]
schema = "name STRING, age INT"
expect.named = "name <> ''"
"""
PAGES = [
    "state",
    "state/shop/users",
    "state/shop/users?type=user&key=1",
    "tables",
    "tables/prices",
    "subscriptions",
    "subscriptions/mailer",
    "peers",
    "pipelines",
    "access",
]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse of two batches with dead letters."""
    folder = tmp_path_factory.mktemp("shop")
    bench = WarehouseBench(folder / "warehouse", {"user": USER}, has_positions=True)
    bench.batch(put("a", json.dumps({"name": SCRIPT})), put("b", '{"name":1}'))
    bench.batch(put("c", '{"name":"Cy"}'))
    bench.duck.close()
    bench.warehouse.close()
    file = folder / "pipeline.toml"
    file.write_text(TOML)
    return file


@pytest.fixture(scope="module")
def server(pipeline: Path) -> Iterator[Server]:
    args = ["--pipelines", f"shop={pipeline}", "--development"]
    with running_server(memory=True, args=args) as server:
        filler = Filler(server)
        event = {"type": "user", "key": "1", "value": {"n": 1}, "headers": {"operation": "upsert"}}
        filler.create("shop/users", json.dumps([event]))
        filler.send("PUT", "/v1/table/prices", json={"schema": "price_list"})
        filler.send("PUT", "/v1/table/prices?key=tea", content="2.40")
        filler.create("wakes")
        subscription = {"type": "pull-wake", "pattern": "shop/**", "wake_stream": "wakes"}
        filler.send("PUT", "/v1/stream/__ds/subscriptions/mailer", json=subscription)
        filler.append("shop/users", json.dumps(event))
        yield server


@pytest.fixture(scope="module")
def closed() -> Iterator[Server]:
    with running_server(memory=True, args=["--token", ROOT]) as server:
        yield server


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_rows_of_a_table_come_live(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url, "tables") as page:
        page.get_by_role("link", name="prices").click()
        rows = page.get_by_role("region", name="Rows")
        expect(rows).to_contain_text("2.40")
        page.locator("#main").get_by_text("price_list", exact=True).wait_for()
        page.locator("#main").get_by_text("live", exact=True).wait_for()
        Filler(server).send("PUT", "/v1/table/prices?key=hostile", content=SCRIPT)
        expect(rows).to_contain_text(SCRIPT)
        page.get_by_role("tab", name="Live keys").click()
        keys = page.get_by_role("region", name="Live keys")
        expect(keys).to_contain_text("tea")
        Filler(server).send("PUT", "/v1/table/prices?key=tea", content="2.60")
        expect(keys).to_contain_text("2.60")
        page.get_by_role("tab", name="Listeners").click()
        page.get_by_text("No other server has asked to be notified.").wait_for()


def test_a_table_of_another_server_is_followed_and_left(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url, "peers", expected="40[03]") as page:
        page.get_by_role("button", name="Follow a table").click()
        page.get_by_label("State URL").fill("http://127.0.0.1:1/")
        page.get_by_label("Table here").fill("mirrors/prices")
        page.get_by_label("State URL").fill(f"{server.url}/v1/table/prices")
        page.get_by_role("button", name="Follow", exact=True).click()
        mirrors = page.get_by_role("region", name="Mirrors")
        mirrors.get_by_role("link", name="mirrors/prices").wait_for()
        mirrors.get_by_role("button", name="End").click()
        page.get_by_role("button", name="End the mirror").click()
        page.get_by_role("heading", name="No mirrors").wait_for()


def test_a_subscription_shows_its_lag_and_is_deleted(browser: Browser, server: Server) -> None:
    filler = Filler(server)
    subscription = {"type": "pull-wake", "streams": ["shop/users"], "wake_stream": "wakes"}
    filler.send("PUT", "/v1/stream/__ds/subscriptions/old", json=subscription)
    with visiting(browser, server.url, "subscriptions") as page:
        behind = page.get_by_role("row", name="mailer").get_by_text("1 stream")
        behind.wait_for()
        page.get_by_role("link", name="mailer").click()
        page.get_by_role("row", name="shop/users").get_by_text("85 B").wait_for()
        page.get_by_role("link", name="All subscriptions").click()
        page.get_by_role("link", name="old").click()
        page.get_by_text("up to date").wait_for()
        page.get_by_role("button", name="Delete …").click()
        expect(page.get_by_role("button", name="Delete", exact=True)).to_be_disabled()
        page.get_by_label("Type old to confirm").fill("old")
        page.get_by_role("button", name="Delete", exact=True).click()
        page.get_by_role("link", name="mailer").wait_for()
        expect(page.get_by_role("link", name="old")).to_have_count(0)


def test_tokens_are_created_shown_once_and_revoked(browser: Browser, closed: Server) -> None:
    with visiting(browser, closed.url, "access", expected="40[013]") as page:
        sign_in(page, ROOT)
        page.get_by_role("button", name="Create token").click()
        page.get_by_label("Name").fill("mailer")
        page.get_by_label("Rules").fill("read")
        page.get_by_role("button", name="Create", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("Invalid access rule")
        page.get_by_label("Rules").fill("read:chat/**\nlist:chat/**")
        page.get_by_role("button", name="Create", exact=True).click()
        shown = page.get_by_role("dialog", name="The new token")
        token = shown.locator("code").inner_text()
        shown.get_by_role("button", name="Done").click()
        expect(page.get_by_role("row", name="mailer")).to_contain_text("read:chat/**")
        page.get_by_role("tab", name="Audit log").click()
        expect(page.get_by_role("region", name="Audit log")).to_contain_text("token.create")
        with visiting(browser, closed.url, "access", expected="40[13]") as other:
            sign_in(other, token)
            other.get_by_text("Your token may not see tokens").wait_for()
            expect(other.get_by_role("link", name="Access")).to_have_count(0)
            other.goto(f"{closed.url}/#/pipelines")
            other.get_by_text("read:__ds/pipelines").wait_for()
        page.get_by_role("tab", name="Tokens").click()
        page.get_by_role("row", name="mailer").get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        page.get_by_role("heading", name="No tokens").wait_for()


@pytest.mark.soak  # every answer is a process of its own
def test_a_pipeline_is_shown_queried_and_replayed(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url, "pipelines", expected="422") as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        page.get_by_role("link", name="shop").click()
        # Each answer of a pipeline is that of a process of its own.
        expect(page.get_by_text("not running")).to_be_visible(timeout=TIMEOUT_MS)
        page.get_by_role("img", name="Time of a batch").wait_for()
        expect(page.get_by_role("region", name="Runs").get_by_role("row")).to_have_count(2)
        expect(page.get_by_role("region", name="State tables")).to_contain_text("user")
        streams = page.get_by_role("region", name="Streams").get_by_role("row")
        expect(streams).to_have_count(2)
        # The server of the streams does not answer; one message of ten bytes was in the last batch.
        expect(streams.last).to_have_text(re.compile(r"^s––[\d.]+/s[\d.]+ (Ki)?B/s$"))
        page.get_by_role("tab", name="SQL").click()
        query = page.get_by_role("textbox", name="Query")
        query.fill("SELECT _key, name FROM state_user ORDER BY _key")
        page.keyboard.press("Control+Enter")
        expect(page.get_by_role("region", name="Result")).to_contain_text(
            SCRIPT, timeout=TIMEOUT_MS
        )
        query.fill("SELECT * FROM nosuch")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("alert")).to_contain_text(
            "nosuch does not exist", timeout=TIMEOUT_MS
        )
        page.get_by_text("history_user", exact=True).click()
        page.get_by_text("_valid_from_ordinal").wait_for()
        assert violations(page) == []
        page.get_by_role("tab", name="Dead letters").click()
        letters = page.get_by_role("region", name="Dead letters")
        expect(letters.get_by_role("link", name="s")).to_be_visible(timeout=TIMEOUT_MS)
        reasons = page.get_by_role("region", name="Reasons")
        expect(reasons).to_contain_text("value.name")
        page.get_by_role("button", name="Replay …").first.click()
        page.get_by_role("button", name="Replay", exact=True).click()
        done = page.get_by_text("0 replayed, 1 still invalid")
        expect(done).to_be_visible(timeout=TIMEOUT_MS)
        reasons.get_by_role("button", name="Show").click()
        page.get_by_text("Only: value.name").wait_for()
        assert violations(page) == []
        reasons.get_by_role("button", name="Replay …").click()
        page.get_by_label("New value").fill("json_object('name', 'Bob')")
        page.get_by_role("button", name="Replay", exact=True).click()
        expect(page.get_by_text("1 replayed, 0 still invalid")).to_be_visible(timeout=TIMEOUT_MS)
        page.get_by_role("tab", name="Progress").click()
        expect(page.get_by_role("region", name="Expectations")).to_contain_text("name <> ''")
        assert violations(page) == []


@needs_postgres
def test_the_nodes_of_a_cluster_and_their_shards(browser: Browser) -> None:
    dsn = shared().fresh_database()
    options = ("--cluster-durability", "single", *QUICK)
    with ExitStack() as stack:
        cluster = Cluster(stack, dsn, *options, shards=4)
        first, second = cluster.start(2)
        cluster.settle()
        with visiting(browser, first.url, expected="503") as page:
            page.get_by_role("link", name="Cluster", exact=True).click()
            page.get_by_role("heading", name="Cluster").wait_for()
            page.get_by_text("all shards owned").wait_for()
            nodes = page.get_by_role("region", name="Nodes").locator("tbody tr")
            expect(nodes.filter(has_text="lives")).to_have_count(2)
            shards = page.get_by_role("region", name="Shards").locator("tbody tr")
            expect(shards).to_have_count(4)
            page.get_by_text("none connected").wait_for()
            assert violations(page) == []
            second.kill()
            expect(nodes.filter(has_text="silent")).to_have_count(1)
            page.get_by_text("all shards owned").wait_for()
            args = (*options, "--cluster", dsn, "--cluster-node", "odd", "--quotas", "x/=1streams")
            stack.enter_context(running_server(args=args))
            page.get_by_text("Nodes have different values of quotas").wait_for()
        with visiting(browser, first.url, "cluster", phone=True, dark=True) as page:
            page.get_by_text("Nodes have different values of quotas").wait_for()
            assert violations(page, "color-contrast", "target-size") == []
            assert not is_wider_than_the_screen(page)


def test_a_server_that_is_no_node_has_no_page_of_a_cluster(
    browser: Browser, server: Server
) -> None:
    with visiting(browser, server.url, "cluster", expected="404") as page:
        page.get_by_text("This server is not a node of a cluster").wait_for()
        expect(page.get_by_role("link", name="Cluster", exact=True)).to_have_count(0)


def test_the_documentation_is_plain_pages(browser: Browser, server: Server) -> None:
    with visiting(browser, server.url, phone=True, dark=True) as page:
        for address in ("docs", "docs/api", "problems", "problems/stream-closed"):
            page.goto(f"{server.url}/{address}")
            page.get_by_role("heading", level=1).wait_for()
            assert not is_wider_than_the_screen(page), address
            if address in ("docs", "problems/stream-closed"):  # the others are long, and alike
                assert violations(page) == [], address
        page.get_by_role("link", name="Errors", exact=True).click()
        page.get_by_role("link", name="stream-trimmed", exact=True).click()
        page.get_by_role("heading", name="What to do").wait_for()


@pytest.mark.parametrize("is_phone", [False, True], ids=["light", "dark-phone"])
def test_no_page_has_violations_or_is_too_wide(
    browser: Browser, server: Server, is_phone: bool
) -> None:
    with visiting(browser, server.url, phone=is_phone, dark=is_phone) as page:
        for address in PAGES:
            page.goto(f"{server.url}/#/{address}")
            page.get_by_role("heading", level=1).wait_for()
            expect(page.get_by_text("Loading …")).to_have_count(0)
            expect(page.locator("nav [aria-current=page]")).to_be_in_viewport()
            assert violations(page) == [], address
            assert not is_wider_than_the_screen(page), address
