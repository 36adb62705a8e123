"""Checks that others register: they may refuse, replace or put off appends to certain streams.

A check is registered under the name of a meta value, and asked about the streams that carry it.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.log.requests import Notes, Proposal, Writer
from penstock.log.stream import Stream

Check = Callable[[Proposal], tuple[bytes, int] | None]
"""Raises PenstockError to refuse an append, or NotYet to be asked again later. What it returns,
wire bytes and their number of messages, is appended instead; None leaves the append as it is."""

Overtakes = Callable[[bytes, bytes], bool]
"""(meta value, wire bytes): whether an append is decided before those that wait."""


class Checks:
    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        self._checks_of_closes: set[str] = set()
        self._overtakes: dict[str, Overtakes] = {}

    def add(self, name: str, check: Check, *, closes: bool, overtakes: Overtakes | None) -> None:
        """Register `check` for streams that have the meta value `name`. With `closes` it is also
        asked about a close that appends nothing."""
        self._checks[name] = check
        if closes:
            self._checks_of_closes.add(name)
        if overtakes is not None:
            self._overtakes[name] = overtakes

    def run(
        self, stream: Stream, payload: bytes, count: int, writer: Writer, notes: Notes
    ) -> tuple[bytes, int]:
        """Ask every check of a stream about an append; return what is to be appended."""
        for name, value in stream.pending_meta.items():
            check = self._checks.get(name)
            if check is not None and (payload or name in self._checks_of_closes):
                proposal = Proposal(
                    stream,
                    value,
                    stream.pending_tail,
                    payload,
                    count,
                    writer,
                    notes,
                    stream.pending_earliest,
                )
                payload, count = check(proposal) or (payload, count)
        return payload, count

    def may_overtake(self, stream: Stream) -> bool:
        """Whether some append could be decided before those that wait for the stream."""
        return any(name in self._overtakes for name in stream.pending_meta)

    def overtake(self, stream: Stream, wire: bytes) -> bool:
        """Whether an append is decided before those that wait for the stream."""
        for name, value in stream.pending_meta.items():
            overtakes = self._overtakes.get(name)
            if overtakes is not None and overtakes(value, wire):
                return True
        return False
