"""A reader who does what a page says: a server, a folder for files, shells, Node and Chromium."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import IO, Self

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

    def __init__(
        self,
        folder: Path,
        ports: dict[str, int],
        browser: Browser | None,
        python: OnePython | None = None,
    ) -> None:
        self._folder = folder
        self._ports = ports
        self._browser = browser
        self._python = python
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
        if language == "python" and self._python is not None:
            return self._python.run(code)
        command = {
            "sh": ["bash", "-euo", "pipefail", "-c", code],
            "python": [sys.executable, "-c", code],
            "js": ["node", "--input-type=module", "--eval", code],
        }[language]
        # Files, not pipes: what runs on in the background would keep a pipe open.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=_environ(),
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


class OnePython:
    """A process that runs all Python blocks of a page, for pages whose blocks start Spark."""

    def __init__(self, folder: Path, out: IO[str], err: IO[str]) -> None:
        self._out, self._err = out, err
        reports, reporting = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.one_python", str(reporting)],
            cwd=folder,
            env={**_environ(), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            text=True,
            pass_fds=[reporting],
            start_new_session=True,
        )
        os.close(reporting)
        self._reports = os.fdopen(reports)

    def run(self, code: str) -> str:
        """Run a block; return what it printed."""
        assert self._process.stdin is not None
        before = os.fstat(self._out.fileno()).st_size
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        assert select.select([self._reports], [], [], TIMEOUT_S)[0], f"{code}\ntakes too long"
        report = self._reports.readline()
        printed = os.pread(self._out.fileno(), 1 << 20, before).decode()
        errors = os.pread(self._err.fileno(), 1 << 20, 0).decode()
        assert report == "null\n", f"{code}\n{printed}\n{report}\n{errors}"
        return printed

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._reports.close()


@contextmanager
def one_process(folder: Path) -> Iterator[OnePython]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        python = OnePython(folder, out, err)
        with closing(python):
            yield python


def _environ() -> dict[str, str]:
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(folders)}


@contextmanager
def reading(blocks: list[Block], *, one_python: bool = False) -> Iterator[Reader]:
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
        python = cleanup.enter_context(one_process(folder)) if one_python else None
        yield cleanup.enter_context(Reader(folder, ports, browser, python))


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
