"""The kernel's queue of writes, on the real kernel: skipped where there is none."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.log.disk.files import File, Files
from penstock.log.disk.kernel_queue import KernelQueue, QueueFiles

BLOCK = 4096


@pytest.fixture
def queue() -> Iterator[KernelQueue]:
    try:
        queue = KernelQueue(buffer_bytes=4 * BLOCK)
    except OSError as error:
        pytest.skip(f"no queue of writes: {error}")
    yield queue
    queue.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    path = tmp_path / "f"
    path.write_bytes(bytes(8 * BLOCK))
    try:
        file = Files().open_direct(path)
    except OSError as error:
        pytest.skip(f"no writes past the page cache: {error}")
    yield file
    file.close()


def test_a_write_is_done_while_the_event_loop_goes_on(queue: KernelQueue, file: File) -> None:
    async def main() -> int | None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(queue.descriptor, ready.set)
        queue.submit(file, 2 * BLOCK, BLOCK)
        await asyncio.wait_for(ready.wait(), 10)
        loop.remove_reader(queue.descriptor)
        return queue.take()

    queue.buffer[:BLOCK] = b"x" * BLOCK
    assert asyncio.run(main()) == BLOCK
    assert queue.take() is None
    assert file.path.read_bytes() == bytes(2 * BLOCK) + b"x" * BLOCK + bytes(5 * BLOCK)


def test_a_write_can_be_waited_for(queue: KernelQueue, file: File) -> None:
    for turn in range(3):
        queue.buffer[:BLOCK] = b"%d" % turn * BLOCK
        queue.submit(file, 0, BLOCK)
        assert queue.wait() == BLOCK
        assert file.path.read_bytes()[:BLOCK] == b"%d" % turn * BLOCK


def test_an_error_is_a_negative_result_or_is_raised(queue: KernelQueue, file: File) -> None:
    """A position that is not aligned, and a file that is not open."""
    try:
        queue.submit(file, 1, BLOCK)
        code = -queue.wait()
    except OSError as error:
        code = error.errno or 0
    assert code == errno.EINVAL
    closed = Files().open_direct(file.path)
    closed.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        queue.submit(closed, 0, BLOCK)


def test_a_queue_is_closed_with_a_write_on_its_way(tmp_path: Path, file: File) -> None:
    try:
        queue = KernelQueue(buffer_bytes=BLOCK)
    except OSError as error:
        pytest.skip(f"no queue of writes: {error}")
    queue.buffer[:] = b"y" * BLOCK
    queue.submit(file, 0, BLOCK)
    queue.close()
    assert file.path.read_bytes()[:BLOCK] == b"y" * BLOCK


def test_there_is_none_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    assert QueueFiles().write_queue() is None


def test_there_is_none_when_the_system_has_none_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: KernelQueue) -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(KernelQueue, "_set_up", refuse)
    assert QueueFiles().write_queue() is None
