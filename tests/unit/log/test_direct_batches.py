"""Batches past the page cache: which bytes are written where, and what stays in memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.log.disk.direct_batches import BLOCK_BYTES, DirectBatches
from penstock.log.disk.files import File, Files
from tests.helpers.write_queue import HookedQueue

FILE_BYTES = 16 * BLOCK_BYTES


class Rig:
    """A file that begins with `before`, filled with the letter that an earlier use has left."""

    def __init__(self, path: Path, before: bytes = b"head", *, buffer_bytes: int = 65536) -> None:
        path.write_bytes(before + b"o" * (FILE_BYTES - len(before)))
        self.path = path
        self.file: File = Files().open_write(path)
        self.queue = HookedQueue(buffer_bytes)
        self.batches = DirectBatches(self.queue, self.file, FILE_BYTES, before)
        self.expected = before

    def add(self, head: bytes, body: bytes, *, queued: bool) -> bool:
        if not self.batches.stage(head, body):
            return False
        if queued:
            self.batches.submit()
            result = self.queue.take()
            assert result is not None
            assert self.batches.is_whole(result)
        else:
            self.batches.write()
        self.batches.landed()
        self.expected += head + body
        return True

    def close(self) -> None:
        self.file.close()
        self.queue.close()

    def content(self) -> bytes:
        return self.path.read_bytes()


@pytest.mark.parametrize("queued", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_batches_of_any_size_stand_one_behind_the_other(
    tmp_path: Path, seed: int, queued: bool
) -> None:
    chance = random.Random(seed)
    rig = Rig(tmp_path / "f")
    while True:
        body = chance.randbytes(chance.choice((0, 1, 100, 4060, 4064, 4096, 5000, 9000)))
        if not rig.add(b"h" * 32, body, queued=queued):
            break
        assert rig.content().startswith(rig.expected)
    assert len(rig.expected) > FILE_BYTES // 2
    assert len(rig.content()) == FILE_BYTES
    rig.close()


def test_the_rest_of_the_last_block_is_zeros(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "f")
    rig.add(b"a" * 32, b"b" * 100, queued=True)
    end = len(rig.expected)
    content = rig.content()
    assert content[end:BLOCK_BYTES] == bytes(BLOCK_BYTES - end)
    assert content[BLOCK_BYTES:] == b"o" * (FILE_BYTES - BLOCK_BYTES)
    rig.close()


def test_a_batch_that_did_not_land_is_replaced_by_the_next(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "f")
    rig.add(b"a", b"b" * 5000, queued=True)
    assert rig.batches.stage(b"lost", b"x" * 9000)
    rig.batches.write()
    rig.add(b"c", b"d", queued=True)
    assert rig.content().startswith(rig.expected)
    rig.close()


def test_a_batch_larger_than_the_buffer_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "f", buffer_bytes=2 * BLOCK_BYTES)
    assert not rig.batches.stage(b"h", b"x" * (2 * BLOCK_BYTES))
    assert rig.add(b"h", b"x" * (2 * BLOCK_BYTES - 5), queued=True)
    rig.close()


def test_no_write_makes_the_file_longer(tmp_path: Path) -> None:
    """A file whose size is no multiple of a block keeps its last bytes for another way."""
    queue = HookedQueue()
    path = tmp_path / "f"
    path.write_bytes(bytes(BLOCK_BYTES + 100))
    file = Files().open_write(path)
    batches = DirectBatches(queue, file, BLOCK_BYTES + 100, b"")
    assert not batches.stage(b"h", b"x" * BLOCK_BYTES)
    assert batches.stage(b"h", b"x" * (BLOCK_BYTES - 1))
    file.close()
    queue.close()


def test_it_goes_on_behind_what_was_written_another_way(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "f")
    rig.add(b"a", b"b" * 5000, queued=True)
    other = b"z" * 7000
    rig.file.write_at(len(rig.expected), [other])
    rig.expected += other
    rig.batches.passed(len(rig.expected), rig.file)
    rig.add(b"c", b"d" * 50, queued=True)
    assert rig.content().startswith(rig.expected)
    rig.close()
