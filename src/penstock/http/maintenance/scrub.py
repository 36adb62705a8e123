"""`/v1/scrub`: POST begins a scrub, GET shows it or the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.http.documents import document
from penstock.protocol.headers import format_expires_at

if TYPE_CHECKING:
    from penstock.http.message import Request, Response
    from penstock.log.offline.report import Problem
    from penstock.log.scrub import ScrubRun, Scrubs

SCRUB: Final = b"/v1/scrub"
SHOWN_MAX: Final = 100
"""Problems that are shown; the rest is counted."""


class ScrubResource:
    def __init__(self, scrubs: Scrubs) -> None:
        self._scrubs = scrubs

    def post(self, path: str, request: Request) -> Response:
        return document(_shown(self._scrubs.start()), 202)

    def get(self, path: str, request: Request) -> Response:
        return document(_shown(self._scrubs.last))


def _shown(run: ScrubRun | None) -> dict[str, Any]:
    if run is None:
        return {
            "state": "idle",
            "began_at": None,
            "ended_at": None,
            "bytes_total": 0,
            "bytes_done": 0,
            "streams": 0,
            "segments": 0,
            "problem_count": 0,
            "problems": [],
            "error": None,
        }
    report, error = run.report, run.error
    return {
        "state": run.outcome,
        "began_at": format_expires_at(run.began_us),
        "ended_at": None if run.ended_us is None else format_expires_at(run.ended_us),
        "bytes_total": run.bytes_total,
        "bytes_done": run.bytes_done,
        "streams": report.streams,
        "segments": report.segments,
        "problem_count": report.problem_count,
        "problems": [_problem(each) for each in report.problems[:SHOWN_MAX]],
        "error": None if error is None else {"code": error.code, "detail": error.detail},
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "code": problem.code,
        "file": problem.file,
        "position": problem.position,
        "stream": problem.stream,
        "what": problem.what,
        "advice": problem.advice,
    }
