"""A real Chromium without a window, and web sites on this machine that it visits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from playwright.sync_api import Browser, sync_playwright

# The first has no windows at all, and opens pages in a third of the time.
NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
# Every name below `example` is this machine: pages of other sites without other machines.
RESOLVER = "MAP *.example 127.0.0.1"


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A Chromium of this machine; the test is skipped where there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium; `make test` installs one where apt-get can")
    with sync_playwright() as playwright:
        # No sandbox: root, as in containers, cannot have one, and the pages are our own.
        # One process for all pages of a site: most of what opening another one costs.
        args = ["--no-sandbox", "--process-per-site", f"--host-resolver-rules={RESOLVER}"]
        browser = playwright.chromium.launch(executable_path=path, args=args)
        try:
            yield browser
        finally:
            browser.close()


class BlankPage(BaseHTTPRequestHandler):
    """Answers every path with an empty page: what it does is up to the test."""

    def do_GET(self) -> None:
        body = b"<!doctype html><title>page</title>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing to stderr."""


@contextmanager
def running_site() -> Iterator[int]:
    """A web site with blank pages; its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BlankPage) as site:
        thread = Thread(target=site.serve_forever, name="site")
        thread.start()
        try:
            yield site.server_address[1]
        finally:
            site.shutdown()
            thread.join()
