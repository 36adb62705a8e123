"""Visits to the console: a page of a real Chromium that must make no error, ask nobody else and
break no rule of its policy."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

from tests.helpers.server import ROOT, Server

TIMEOUT_MS = 20_000
JSON = {"content-type": "application/json"}
PHONE = {"width": 360, "height": 740}
DESKTOP = {"width": 1280, "height": 800}
AXE = ROOT / "tests" / "conformance" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@contextmanager
def visiting(
    browser: Browser,
    url: str,
    address: str = "",
    *,
    phone: bool = False,
    dark: bool = False,
    expected: str = "",
    fresh: bool = False,
) -> Iterator[Page]:
    """A page at an address of the console, such as `streams?q=a`.

    `expected` is a pattern of what the browser may complain of: answers that are errors. `fresh` is
    for visits that leave a cookie or a choice behind: a browser that has never been here.
    """
    faults: list[str] = []
    own = urlsplit(url).netloc
    context = (new_context if fresh else shared_context)(browser, phone, dark)
    page = context.new_page()

    def said(message: ConsoleMessage) -> None:
        is_fault = message.type in ("error", "warning")
        if is_fault and not (expected and re.search(expected, message.text)):
            faults.append(f"{message.type}: {message.text}")

    def asked(request: Request) -> None:
        if urlsplit(request.url).netloc != own and not request.url.startswith("data:"):
            faults.append(f"asked {request.url}")

    page.set_default_timeout(TIMEOUT_MS)
    page.on("console", said)
    page.on("pageerror", lambda error: faults.append(f"uncaught: {error}"))
    page.on("request", asked)
    try:
        page.goto(f"{url}/#/{address}" if address else f"{url}/")
        yield page
    finally:
        (context if fresh else page).close()
    assert faults == []


def new_context(browser: Browser, phone: bool, dark: bool) -> BrowserContext:
    return browser.new_context(
        viewport=PHONE if phone else DESKTOP,  # type: ignore[arg-type]  # its type is private
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",  # axe would measure what has not faded in yet
    )


# The modules of the console are loaded once for all visits: half of the time of a short one.
shared_context = cache(new_context)


def violations(page: Page, *rules: str) -> list[str]:
    """What axe-core has to say against a page, with the elements that it means; by all of its rules
    or by some."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    result = page.evaluate(
        "only => axe.run(document, {runOnly: only, resultTypes: ['violations']})",
        list(rules or RULES),
    )
    return [
        f"{each['id']}: {[node['html'] for node in each['nodes'][:3]]}"
        for each in result["violations"]
    ]


def is_wider_than_the_screen(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


class Filler:
    """Fills a server with streams, as a program would."""

    def __init__(self, server: Server, token: str = "") -> None:
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._server = server

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        # No TLS: saves loading certificates.
        with httpx.Client(base_url=self._server.url, headers=self._headers, verify=False) as client:
            answer = client.request(method, path, **options)
        assert answer.is_success, answer.text
        return answer

    def create(
        self, path: str, content: str | bytes = b"", headers: Mapping[str, str] = JSON
    ) -> None:
        self.send("PUT", f"/v1/stream/{path}", content=content, headers=dict(headers))

    def append(self, path: str, content: str, **headers: str) -> None:
        self.send("POST", f"/v1/stream/{path}", content=content, headers={**JSON, **headers})

    def read(self, path: str) -> Any:
        return self.send("GET", f"/v1/stream/{path}").json()

    def token(self, *rules: str) -> str:
        return str(self.send("POST", "/v1/tokens", json={"allow": rules}).json()["token"])

    def create_many(self, paths: list[str]) -> None:
        """Create streams with pipelined requests on one connection."""
        head = "Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self._server.port), timeout=60) as sock:
            for start in range(0, len(paths), 200):
                batch = paths[start : start + 200]
                lines = (f"PUT /v1/stream/{path} HTTP/1.1\r\n{head}" for path in batch)
                sock.sendall("".join(lines).encode())
                data = b""
                while data.count(b"\r\n\r\n") < len(batch):
                    data += sock.recv(65536)
                assert data.count(b"HTTP/1.1 201 ") == len(batch), data[:300]
