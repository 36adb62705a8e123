"""Receipts: who is called, when, and what stays true when a caller fails."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.errors import DiskFull
from penstock.log.mutations import Barrier
from penstock.log.receipt import Receipt


def test_the_caller_is_called_in_the_same_step_and_once() -> None:
    receipt, calls = Receipt("result"), list[Receipt]()
    receipt.then(calls.append)
    assert calls == []
    receipt.resolve()
    assert calls == [receipt]
    assert (receipt.is_done, receipt.error, receipt.result) == (True, None, "result")


def test_a_failure_is_told_the_same_way() -> None:
    receipt, errors = Receipt("result"), list[object]()
    receipt.then(lambda done: errors.append(done.error))
    error = DiskFull("full")
    receipt.fail(error)
    assert errors == [error]


def test_a_caller_that_fails_is_logged_and_no_harm_to_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second, calls = Receipt(1), Receipt(2), list[Receipt]()

    def fails(receipt: Receipt) -> None:
        raise ValueError("broken")

    first.then(fails)
    second.then(calls.append)
    with caplog.at_level(logging.ERROR, "penstock.log"):
        for receipt in (first, second):
            receipt.resolve()
    assert calls == [second]
    assert "An answer failed." in caplog.text


def test_the_same_answer_as_a_future() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        before, after, failed = Receipt(1), Receipt(2), Barrier()
        early, refused = before.as_future(loop), failed.as_future(loop)
        assert before.as_future(loop) is early
        for receipt in (before, after):
            receipt.resolve()
        failed.fail(DiskFull("full"))
        assert (await early, await after.as_future(loop)) == (1, 2)
        with pytest.raises(DiskFull):
            await refused

    asyncio.run(main())


def test_a_cancelled_future_changes_nothing() -> None:
    async def main() -> None:
        receipt, calls = Receipt(1), list[Receipt]()
        receipt.then(calls.append)
        receipt.as_future(asyncio.get_running_loop()).cancel()
        receipt.resolve()
        assert calls == [receipt]

    asyncio.run(main())
