"""The blocking clients are generated: how asyncio code becomes blocking code, and staleness."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import unasync

MODULE = "client/aio/sample.py"
SAMPLE = '''"""A sample of the asyncio client: `async with AsyncSample(…)`."""

from penstock.client.aio.runtime import call
from penstock.client.answers import Answer


class AsyncSample:
    async def __aenter__(self) -> AsyncSample:
        return self

    async def close(self, *, wait_until_every_single_connection_is_closed: bool = True) -> None:
        await self.pool.aclose()

    async def first(self) -> str:
        async with self.follow() as batches:
            async for batch in batches:
                return (await call(batch, (1, [2]))).text
        return await anext(self.rest)
'''
BLOCKING = '''# Generated from client/aio/sample.py by scripts/unasync.py; do not edit.
"""A sample of the blocking client: `with Sample(…)`."""

from penstock.client.answers import Answer
from penstock.client.sync.runtime import call


class Sample:
    def __enter__(self) -> Sample:
        return self

    def close(self, *, wait_until_every_single_connection_is_closed: bool = True) -> None:
        self.pool.close()

    def first(self) -> str:
        with self.follow() as batches:
            for batch in batches:
                return call(batch, (1, [2])).text
        return next(self.rest)
'''


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("async def f(): pass\n", "def f(): pass\n"),
        ("return await f(x)\n", "return f(x)\n"),
        ("x = (await f(x)[0].g()).y\n", "x = f(x)[0].g().y\n"),
        ("x = (await f(x) + 1).y\n", "x = (f(x) + 1).y\n"),
        ("f(await g())\n", "f(g())\n"),
        ("f(x)(await g())\n", "f(x)(g())\n"),
        ("[await f() for f in g]\n", "[f() for f in g]\n"),
        ("# async with an AsyncTable\n", "# with an Table\n"),
        ("'await is a word here'\n", "'await is a word here'\n"),
        ("asynchronous = AsyncIO = Asyncs\n", "asynchronous = IO = Asyncs\n"),
    ],
)
def test_asyncio_code_becomes_blocking_code(source: str, expected: str) -> None:
    assert unasync.blocking(source) == expected


def test_tokens_and_their_blanks_are_the_whole_source() -> None:
    tokens = unasync.tokens_of(SAMPLE)
    assert "".join(token.blanks + token.text for token in tokens) == SAMPLE


def test_a_generated_module_is_named_ordered_and_formatted() -> None:
    assert unasync.generated(MODULE, SAMPLE) == BLOCKING


def _tree(root: Path) -> Path:
    source = root / unasync.SOURCE / MODULE
    target = root / unasync.SOURCE / unasync.target_of(MODULE)
    source.parent.mkdir(parents=True)
    target.parent.mkdir()
    source.write_text(SAMPLE)
    return target


def test_a_stale_file_is_reported_with_its_difference_and_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = _tree(tmp_path)
    assert unasync.main([], root=tmp_path, modules=[MODULE]) == 0
    assert target.read_text() == BLOCKING
    assert unasync.main(["--check"], root=tmp_path, modules=[MODULE]) == 0

    edited = BLOCKING.replace("next(self.rest)", "None")
    target.write_text(edited)
    capsys.readouterr()
    assert unasync.main(["--check"], root=tmp_path, modules=[MODULE]) == 1
    report = capsys.readouterr().err
    assert "-        return None\n+        return next(self.rest)\n" in report
    assert "python scripts/unasync.py" in report
    assert target.read_text() == edited


def test_a_missing_file_is_stale(tmp_path: Path) -> None:
    _tree(tmp_path)
    assert unasync.main(["--check"], root=tmp_path, modules=[MODULE]) == 1


def test_the_generated_clients_are_current() -> None:
    assert unasync.main(["--check"]) == 0
