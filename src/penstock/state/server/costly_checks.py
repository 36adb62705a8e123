"""Checks of appends that take long: in a thread, and single values in a process of their own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from penstock.errors import ShuttingDown
from penstock.state.declaration import Question, Verdict, judge
from penstock.state.server.check_process import CheckProcess

if TYPE_CHECKING:
    from penstock.config.settings import Settings


class CostlyChecks:
    """Belongs to one event loop. One check at a time: others wait without holding up anything
    else."""

    def __init__(self, settings: Settings) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-check")
        self._process = CheckProcess(timeout_s=settings.schema_check_timeout_s)
        self._is_closed = False

    @property
    def ended(self) -> int:
        """The number of checks that were ended because they took too long."""
        return self._process.ended

    async def judge(self, question: Question) -> Verdict:
        if self._is_closed:
            raise ShuttingDown("The server is stopping; try again.", Retry_After="1")
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, judge, question, self._process.check
        )

    def close(self) -> None:
        self._is_closed = True
        self._process.close()
        self._thread.shutdown(wait=False, cancel_futures=True)
