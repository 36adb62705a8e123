"""What the protocol's text says about streams, in plain lists: no files, no batches, no waiting.

Positions are byte positions and generations count creations, which is how Penstock spells offsets;
everything else follows from sections 4, 5 and 8 of the text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.producer import ProducerState

JSON = "application/json"


class Refused(Exception):
    def __init__(self, code: str, **headers: object) -> None:
        self.code = code
        self.headers = {name.replace("_", "-"): str(value) for name, value in headers.items()}


@dataclass
class Line:
    """One stream: its messages in wire shape, and what writers have told about themselves."""

    id: int
    config: StreamConfig
    created: int
    touched: int
    closed: bool
    messages: list[bytes]
    closed_by: Producer | None = None
    seq: str | None = None
    producers: dict[str, ProducerState] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        return b"".join(self.messages)

    def token(self, position: int | None = None) -> str:
        return f"{self.id:016d}_{len(self.data) if position is None else position:016d}"

    def boundaries(self) -> list[int]:
        if self.config.content_type != JSON:
            return list(range(len(self.data) + 1))
        return [len(b"".join(self.messages[:n])) for n in range(len(self.messages) + 1)]

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
        self.next_generation = 1
        self.last_generation = 0

    def find(self, path: str, *, touch: bool) -> Line:
        if path in self.lines and self.lines[path].expired(self.now):
            del self.lines[path]
        if path not in self.lines:
            raise Refused("stream-not-found")
        if touch:
            self.lines[path].touched = self.now
        return self.lines[path]

    def create(self, path: str, config: StreamConfig, body: bytes, closed: bool) -> Any:
        try:
            line = self.find(path, touch=False)
        except Refused:
            messages = framed(body, config.content_type, allow_empty=True)
            line = Line(self.next_generation, config, self.now, self.now, closed, messages)
            self.last_generation, self.next_generation = line.id, line.id + 1
            self.lines[path] = line
            return line.token(), True, closed, config.content_type
        if (line.config, line.closed) != (config, closed):
            raise Refused("stream-exists")
        line.touched = self.now
        return line.token(), False, closed, config.content_type

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
            return line.token(), False, True, known
        if seq is not None and line.seq is not None and seq.encode() <= line.seq.encode():
            raise Refused("stream-seq-conflict")
        if expected not in (None, "*", line.token()):
            raise Refused("tail-moved", Stream_Next_Offset=line.token())
        line.messages += framed(body, line.config.content_type, allow_empty=False)
        line.touched = self.now
        line.seq = seq or line.seq
        state = None if producer is None else ProducerState(producer.epoch, producer.seq)
        if producer is not None and state is not None:
            line.producers[producer.id] = state
        if close:
            line.closed, line.closed_by = True, producer
        return line.token(), close, False, state

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
            return line.token(), True, True, known
        epoch = {} if known is None else {"Producer_Epoch": known.epoch}
        raise Refused(
            "stream-closed", Stream_Closed="true", Stream_Next_Offset=line.token(), **epoch
        )

    def delete(self, path: str) -> None:
        self.find(path, touch=False)
        del self.lines[path]

    def position(self, line: Line, offset: str) -> int:
        if offset in ("-1", "now"):
            return 0 if offset == "-1" else len(line.data)
        generation, position = map(int, offset.split("_"))
        if (generation, position) == (0, 0):
            return 0
        if generation != line.id:
            raise Refused("stream-recreated" if generation < line.id else "invalid-offset")
        if position > len(line.data):
            raise Refused("offset-beyond-tail")
        if position not in line.boundaries():
            raise Refused("offset-not-aligned")
        return position

    def end(
        self, line: Line, start: int, max_bytes: int, until: int | None, count: int | None
    ) -> int:
        """At most so many bytes and messages, but at least one message; never beyond `until`."""
        after = [place for place in line.boundaries() if start < place <= (until or len(line.data))]
        fitting = [place for place in after if place <= start + max_bytes] or after[:1]
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
