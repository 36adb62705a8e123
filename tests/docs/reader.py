"""A reader who does what a page says: a server, a folder for files, shells, Node and Chromium."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Self

from playwright.sync_api import Browser, Page, Request, Route, expect

from tests.browser.chromium import running_browser
from tests.docs.blocks import ROOT, Block
from tests.helpers.server import running_server

NODE_MODULES = ROOT / "tests" / "conformance" / "node_modules"
SERVER = "4437"  # the ports in the pages; each is another one while they are run
SITE = "8080"
OTHERS = ("4438", "4439", "8000")
TIMEOUT_S = 300  # Spark needs a while on a busy machine
SHOWN_MS = 30_000
BUNDLE = """
import { rolldown } from "rolldown";
const bundle = await rolldown({ input: process.argv[1], platform: "browser", logLevel: "silent" });
console.log((await bundle.generate({ format: "esm", inlineDynamicImports: true })).output[0].code);
"""


class Reader:
    """The blocks of one page, run in order against one server and in one folder."""

    def __init__(self, folder: Path, ports: dict[str, int], browser: Browser | None) -> None:
        self._folder = folder
        self._ports = ports
        self._browser = browser
        self._page: Page | None = None
        self._groups: list[int] = []
        self._problems: list[str] = []

    def follow(self, block: Block) -> str:
        """Run a block and what the comments after it say; return what it printed."""
        printed = ""
        if block.file is not None:
            (self._folder / block.file).write_text(self._here(block.code))
        else:
            printed = self._run(block.language, self._here(block.code))
        kinds = [kind for kind, _ in block.checks]
        if block.language == "html" and "shows" in kinds and "opens" not in kinds:
            self._open(f"http://localhost:{self._ports[SITE]}/{block.file}")
        for kind, text in block.checks:
            self._check(kind, self._here(text), printed, block.code)
        return printed

    def close(self) -> None:
        """End what the shells left running in the background."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def _here(self, text: str) -> str:
        """Return a text with the ports of this run."""
        port = "|".join(self._ports)
        return re.sub(
            rf"((?:127\.0\.0\.1|localhost):|--port )({port})\b",
            lambda match: f"{match[1]}{self._ports[match[2]]}",
            text,
        )

    def _run(self, language: str, code: str) -> str:
        command = {
            "sh": ["bash", "-euo", "pipefail", "-c", code],
            "python": [sys.executable, "-c", code],
            "js": ["node", "--input-type=module", "--eval", code],
        }[language]
        folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
        # Files, not pipes: what runs on in the background would keep a pipe open.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env={**os.environ, "PATH": os.pathsep.join(folders)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            self._groups.append(process.pid)
            code_of_exit = process.wait(TIMEOUT_S)
            out.seek(0)
            err.seek(0)
            printed = out.read()
            assert code_of_exit == 0, f"{code}\n{printed}\n{err.read()}"
        return printed

    def _check(self, kind: str, text: str, printed: str, code: str) -> None:
        if kind == "prints":
            assert text in printed, f"{code}\nprinted\n{printed}"
        elif kind == "opens":
            self._open(text)
        elif kind == "shows":
            assert self._page is not None, f"no page is open to show {text!r}"
            body = self._page.locator("body")
            try:
                expect(body).to_contain_text(text, use_inner_text=True, timeout=SHOWN_MS)
            finally:
                assert self._problems == []
        else:
            raise AssertionError(f"there is no check {kind!r}")

    def _open(self, url: str) -> None:
        assert self._browser is not None
        self._page = self._browser.new_page()
        self._page.on("pageerror", lambda error: self._problems.append(str(error)))
        self._page.route(re.compile("^https:"), self._fetch)
        self._page.goto(url)

    def _fetch(self, route: Route, request: Request) -> None:
        """Answer for esm.sh with the installed package; refuse everything else."""
        package = re.match(r"https://esm\.sh/((?:@[\w-]+/)?[\w./-]+)(?:@[\w.^-]+)?$", request.url)
        if package is None:
            self._problems.append(f"the page asked for {request.url}")
            route.abort()
        else:
            headers = {"access-control-allow-origin": "*"}
            body = bundle_of(package[1])
            route.fulfill(body=body, content_type="text/javascript", headers=headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def reading(blocks: list[Block]) -> Iterator[Reader]:
    """A reader of a page with these blocks; Chromium runs only if one of them needs it."""
    with ExitStack() as cleanup:
        scratch = tempfile.TemporaryDirectory(prefix="penstock-docs-", ignore_cleanup_errors=True)
        folder = Path(cleanup.enter_context(scratch))
        (folder / "node_modules").symlink_to(NODE_MODULES)
        (folder / "examples").symlink_to(ROOT / "examples")
        browser = None
        ports = {port: free_port() for port in OTHERS}
        args: list[str] = []
        if any(block.needs_browser for block in blocks):
            browser = cleanup.enter_context(running_browser())
            ports[SITE] = cleanup.enter_context(serving(folder))
            args = ["--cors-origin", f"http://localhost:{ports[SITE]}"]
        server = cleanup.enter_context(running_server(memory=True, args=args))
        ports[SERVER] = server.port
        yield cleanup.enter_context(Reader(folder, ports, browser))


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """A web site with the files of a folder, as `python -m http.server` serves them; its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(folder))) as site:
        thread = Thread(target=site.serve_forever, name="site")
        thread.start()
        try:
            yield site.server_address[1]
        finally:
            site.shutdown()
            thread.join()


class Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Write nothing to stderr."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@cache
def bundle_of(package: str) -> str:
    """Return an installed npm package and what it needs as one module for browsers."""
    command = ["node", "--input-type=module", "--eval", BUNDLE, package]
    done = subprocess.run(
        command, cwd=NODE_MODULES.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{json.dumps(package)}: {done.stderr}"
    return done.stdout
