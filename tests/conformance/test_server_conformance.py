"""The protocol's official suite against {disk, memory} × {native, ASGI}, side by side, and once
without the compiled modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock import plain_modules
from tests.conformance.suite import Report, run_suite
from tests.helpers.server import running_server

# Short, so that the suite sees long-polls end: its own client gives up after 5 seconds.
LONG_POLL_TIMEOUT_S = 2
TESTS = 338  # all that version 0.3.6 of the suite has


class Combination(NamedTuple):
    memory: bool
    asgi: bool
    plain: bool = False

    @property
    def name(self) -> str:
        form = "-plain" if self.plain else ""
        return f"{'memory' if self.memory else 'disk'}-{'asgi' if self.asgi else 'native'}{form}"


COMBINATIONS = [
    *[Combination(memory, asgi) for memory in (False, True) for asgi in (False, True)],
    Combination(memory=False, asgi=False, plain=True),  # without the compiled modules
]


@pytest.fixture(scope="module")
def reports(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[Combination, Future[Report]]]:
    """All runs at once: they mostly wait, and one after the other would take minutes."""
    with ThreadPoolExecutor(len(COMBINATIONS)) as pool:
        yield {
            combination: pool.submit(_run, combination, tmp_path_factory.mktemp(combination.name))
            for combination in COMBINATIONS
        }


def _run(combination: Combination, folder: Path, *more: str) -> Report:
    with running_server(
        # Webhook receivers of the suite are on loopback, without TLS. One test asks for a preflight
        # of any origin; all others pass without CORS, too.
        args=[
            *("--long-poll-timeout", str(LONG_POLL_TIMEOUT_S)),
            *("--development", "--cors-origin", "*"),
            *more,
        ],
        memory=combination.memory,
        asgi=combination.asgi,
        env={plain_modules.PURE: "1"} if combination.plain else None,
    ) as server:
        return run_suite(server.url, folder)


@pytest.mark.conformance
@pytest.mark.xdist_group("conformance")  # one worker, so that the fixture runs once
@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda combination: combination.name)
def test_official_suite_passes(
    combination: Combination, reports: Mapping[Combination, Future[Report]]
) -> None:
    report = reports[combination].result()
    assert not report.failed, report.summary
    assert not report.skipped, report.summary
    assert len(report.passed) == TESTS, report.summary


@pytest.mark.soak
@pytest.mark.conformance
@pytest.mark.parametrize("workers", [2, 3])
def test_official_suite_passes_with_several_workers(workers: int, tmp_path: Path) -> None:
    report = _run(Combination(memory=False, asgi=False), tmp_path, "--workers", str(workers))
    assert not report.failed, report.summary
    assert not report.skipped, report.summary
    assert len(report.passed) == TESTS, report.summary
