"""What the protocol's text says about streams, in plain lists: no files, no batches, no waiting.

A fork here is a copy. Time is noticed when somebody looks: until then an expired fork counts.

Positions are byte positions and generations count creations, which is how Penstock spells offsets;
everything else follows from sections 4, 5 and 8 of the text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import ForkConfig, StreamConfig
from penstock.protocol.producer import ProducerState

JSON = "application/json"


class Refused(Exception):
    def __init__(self, code: str, **headers: object) -> None:
        self.code = code
        self.headers = {name.replace("_", "-"): str(value) for name, value in headers.items()}


@dataclass
class Line:
    """One stream: its messages in wire shape, and what writers have told about themselves.

    `lineage` has the generations that spell its offsets, each with the position it begins at;
    `inherited` are the bytes of a fork that are not counted as messages.
    """

    id: int
    config: StreamConfig
    created: int
    touched: int
    closed: bool
    messages: list[bytes]
    closed_by: Producer | None = None
    seq: str | None = None
    producers: dict[str, ProducerState] = field(default_factory=dict)
    inherited: bytes = b""
    lineage: list[tuple[int, int]] = field(default_factory=list)
    source: Line | None = None
    source_path: str | None = None
    earliest: int = 0

    def __post_init__(self) -> None:
        self.lineage = [*self.lineage, (self.id, len(self.data) if self.source else 0)]

    @property
    def data(self) -> bytes:
        return self.inherited + b"".join(self.messages)

    @property
    def earliest_ordinal(self) -> int:
        return self.ordinal(self.earliest)

    def ordinal(self, position: int) -> int:
        return self.data.count(b"\n", 0, position) if self.config.content_type == JSON else 0

    def token(self, position: int | None = None) -> str:
        at = len(self.data) if position is None else position
        generation = next(id for id, start in reversed(self.lineage) if start <= at)
        return f"{generation:016d}_{at:016d}"

    def spellings(self) -> list[str]:
        """Every offset of this stream; a fork point has one of each side."""
        ends = [start for _, start in self.lineage[1:]] + [len(self.data)]
        boundaries = set(self.boundaries())
        return [
            f"{id:016d}_{at:016d}"
            for number, (id, start) in enumerate(self.lineage)
            for at in range(start, min(ends[number:]) + 1)
            if at in boundaries
        ]

    def boundaries(self) -> list[int]:
        if self.config.content_type != JSON:
            return list(range(self.earliest, len(self.data) + 1))
        ends = (len(b"".join(self.messages[:n])) for n in range(len(self.messages) + 1))
        return [boundary for boundary in ends if boundary >= self.earliest]

    def trimmed(self) -> Refused:
        return Refused("stream-trimmed", Stream_Earliest_Offset=self.token(self.earliest))

    def expired(self, now: int) -> bool:
        if self.config.ttl_s is not None:
            return now >= self.touched + self.config.ttl_s * 1_000_000
        return self.config.expires_at_us is not None and now >= self.config.expires_at_us


def framed(body: bytes, content_type: str, *, allow_empty: bool) -> list[bytes]:
    if content_type != JSON or not body:
        return [body] if body else []
    try:
        value = json.loads(body)
    except ValueError:
        raise Refused("invalid-json") from None
    values = value if isinstance(value, list) else [value]
    if not values and not allow_empty:
        raise Refused("empty-array")
    return [json.dumps(each, separators=(",", ":")).encode() + b",\n" for each in values]


class Reference:
    def __init__(self) -> None:
        self.now = 0
        self.lines: dict[str, Line] = {}
        self.soft_deleted: dict[str, Line] = {}
        """Deleted, but forks still need them."""
        self.next_generation = 1
        self.last_generation = 0
        self.has_noticed_expiry = False

    def find(self, path: str, *, touch: bool) -> Line:
        if path in self.lines and self.lines[path].expired(self.now):
            self.has_noticed_expiry = True
            self._end(path)
        if path in self.soft_deleted:
            raise Refused("stream-soft-deleted")
        if path not in self.lines:
            raise Refused("stream-not-found")
        if touch:
            self.lines[path].touched = self.now
        return self.lines[path]

    def create(self, path: str, config: StreamConfig, body: bytes, closed: bool) -> Any:
        line = self.at(path)
        if line is None:
            messages = framed(body, config.content_type, allow_empty=True)
            line = Line(self.next_generation, config, self.now, self.now, closed, messages)
            return self._created(path, line)
        if line.source is not None or (line.config, line.closed) != (config, closed):
            raise Refused("stream-exists")
        line.touched = self.now
        return line.token(), False, closed, config.content_type

    def _created(self, path: str, line: Line) -> Any:
        self.last_generation, self.next_generation = line.id, line.id + 1
        self.lines[path] = line
        return line.token(), True, line.closed, line.config.content_type

    def at(self, path: str) -> Line | None:
        """What a creation finds at its path."""
        try:
            return self.find(path, touch=False)
        except Refused as refused:
            if refused.code == "stream-soft-deleted":
                raise Refused("path-blocked") from None
            return None

    def fork(
        self,
        path: str,
        source: str,
        offset: str | None,
        sub_offset: int,
        requested: ForkConfig,
        body: bytes,
        closed: bool,
    ) -> Any:
        line = self.at(path)
        if line is not None:
            if line.source is None or line.source_path != source:
                raise Refused("stream-exists")
            origin = line.source
        else:
            origin = self._origin(source)
        position = self._fork_position(origin, offset, sub_offset)
        if line is not None and offset is not None and position != line.lineage[-1][1]:
            raise Refused("stream-exists")
        config = self._fork_config(origin.config, requested)
        if line is not None:
            if (line.config, line.closed) != (config, closed):
                raise Refused("stream-exists")
            line.touched = self.now
            return line.token(), False, closed, config.content_type
        is_json = config.content_type == JSON
        own = framed(body, config.content_type, allow_empty=True)
        count = origin.data.count(b"\n", 0, position)
        line = Line(
            self.next_generation,
            config,
            self.now,
            self.now,
            closed,
            origin.messages[:count] if is_json else [],
            inherited=b"" if is_json else origin.data[:position],
            lineage=origin.lineage,
            source=origin,
            source_path=source,
            earliest=origin.earliest,
        )
        line.messages += own
        return self._created(path, line)

    def _origin(self, path: str) -> Line:
        try:
            return self.find(path, touch=False)
        except Refused as refused:
            if refused.code == "stream-soft-deleted":
                raise Refused("fork-source-deleted") from None
            raise

    def _fork_config(self, source: StreamConfig, requested: ForkConfig) -> StreamConfig:
        if requested.content_type not in (None, source.content_type):
            raise Refused("content-type-mismatch")
        if requested.ttl_s is None and requested.expires_at_us is None:
            return source
        return StreamConfig(source.content_type, *requested[1:])

    def _fork_position(self, line: Line, offset: str | None, sub_offset: int) -> int:
        position = len(line.data) if offset is None else self.position(line, offset)
        ends = [boundary for boundary in line.boundaries() if boundary >= position]
        if sub_offset >= len(ends):
            raise Refused("invalid-fork-offset")
        return ends[sub_offset]

    def trim(self, path: str, before: str) -> Any:
        line = self.find(path, touch=False)
        try:
            line.earliest = self.position(line, before)
        except Refused as refused:
            if refused.code != "stream-trimmed":
                raise
        return line.token(line.earliest), line.earliest_ordinal

    def append(
        self,
        path: str,
        body: bytes,
        content_type: str | None,
        close: bool,
        producer: Producer | None,
        seq: str | None,
        expected: str | None,
    ) -> Any:
        line = self.find(path, touch=False)
        known = None if producer is None else line.producers.get(producer.id)
        if line.closed:
            return self._closed(line, body, close, producer, known)
        if not body and not close:
            raise Refused("empty-body")
        if body and content_type is None:
            raise Refused("missing-content-type")
        if body and content_type != line.config.content_type:
            raise Refused("content-type-mismatch")
        if producer is not None and is_duplicate(known, producer):
            line.touched = self.now
            return line.token(), False, True, known, len(line.messages)
        if seq is not None and line.seq is not None and seq.encode() <= line.seq.encode():
            raise Refused("stream-seq-conflict")
        if expected not in (None, "*") and not self._is_tail(line, expected):
            raise Refused("tail-moved", Stream_Next_Offset=line.token())
        ordinal = len(line.messages)
        line.messages += framed(body, line.config.content_type, allow_empty=False)
        line.touched = self.now
        line.seq = seq or line.seq
        state = None if producer is None else ProducerState(producer.epoch, producer.seq)
        if producer is not None and state is not None:
            line.producers[producer.id] = state
        if close:
            line.closed, line.closed_by = True, producer
        return line.token(), close, False, state, ordinal

    def _closed(
        self,
        line: Line,
        body: bytes,
        close: bool,
        producer: Producer | None,
        known: ProducerState | None,
    ) -> Any:
        if (close and not body) or (producer is not None and producer == line.closed_by):
            line.touched = self.now
            return line.token(), True, True, known, len(line.messages)
        epoch = {} if known is None else {"Producer_Epoch": known.epoch}
        raise Refused(
            "stream-closed", Stream_Closed="true", Stream_Next_Offset=line.token(), **epoch
        )

    def _is_tail(self, line: Line, expected: str) -> bool:
        """An offset that is the tail, in any spelling."""
        try:
            return "_" in expected and self.position(line, expected) == len(line.data) == int(
                expected.split("_")[1]
            )
        except Refused:
            return False

    def delete(self, path: str) -> None:
        self.find(path, touch=False)
        self._end(path)

    def _end(self, path: str) -> None:
        line = self.lines.pop(path)
        if self._is_source(line):
            self.soft_deleted[path] = line
            return
        source = line.source
        while source is not None and not self._is_source(source):
            paths = [
                path for path, soft_deleted in self.soft_deleted.items() if soft_deleted is source
            ]
            if not paths:
                return
            del self.soft_deleted[paths[0]]
            source = source.source

    def _is_source(self, line: Line) -> bool:
        return bool(self.forks(line))

    def forks(self, line: Line) -> list[Line]:
        """Forks made from this stream, those kept for forks of their own included."""
        return [
            each
            for each in [*self.lines.values(), *self.soft_deleted.values()]
            if each.source is line
        ]

    def reap(self) -> None:
        for path in [path for path, line in self.lines.items() if line.expired(self.now)]:
            self._end(path)

    def position(self, line: Line, offset: str) -> int:
        if offset in ("-1", "now"):
            return line.earliest if offset == "-1" else len(line.data)
        generation, position = map(int, offset.split("_"))
        if (generation, position) == (0, 0):
            return line.earliest
        self._check_generation(line, generation, position)
        if position > len(line.data):
            raise Refused("offset-beyond-tail")
        if position < line.earliest:
            raise line.trimmed()
        if position not in line.boundaries():
            raise Refused("offset-not-aligned")
        return position

    def _check_generation(self, line: Line, generation: int, position: int) -> None:
        if generation == line.id:
            return  # in its own spelling a fork takes what it inherited, too
        known = dict(line.lineage)
        if generation not in known:
            raise Refused("stream-recreated" if generation < line.id else "invalid-offset")
        later = [start for id, start in line.lineage if id > generation]
        if position < known[generation] or position > min(later, default=position):
            raise Refused("invalid-offset")

    def end(
        self, line: Line, start: int, max_bytes: int, until: int | None, count: int | None
    ) -> int:
        """At most so many bytes and messages, but at least one message; never beyond `until`."""
        after = [
            boundary
            for boundary in line.boundaries()
            if start < boundary <= (until or len(line.data))
        ]
        fitting = [boundary for boundary in after if boundary <= start + max_bytes] or after[:1]
        return [start, *fitting[:count]][-1]

    def list(self, prefix: str, after: str, limit: int) -> list[str]:
        paths = sorted(path for path in self.lines if not self.lines[path].expired(self.now))
        return [path for path in paths if path.startswith(prefix) and path > after][:limit]


def is_duplicate(known: ProducerState | None, producer: Producer) -> bool:
    """Section 5.2.1; an unknown producer is one whose next sequence is 0 in any epoch."""
    gap = {"Producer_Received_Seq": producer.seq}
    if known is None:
        if producer.seq != 0:
            raise Refused("producer-sequence-gap", Producer_Expected_Seq=0, **gap)
        return False
    if producer.epoch < known.epoch:
        raise Refused("stale-epoch", Producer_Epoch=known.epoch)
    if producer.epoch > known.epoch:
        if producer.seq != 0:
            raise Refused("epoch-must-start-at-zero")
        return False
    if producer.seq > known.seq + 1:
        raise Refused("producer-sequence-gap", Producer_Expected_Seq=known.seq + 1, **gap)
    return producer.seq <= known.seq
