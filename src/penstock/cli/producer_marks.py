"""The progress of a writer in its input, stored by the stream it writes to.

A server stores the epoch of each producer together with the data, in one step, and an epoch only
has to grow. So each request carries, as its epoch, the position in the input after it. After a
crash the writer asks the server for the epoch and sends nothing twice. It needs no file.
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


def stored_epoch(stream: Stream, producer_id: str) -> int | None:
    """Return the epoch that the server stores for a producer, or None for an unknown producer.

    The request is one that no server may accept: a new producer starts at sequence 0, and no
    existing producer has got this far.
    """
    content_type = stream.content_type or stream.head().content_type
    value: Any = None if is_json(content_type) else b"\n"
    try:
        stream.append(value, content_type=content_type, producer=(producer_id, 0, INTEGER_MAX))
    except StaleEpoch as error:
        if error.epoch is None:
            raise ProtocolError(
                "The server refused a stale epoch without naming Producer-Epoch."
            ) from None
        return error.epoch
    except StreamClosed as error:
        return error.epoch
    except SequenceGap as error:
        return 0 if error.expected else None
    raise ProtocolError("The server accepted a gap in the sequence of a producer.")


class SeekableOffset(NamedTuple):
    """An offset of a generation of the stream and a position that grows.

    The offsets of Penstock and of the reference server are of this form.
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
    """A line of the input: its number, from 1, and the bytes to append for it."""

    number: int
    data: bytes


class LineMark:
    """Appends numbered lines, each exactly once, also beside other writers of the stream.

    An epoch holds the number of this run above the number of the last line. A request of this run
    fences those of a killed run. Before the first one, a condition on the tail detects a request
    of a killed run that arrived after the server was asked.
    """

    def __init__(self, stream: Stream, producer_id: str) -> None:
        self._stream = stream
        self._id = producer_id
        self.skipped = 0
        self._resume()

    def _resume(self) -> None:
        # The tail comes first, so that the condition detects any later append.
        self._tail: str | None = self._stream.head().offset
        run, self._line = divmod(stored_epoch(self._stream, self._id) or 0, 1 << LINE_BITS)
        self._run = run + 1

    def append(self, records: Sequence[Record]) -> Appended | None:
        """Append the records that are not stored yet. Return None if all of them are."""
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
                self._resume()
                continue
            except StaleEpoch as error:
                if self._tail is not None:  # a late request of a killed run
                    self._resume()
                    continue
                raise StaleEpoch(
                    f"Another run appends as producer {self._id!r}. Let that run finish, or use "
                    "another --producer.",
                    **{name.replace("-", "_"): value for name, value in error.headers.items()},
                ) from None
            self.skipped += len(records) - len(missing)
            self._tail = None
            self._line = records[-1].number
            return answer
        raise TailMoved(
            f"Other writers append to {self._stream.url} all the time. Try again later."
        )
