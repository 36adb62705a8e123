"""Takes the pictures of docs/console.md: a server with demo data, visited with Chromium."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, sync_playwright

import penstock
from penstock.spark.type_schema import type_schema
from penstock.state.events import upsert
from penstock.stp import Table
from tests.browser.chromium import NAMES
from tests.helpers.server import running_server
from tests.spark.warehouse_bench import WarehouseBench, put

IMAGES: Final = Path(__file__).resolve().parents[1] / "docs" / "images"
SETTLE_MS: Final = 1_500  # until live parts have shown something
WARM_UP_S: Final = 8
SEED: Final = 17
CUSTOMERS: Final = (
    ("ada", {"name": "Ada", "city": "London", "tags": ["early"]}),
    ("grace", {"name": "Grace", "city": "Arlington"}),
    ("linus", {"name": "Linus", "city": "Helsinki"}),
    ("ada", {"name": "Ada", "city": "Paris", "tags": ["early", "vip"]}),
    ("linus", {"name": "Linus", "city": "Portland"}),
    ("ada", {"name": "Ada Lovelace", "city": "Paris", "tags": ["vip"]}),
    *((f"guest-{number}", {"name": f"Guest {number}", "city": "Oslo"}) for number in range(6)),
)
PIPELINE: Final = """
[source]
url = "{url}"
streams = ["shop/customers"]
attempts = 1
[warehouse]
path = "warehouse"
[types.customer]
schema = "name STRING, city STRING"
"""


@dataclass(frozen=True, kw_only=True)
class Shot:
    """A picture: the name of its file, the address of the page, and what is done there first."""

    name: str
    address: str
    dark: bool = False
    phone: bool = False
    prepare: Callable[[Page], None] | None = None


def _open_message(page: Page) -> None:
    page.locator(".rows > li").nth(-8).locator("summary").click()
    page.locator(".message").scroll_into_view_if_needed()


def _open_tab(name: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("tab", name=name).click()


def _open_tree(page: Page) -> None:
    page.get_by_role("button", name="shop/", exact=True).click()
    page.get_by_role("button", name="sensors/", exact=True).click()


def _open_entity(page: Page) -> None:
    slider = page.get_by_role("slider")
    slider.focus()
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    page.get_by_role("button", name="ada", exact=True).click()


def _run_query(page: Page) -> None:
    page.get_by_text("not running").wait_for()
    page.get_by_role("tab", name="SQL").click()
    page.get_by_role("textbox", name="Query").fill(
        "SELECT city, count(*) AS customers FROM state_customer GROUP BY city ORDER BY city"
    )
    page.get_by_role("button", name="Run").click()
    page.get_by_role("region", name="Result").wait_for()
    # The folder of this run would be another one in every picture.
    place = page.locator("code", has_text="/warehouse").first
    place.evaluate("each => (each.textContent = '/srv/shop/warehouse')")


# To add a page of the console, add a line here and show its picture in docs/console.md.
SHOTS: Final = (
    Shot(name="overview", address=""),
    Shot(name="overview-dark", address="", dark=True),
    Shot(name="streams", address="streams?sort=-bytes"),
    Shot(name="streams-tree-phone", address="streams?view=tree", phone=True, prepare=_open_tree),
    Shot(name="stream", address="stream/shop/orders", prepare=_open_message),
    Shot(name="stream-dark", address="stream/shop/orders", dark=True, prepare=_open_tab("Forks")),
    Shot(name="stream-phone", address="stream/shop/orders", phone=True),
    Shot(name="state", address="state/shop/customers", prepare=_open_entity),
    Shot(name="state-phone", address="state/shop/customers", phone=True, dark=True),
    Shot(name="table", address="tables/shop/prices"),
    Shot(name="pipeline", address="pipelines/shop", prepare=_run_query),
)


class Demo:
    """A small shop: fills streams, and goes on writing until it is stopped."""

    def __init__(self, url: str) -> None:
        self._client = penstock.Client(url)
        self._random = random.Random(SEED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo")
        self._orders = 0

    def fill(self) -> None:
        for path in ("shop/carts", "shop/payments", "shop/customers"):
            self._client.stream(path).create()
        for place in ("berlin", "oslo", "lisbon"):
            self._client.stream(f"sensors/{place}/temperature").create()
        self._client.stream("logs/web").create(content_type="text/plain")
        orders = self._client.stream("shop/orders")
        orders.create()
        for _ in range(400):
            orders.append(self._order())
        orders.fork("shop/orders-audit")
        rehearsal = orders.fork("shop/orders-rehearsal")
        rehearsal.append(self._order())
        rehearsal.fork("shop/orders-rehearsal-2")
        self._fill_state()

    def _fill_state(self) -> None:
        customers = self._client.stream("shop/customers")
        for key, value in CUSTOMERS:
            customers.append(upsert("customer", key, value).to_json())
        prices = Table(self._client, "shop/prices")
        prices.create("price_list")
        for key, price in (("tea", "2.40"), ("coffee", "3.10"), ("kettle", "39.00")):
            prices.put(key, price)

    def _order(self) -> dict[str, object]:
        self._orders += 1
        items = ["tea", "coffee", "kettle", "cup", "spoon"]
        return {
            "id": self._orders,
            "item": self._random.choice(items),
            "count": self._random.randint(1, 5),
            "price": round(self._random.uniform(2, 60), 2),
            "customer": {"name": self._random.choice(["Ada", "Grace", "Linus"]), "vip": False},
        }

    def _run(self) -> None:
        log = self._client.stream("logs/web", content_type="text/plain")
        while not self._stop.wait(0.05):
            wave = 3 + int(3 * self._random.random() + 2 * (time.time() % 4))
            self._client.stream("shop/carts").read("now")
            self._client.stream("shop/orders").append_many([self._order() for _ in range(wave)])
            self._client.stream("shop/carts").append({"items": wave})
            if wave % 2:
                celsius = round(self._random.gauss(19, 2), 1)
                self._client.stream("sensors/berlin/temperature").append({"celsius": celsius})
                log.append(f"GET /cart/{wave} 200\n")

    def __enter__(self) -> Demo:
        self.fill()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()


@contextmanager
def _browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        sys.exit("There is no Chromium: the screenshots stay as they are.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def take(browser: Browser, url: str, shot: Shot, folder: Path) -> None:
    size = {"width": 360, "height": 700} if shot.phone else {"width": 1120, "height": 700}
    with browser.new_context(
        viewport=size,  # type: ignore[arg-type]  # its type is private
        color_scheme="dark" if shot.dark else "light",
        reduced_motion="reduce",
    ) as context:
        page = context.new_page()
        page.goto(f"{url}/#/{shot.address}")
        page.wait_for_timeout(SETTLE_MS)
        if shot.prepare is not None:
            shot.prepare(page)
            page.wait_for_timeout(SETTLE_MS / 3)
        page.screenshot(path=folder / f"console-{shot.name}.png")


def _make_warehouse(folder: Path) -> None:
    """Write the tables of a pipeline over the customers."""
    schema = type_schema("name STRING, city STRING")
    bench = WarehouseBench(folder / "warehouse", {"customer": schema})
    for key, value in CUSTOMERS:
        bench.batch({**put(key, json.dumps(value)), "type": "customer", "stream": "shop/customers"})
    bench.batch({**put("x", '{"name": 1}'), "type": "customer", "stream": "shop/customers"})
    bench.duck.close()
    bench.warehouse.close()


def main(folder: Path = IMAGES) -> None:
    folder.mkdir(exist_ok=True)
    with (
        _browser() as browser,
        tempfile.TemporaryDirectory(prefix="shop-") as place,
        running_server(
            args=[
                *("--activity-interval", "0.2"),
                *("--pipelines", f"shop={place}/pipeline.toml"),
            ]
        ) as server,
        Demo(server.url),
    ):
        _make_warehouse(Path(place))
        Path(place, "pipeline.toml").write_text(PIPELINE.format(url=server.url))
        time.sleep(WARM_UP_S)
        for shot in SHOTS:
            take(browser, server.url, shot, folder)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("console-*.png"))}
    sys.stdout.write(json.dumps(sizes, indent=2) + "\n")


if __name__ == "__main__":
    main()
