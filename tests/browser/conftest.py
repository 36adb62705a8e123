"""One Chromium for all tests of this folder."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import running_browser

FOLDER = Path(__file__).parent


class Opened(ExitStack):
    """The Chromium that is open, once a test has asked for it."""

    browser: Browser | None = None

    def get(self) -> Browser:
        if self.browser is None:
            self.browser = self.enter_context(running_browser())
        return self.browser

    def close(self) -> None:
        self.browser = None
        super().close()


OPENED = Opened()


@pytest.fixture(scope="module")
def browser() -> Browser:
    return OPENED.get()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None]:
    """Close it after the last test of this folder.

    Not at the end of the run: while it is open, asyncio takes its loop for one that runs.
    """
    try:
        return (yield)
    finally:
        if nextitem is None or FOLDER not in nextitem.path.parents:
            OPENED.close()
