"""The hot path of an append and of a read: no task, nothing awaited, nothing fetched."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.http.app import App
from penstock.http.message import Later, Response
from penstock.log import open_engine
from tests.helpers.app import make_request

APPEND = {"content_type": "application/json"}
PRODUCER = {**APPEND, "producer_id": "p", "producer_epoch": "0"}


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_an_append_to_a_local_store_makes_no_task_and_awaits_nothing(
    kind: str, tmp_path: Path
) -> None:
    async def run() -> None:
        settings = Settings(memory=kind == "memory", data_dir=tmp_path)
        engine = open_engine(settings, clock=ManualClock())
        await engine.start()
        app = App(engine, settings)
        try:
            request = make_request("PUT", "/v1/stream/a", b"", **APPEND)
            assert (await _answer(app, request)).status == 201
            tasks = _count_tasks(asyncio.get_running_loop())
            for number in range(3):
                headers = {**PRODUCER, "producer_seq": str(number)}
                answer = app.handle(make_request("POST", "/v1/stream/a", b"[1]", **headers))
                assert answer.__class__ is Later  # a transport waits for it with a callback
                assert isinstance(answer, Later)
                while not answer.future.done():
                    await asyncio.sleep(0)
                assert answer.render(answer.future).status == 200
            for method, target in (("GET", "/v1/stream/a?offset=-1"), ("HEAD", "/v1/stream/a")):
                answer = app.handle(make_request(method, target, b""))
                assert isinstance(answer, Response)
            assert tasks == []
            # A fetch of a local store ends without a turn of the event loop.
            with pytest.raises(StopIteration):
                engine.fetch("a", "p").send(None)
        finally:
            app.close()
            await engine.stop()

    asyncio.run(run())


async def _answer(app: App, request: Any) -> Response:
    answer = app.handle(request)
    return answer if isinstance(answer, Response) else await answer


def _count_tasks(loop: asyncio.AbstractEventLoop) -> list[object]:
    """Return a list to which every task that is created from now on is added."""
    tasks: list[object] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        tasks.append(coro)
        return asyncio.Task(coro, loop=loop, **options)

    loop.set_task_factory(factory)
    return tasks
