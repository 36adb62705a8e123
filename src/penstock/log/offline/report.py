"""The result of checking a data folder, as values: counts, problems, and notes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

PROBLEMS_MAX = 1000
"""Beyond this many, problems are only counted and notes dropped, so that a report is bounded."""

RESTORE = "restore the data folder from a backup"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something the server cannot serve, or cannot start with."""

    code: str
    """The kind of problem; does not change between versions."""
    file: str
    """Relative to the data folder."""
    position: int | None
    """Byte in the file."""
    stream: str | None
    what: str
    advice: str

    def __str__(self) -> str:
        where = self.file if self.position is None else f"{self.file}, byte {self.position}"
        whose = "" if self.stream is None else f" (stream {self.stream})"
        return f"{where}{whose}: {self.what}; {self.advice}"


_COUNTS = (
    "checkpoint_lsn",
    "last_lsn",
    "streams",
    "messages",
    "bytes",
    "inline",
    "segments",
    "cold_segments",
    "blocks",
    "journal_files",
    "journal_batches",
    "journal_records",
    "problem_count",
)


@dataclass(slots=True)
class Report:
    """Streams, messages and bytes are those that a server would have after its start."""

    format: int | None = None
    clean: bool | None = None
    checkpoint_lsn: int = 0
    last_lsn: int = 0
    streams: int = 0
    messages: int = 0
    bytes: int = 0
    inline: int = 0
    segments: int = 0
    cold_segments: int = 0
    blocks: int = 0
    journal_files: int = 0
    journal_batches: int = 0
    journal_records: int = 0
    problem_count: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def problem(
        self,
        code: str,
        file: str,
        what: str,
        *,
        position: int | None = None,
        stream: str | None = None,
        advice: str = RESTORE,
    ) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            # Messages of SQLite may hold line breaks and pieces of the damage.
            line = "".join(char if char.isprintable() else " " for char in what.removesuffix("."))
            self.problems.append(Problem(code, file, position, stream, line, advice))

    def include(self, part: Report, folder: str) -> None:
        """Add what was found in a folder that is part of this one."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(part, name))
        self.clean = self.clean and part.clean
        for problem in part.problems:
            if len(self.problems) < PROBLEMS_MAX:
                self.problems.append(replace(problem, file=f"{folder}/{problem.file}"))
        for note in part.notes:
            self.note(f"{folder}: {note}")

    def note(self, text: str) -> None:
        if len(self.notes) < PROBLEMS_MAX:
            self.notes.append(text)


class Progress:
    """The number of bytes that were checked, reported to a callback."""

    def __init__(self, report: Callable[[int, int], None] | None = None) -> None:
        self._report = report
        self.total = 0
        self.done = 0

    def add(self, size: int) -> None:
        self.done += size
        if self._report is not None:
            self._report(self.done, max(self.done, self.total))
