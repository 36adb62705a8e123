"""Where a writer stands in its input, kept by the stream it writes to.

A server remembers the epoch of each producer together with the data, in one step, and an epoch
need only grow. So each request carries, as its epoch, the position in the input that is reached
with it. After any crash the server can be asked for it, and what it has is never sent again. No
file has to be kept, on any machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import ProtocolError, SequenceGap, StaleEpoch, StreamClosed, TailMoved
from penstock.limits import INTEGER_MAX
from penstock.protocol.headers import is_json

if TYPE_CHECKING:
    from penstock.client.answers import Appended
    from penstock.client.sync.stream import Stream

LINE_BITS: Final = 32
CONTENTION_MAX: Final = 100

_SEEKABLE = re.compile(r"(\d{16})_(\d{16})", re.ASCII)


def known_epoch(stream: Stream, producer_id: str) -> int | None:
    """The epoch that the server has of a producer, or None if it knows no such producer.

    Asked by a request that no server may accept: a new producer starts at sequence 0, and a known
    one has not come this far.
    """
    content_type = stream.content_type or stream.head().content_type
    value: Any = None if is_json(content_type) else b"\n"
    try:
        stream.append(value, content_type=content_type, producer=(producer_id, 0, INTEGER_MAX))
    except StaleEpoch as error:
        if error.epoch is None:
            raise ProtocolError("A stale epoch was answered without Producer-Epoch.") from None
        return error.epoch
    except StreamClosed as error:
        return error.epoch
    except SequenceGap as error:
        return 0 if error.expected else None
    raise ProtocolError("The server accepts a gap in the sequence of a producer.")


class SeekableOffset(NamedTuple):
    """An offset whose second half is a position that grows; the first half names the stream's life.

    Penstock's offsets are such, and those of the reference server.
    """

    generation: str
    position: int

    @property
    def token(self) -> str:
        return f"{self.generation}_{self.position:016d}"


def seekable(offset: str) -> SeekableOffset | None:
    match = _SEEKABLE.fullmatch(offset)
    if match is None or int(match[2]) > INTEGER_MAX:
        return None
    return SeekableOffset(match[1], int(match[2]))


class Record(NamedTuple):
    """A line of the input: its number, from 1, and what is appended for it."""

    number: int
    data: bytes


class LineMark:
    """Appends numbered lines, each exactly once, whoever else appends to the stream.

    An epoch holds the number of this run above the number of the last line. The run makes requests
    of a killed run stale once ours is stored; before that, a condition on the tail finds out
    whether one of them arrived after the server was asked.
    """

    def __init__(self, stream: Stream, producer_id: str) -> None:
        self._stream = stream
        self._id = producer_id
        self.skipped = 0
        self._find()

    def _find(self) -> None:
        # The tail first: what is stored after this look is noticed by the condition.
        self._tail: str | None = self._stream.head().offset
        run, self._line = divmod(known_epoch(self._stream, self._id) or 0, 1 << LINE_BITS)
        self._run = run + 1

    def append(self, records: Sequence[Record]) -> Appended | None:
        """Append those of the records that are not stored yet; None if all of them are."""
        for _ in range(CONTENTION_MAX):
            missing = [record for record in records if record.number > self._line]
            if not missing:
                self.skipped += len(records)
                return None
            epoch = self._run << LINE_BITS | records[-1].number
            try:
                answer = self._stream.append_many(
                    [record.data for record in missing],
                    if_match=self._tail,
                    producer=(self._id, epoch, 0),
                )
            except TailMoved:
                self._find()
                continue
            except StaleEpoch as error:
                if self._tail is not None:  # a late request of a killed run, as above
                    self._find()
                    continue
                raise StaleEpoch(
                    f"Another run has taken over producer {self._id!r}, which knows better what "
                    "is still to be appended.",
                    **{name.replace("-", "_"): value for name, value in error.headers.items()},
                ) from None
            self.skipped += len(records) - len(missing)
            self._tail = None
            self._line = records[-1].number
            return answer
        raise TailMoved(f"Others append to {self._stream.url} too fast to get a word in.")
