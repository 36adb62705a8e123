"""Checks of a server against the State Transfer Protocol, by what it answers. Pure: `Probe` makes
the requests.

Every check has a level. MUST is what the specification demands, or what readers cannot work
without; SHOULD is what it recommends, and what the published vectors decide where it is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, Protocol

from penstock.errors import InvalidContentType, InvalidRow
from penstock.protocol.timestamps import is_rfc3339
from penstock.stp.content_type import SequenceType, parse_content_type
from penstock.stp.notify import FORM
from penstock.stp.rows import Row, parse_last_seqno, parse_row
from penstock.stp.vectors import cases

Level = Literal["MUST", "SHOULD"]
Outcome = Literal["ok", "failed", "skipped"]

TAILS: Final = (1, 3)
ATTEMPTS_MAX: Final = 5
"""How often a comparison is repeated because the table has changed."""
TSV: Final = "text/tab-separated-values"


class Reply(NamedTuple):
    """A response, as far as it was read. `has_ended` is whether the server has ended it; header
    names are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    has_ended: bool = True


class Probe(Protocol):
    """Makes requests to the server that is checked. Raises ConnectionFailed."""

    def get(self, query: str, *, accept: str = "", wait_s: float | None = None) -> Reply:
        """GET the table with a query; read until the response ends or rests."""

    def watch(self, query: str, act: Callable[[], None]) -> Reply:
        """GET the table, call `act` when the response has begun, and read on."""

    def send(self, method: str, query: str, body: bytes, content_type: str) -> Reply:
        """Make another request to the table."""

    def notify(self, body: bytes, content_type: str) -> Reply:
        """POST to the Notify URL."""


class Result(NamedTuple):
    """The result of one check."""

    name: str
    level: Level
    outcome: Outcome
    reason: str = ""


class Broken(Exception):
    """A rule that the server does not obey; the text says how."""


class Skipped(Exception):
    """A check that cannot be made; the text says why."""


Check = Callable[[], None]
Named = tuple[str, Level, Check]


def run(checks: list[Named]) -> Iterator[Result]:
    """Yield the result of each check, as it is made."""
    for name, level, check in checks:
        try:
            check()
        except Broken as error:
            yield Result(name, level, "failed", str(error))
        except Skipped as error:
            yield Result(name, level, "skipped", str(error))
        else:
            yield Result(name, level, "ok")


class TableChecks:
    """The checks of one table. Those that only read come first; the others need `writes`."""

    def __init__(self, probe: Probe, *, wait_s: float, writes: bool, prefix: str) -> None:
        self._probe = probe
        self._wait_s = wait_s
        self._writes = writes
        self._prefix = prefix
        self._rows: list[Row] = []
        self._kind: SequenceType | None = None

    def checks(self) -> list[Named]:
        reading: list[Named] = [
            ("the content type is text/sequence with schema and version", "MUST", self._type),
            ("rows are five fields and a line end", "MUST", self._lines),
            ("timestamps are RFC 3339 in UTC", "MUST", self._timestamps),
            ("SeqNos increase strictly", "SHOULD", self._order),
            ("since_id=N returns the rows after N", "MUST", self._since),
            ("an absent since_id is since_id=0", "MUST", self._absent),
            ("since_id=-N returns the last N rows", "MUST", self._tail),
            ("a since_id at the end returns no earlier row", "MUST", self._end),
            ("the same request returns the same rows", "MUST", self._again),
            ("STP-Last-SeqNo is that of the last row", "SHOULD", self._last_seqno),
            ("a response ends when there are no new rows", "SHOULD", self._ends),
            ("another schema in Accept is 406", "SHOULD", self._accept),
        ]
        reading += [
            (f"vector since_id, {case['name']}: {case['query']} is refused", "SHOULD", check)
            for case, check in self._vectors()
        ]
        writing: list[Named] = [
            ("a written row is read back with a greater SeqNo", "MUST", self._write),
            ("an open response gets a row as it is written", "SHOULD", self._stream),
            ("a deleted key is a `-` row", "MUST", self._delete),
            ("several rows are written in their order", "MUST", self._batch),
            ("a batch with an invalid row is refused whole", "MUST", self._bad_batch),
        ]
        return [*reading, *(writing if self._writes else [])]

    # -- reading

    def _type(self) -> None:
        self._read("since_id=0")
        kind = self._kind
        assert kind is not None
        if kind.schema is None or kind.version is None:
            raise Broken("schema or version is missing")

    def _lines(self) -> None:
        self._rows = self._read("since_id=0")

    def _timestamps(self) -> None:
        for row in self._some():
            if not is_rfc3339(row.timestamp) or not row.timestamp.upper().endswith(
                ("Z", "+00:00", "-00:00")
            ):
                raise Broken(f"row {row.seqno} has {row.timestamp[:40]!r}")

    def _order(self) -> None:
        rows = self._some()
        for before, row in pairwise(rows):
            if row.seqno <= before.seqno:
                raise Broken(f"{row.seqno} comes after {before.seqno}")

    def _since(self) -> None:
        rows = self._some()
        for index in sorted({0, len(rows) // 2, len(rows) - 1}):
            seqno = rows[index].seqno
            self._compare(f"since_id={seqno}", [row for row in rows if row.seqno > seqno])

    def _absent(self) -> None:
        self._compare("", self._rows)

    def _tail(self) -> None:
        self._some()
        for count in (*TAILS, len(self._rows) + 10):
            self._compare_tail(count)

    def _compare_tail(self, count: int) -> None:
        for _ in range(ATTEMPTS_MAX):
            rows = self._read(f"since_id=-{count}")
            known = self._rows[-1].seqno
            if rows and rows[-1].seqno > known:
                self._rows = self._read("since_id=0")  # The table has changed meanwhile.
                continue
            expected = sorted(self._rows, key=lambda row: row.seqno)[-count:]
            if rows != expected:
                raise Broken(f"since_id=-{count} returns {_seqnos(rows)}, not {_seqnos(expected)}")
            return
        raise Skipped("the table changes all the time")

    def _end(self) -> None:
        last = self._rows[-1].seqno if self._rows else 0
        for seqno in (last, last + 1000):
            early = [row for row in self._read(f"since_id={seqno}") if row.seqno <= seqno]
            if early:
                raise Broken(f"since_id={seqno} returns {_seqnos(early)}")

    def _again(self) -> None:
        self._compare("since_id=0", self._rows)

    def _last_seqno(self) -> None:
        header, last = "", 0
        for _ in range(ATTEMPTS_MAX):
            reply = self._probe.get(_at_once("since_id=-1"))
            header = reply.headers.get("stp-last-seqno", "")
            if not header:
                raise Skipped("the server does not send it")
            rows = self._parse(reply)
            last = rows[-1].seqno if rows else 0
            if parse_last_seqno(header) == last:
                return
        raise Broken(f"it is {header[:40]!r}, the last row is {last}")

    def _ends(self) -> None:
        if self._wait_s <= 0:
            raise Skipped("--wait is 0")
        last = self._rows[-1].seqno if self._rows else 0
        if not self._probe.get(f"since_id={last}", wait_s=self._wait_s).has_ended:
            raise Broken(f"it was open after {self._wait_s:g} s without a row")

    def _accept(self) -> None:
        accept = "text/sequence; schema=penstock_stp_check_no_such_schema; version=1"
        _refused(self._probe.get(_at_once("since_id=0"), accept=accept), 406)

    def _vectors(self) -> Iterator[tuple[dict[str, Any], Check]]:
        for case in cases("since_id"):
            if "status" in case:
                yield case, partial(self._refuses, _at_once(case["query"]))

    def _refuses(self, query: str) -> None:
        _refused(self._probe.get(query))

    # -- writing: by the requests that Penstock's tables take

    def _write(self) -> None:
        last = self._last()
        self._send("PUT", "a", b"1")
        self._send("PUT", "a", b"2")
        rows = [row for row in self._read(f"since_id={last}") if row.key == self._key("a")]
        if [(row.action, row.record) for row in rows] != [("+", "1"), ("+", "2")]:
            raise Broken(f"1 and 2 were written, {[row.record for row in rows]} was read")

    def _stream(self) -> None:
        last = self._last()
        query = f"since_id={last}"
        reply = self._probe.watch(query, lambda: self._send("PUT", "live", b"3"))
        if not any(row.key == self._key("live") for row in self._parse(reply)):
            raise Broken("the row was not sent")

    def _delete(self) -> None:
        last = self._last()
        for name in ("a", "live"):
            self._send("DELETE", name, b"")
        rows = self._read(f"since_id={last}")
        gone = {row.key for row in rows if row.action == "-"}
        if not {self._key("a"), self._key("live")} <= gone:
            raise Broken("there is no such row")

    def _batch(self) -> None:
        last = self._last()
        names = [("+", "b", "1"), ("+", "c", "2"), ("-", "b", ""), ("-", "c", "")]
        lines = [f"{action}\t{self._key(name)}\t{record}\n" for action, name, record in names]
        self._expect_success(self._probe.send("POST", "", "".join(lines).encode(), TSV))
        rows = self._read(f"since_id={last}")
        own = [(row.action, row.key, row.record) for row in rows if self._is_own(row)]
        if own != [(action, self._key(name), record) for action, name, record in names]:
            raise Broken(f"{len(lines)} rows were written, {own} was read")

    def _bad_batch(self) -> None:
        last = self._last()
        body = f"+\t{self._key('d')}\t1\nnonsense\n".encode()
        _refused(self._probe.send("POST", "", body, TSV))
        if any(self._is_own(row) for row in self._read(f"since_id={last}")):
            raise Broken("a row of it was written")

    # -- what they share

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _is_own(self, row: Row) -> bool:
        return row.key.startswith(self._prefix)

    def _send(self, method: str, name: str, body: bytes) -> None:
        query = f"key={self._key(name)}"
        self._expect_success(self._probe.send(method, query, body, "text/plain; charset=utf-8"))

    @staticmethod
    def _expect_success(reply: Reply) -> None:
        if not 200 <= reply.status < 300:
            raise Broken(f"the write was answered {reply.status}")

    def _last(self) -> int:
        return max((row.seqno for row in self._read("since_id=-1")), default=0)

    def _some(self) -> list[Row]:
        if not self._rows:
            raise Skipped("the table has no rows")
        return self._rows

    def _read(self, query: str) -> list[Row]:
        return self._parse(self._probe.get(_at_once(query)))

    def _parse(self, reply: Reply) -> list[Row]:
        """Return the rows of a response, without a last line that was not read whole."""
        if reply.status != 200:
            raise Broken(f"the response is {reply.status}")
        try:
            self._kind = kind = parse_content_type(reply.headers.get("content-type", ""))
        except InvalidContentType as error:
            raise Broken(error.detail) from None
        lines = reply.body.split(b"\n")
        if lines[-1] and reply.has_ended:
            raise Broken(f"the last line has no line end: {lines[-1][:60]!r}")
        rows = []
        for line in lines[:-1]:
            try:
                rows.append(parse_row(line, escape=kind.escape))
            except InvalidRow as error:
                raise Broken(f"{error.detail} The line is {line[:60]!r}") from None
            if line.count(b"\t") < 4:
                raise Broken(f"row {rows[-1].seqno} has only {line.count(9) + 1} fields")
        return rows

    def _compare(self, query: str, expected: list[Row]) -> None:
        """Compare an answer with what is known; rows that are new may follow."""
        rows = self._read(query)
        known = self._rows[-1].seqno if self._rows else 0
        if [row for row in rows if row.seqno <= known] != expected:
            shown = query or "without since_id, it"
            raise Broken(f"{shown} returns {_seqnos(rows)}, not {_seqnos(expected)}")


def notify_checks(probe: Probe, *, writes: bool) -> list[Named]:
    """Return the checks of a Notify URL: the published forms. Without `writes` only those that it
    must refuse, which change nothing."""
    checks: list[Named] = []
    for case in cases("notify"):
        accepts = case["status"] < 300
        if accepts and not writes:
            continue
        name = f"vector notify, {case['name']}: {'accepted' if accepts else 'refused'}"

        def check(case: dict[str, Any] = case, accepts: bool = accepts) -> None:
            reply = probe.notify(case["body"].encode(), case.get("content_type", FORM))
            if not accepts:
                _refused(reply)
            elif not 200 <= reply.status < 300:
                raise Broken(f"it was answered {reply.status}")

        checks.append((name, "MUST", check))
    return checks


def _refused(reply: Reply, status: int | None = None) -> None:
    if not 400 <= reply.status < 500 or status not in (None, reply.status):
        raise Broken(f"it was answered {reply.status}")


def _at_once(query: str) -> str:
    """Ask for an immediate answer, which servers may ignore."""
    return "&".join(filter(None, (query, "timeout=0")))


def _seqnos(rows: list[Row]) -> str:
    """Return SeqNos for a message."""
    shown = ", ".join(str(row.seqno) for row in rows[:5])
    return f"[{shown}{', …' if len(rows) > 5 else ''}] ({len(rows)} rows)"
