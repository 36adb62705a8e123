"""Threads that a process does not wait for at its end, unlike those of `ThreadPoolExecutor`: a call
of an object store that does not answer may take minutes, and a stop may not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Work(NamedTuple):
    future: Future[Any]
    call: Callable[[], Any]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.call()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class DaemonPool(Executor):
    """At most `size` threads, started when there is work for them."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._is_closed:
            raise RuntimeError(f"{self._name} is closed")
        future: Future[T] = Future()
        self._queue.put(_Work(future, lambda: fn(*args, **kwargs)))
        if len(self._threads) < self._size:
            name = f"{self._name}_{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work.run()
            del work  # and with it the result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; with `wait`, return when all is done."""
        self._is_closed = True
        if cancel_futures:
            try:
                while (work := self._queue.get_nowait()) is not None:
                    work.future.cancel()
            except Empty:
                pass
        for _ in self._threads:
            self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()
