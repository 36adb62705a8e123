"""The bytes of an answer as Arrow columns, without a Python object for each message where possible.

Knows the wire shape of JSON reads; does no I/O. Messages are found by their positions in the bytes,
with numpy, and cut out once: Arrow's own functions for text take several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ProtocolError
from penstock.limits import OFFSET_DIGITS, SPARK_ROW_BYTES
from penstock.spark.arrow_columns import RAW_ARROW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

# pyarrow creates its functions at run time, so that no type checker sees them.
_compute: Any = pc
_SEPARATOR: Final = b",\n"
_COMMA, _LINE_FEED = _SEPARATOR
_GROUP: Final = 10_000  # offsets are written four digits at a time
_DIGIT_GROUPS: Final = OFFSET_DIGITS // 4
_TOKEN: Final = np.dtype(
    [
        ("generation", f"S{OFFSET_DIGITS}"),
        ("separator", "S1"),
        ("digits", np.uint32, (_DIGIT_GROUPS,)),
    ]
)
# For eight flags in one number, the first in its lowest byte on any machine: see true_at.
_EIGHT: Final = np.dtype("<u8")
_ONE: Final = np.uint64(1)
_NUMBERS: Final = np.uint64(0x0001020304050607)
_TOP: Final = np.uint64(56)
_TWO_GROUPS: Final = _GROUP * _GROUP
# The same token, if all rows have the same digits but the last eight.
_SAME_BEFORE: Final = np.dtype(
    [("same", f"V{2 * OFFSET_DIGITS + 1 - 8}"), ("upper", np.uint32), ("lower", np.uint32)]
)
_BLOCK_BYTES: Final = 1024 * 1024
_REPEATED_MAX: Final = 100_000  # values of a column that is kept for the next answer
_split: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Where(NamedTuple):
    """The location of one answer: its stream, its first message and its end."""

    stream: str
    generation: int | None
    position: int
    seq: int
    end_offset: str
    end_byte: int | None  # None for other servers, whose offsets are not bytes


class Frame:
    """A JSON array in wire shape, and where in it each message begins and ends."""

    __slots__ = ("body", "data", "ends", "starts")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.data = np.frombuffer(body, np.uint8)
        breaks = _line_feeds(self.data)
        is_separator = self.data[breaks - 1] == _COMMA
        if not is_separator.all():
            breaks = breaks[is_separator]
        self.starts = np.concatenate(([1], breaks + 1))
        self.ends = np.concatenate((breaks - 1, [len(body) - 1]))

    def __len__(self) -> int:
        return len(self.starts)

    def texts(self, starts: Numbers, ends: Numbers, kind: pa.DataType) -> pa.Array:
        """The texts between ascending positions."""
        return cut_out(self.body, starts, ends, kind)


class Messages:
    """The messages of one answer, and the columns of their location. Payloads are cut out when they
    are asked for: events need none."""

    __slots__ = ("_payloads", "columns", "frame")

    def __init__(
        self, columns: list[pa.Array], *, frame: Frame | None = None, payloads: pa.Array = None
    ) -> None:
        self.columns = columns
        self.frame = frame
        self._payloads = payloads

    @property
    def payloads(self) -> pa.Array:
        if self._payloads is None:
            assert self.frame is not None
            self._payloads = self.frame.texts(self.frame.starts, self.frame.ends, pa.binary())
        return self._payloads

    def __len__(self) -> int:
        return len(self.columns[0])


def json_messages(body: bytes, where: Where) -> Messages:
    """The messages of a JSON array."""
    if where.end_byte is None:
        payloads = pa.array([bytes(raw) for raw in _split(body)], pa.binary())
        columns = _counted(numbers(where.seq, len(payloads)), where)
        return Messages(columns, payloads=payloads)
    if len(body) <= 2:
        return _no_messages()
    frame = Frame(body)
    # An answer has brackets where the log has the separator of its last message.
    _check_end(where.position + len(body), where)
    starts, ends = frame.starts + (where.position - 1), frame.ends + (where.position + 1)
    seqs = numbers(where.seq, len(frame))
    return Messages(_measured(starts, ends, seqs, where), frame=frame)


def joined_messages(answers: Sequence[tuple[bytes, Where]]) -> Messages:
    """Join many small JSON arrays into one, and return its messages.

    An Arrow array for each answer would cost more.
    """
    inner = [body[1:-1] for body, _ in answers]
    frame = Frame(b"[" + _SEPARATOR.join(inner) + b"]")
    wheres = [where for _, where in answers]
    sizes = np.array([len(each) + len(_SEPARATOR) for each in inner], np.int64)
    ends = np.cumsum(sizes)
    shifts = np.array([where.position for where in wheres], np.int64) - (ends - sizes)
    for end, where in zip((ends + shifts).tolist(), wheres, strict=True):
        _check_end(end, where)
    # The first message of each answer, then the number of messages in it.
    firsts = np.searchsorted(frame.starts, ends - sizes + 1)
    counts = np.diff(firsts, append=len(frame))
    owner = np.repeat(np.arange(len(wheres)), counts)
    shift = shifts[owner]
    begins = np.array([where.seq for where in wheres], np.int64) - firsts
    generations = np.array([where.end_offset.partition("_")[0] for where in wheres], "S16")
    each = pa.array(owner)
    message_ends = frame.ends + (shift + 1)
    columns = [
        pa.array([where.stream for where in wheres], pa.string()).take(each),
        pa.array([where.generation for where in wheres], pa.int64()).take(each),
        pa.array(frame.starts + (shift - 1)),
        pa.array(np.arange(len(frame)) + begins[owner]),
        offset_tokens(generations[owner], message_ends),
    ]
    return Messages(columns, frame=frame)


class _Located(msgspec.Struct, frozen=True):
    positions: list[int]
    ordinals: list[int]
    messages: msgspec.Raw


def located_messages(document: bytes, where: Where) -> Messages:
    """The messages that passed a filter of the server, with their locations."""
    page = msgspec.json.decode(document, type=_Located)
    if not page.positions:
        return _no_messages()
    frame = Frame(bytes(page.messages))
    starts = np.array(page.positions, np.int64)
    ends = starts + (frame.ends - frame.starts + len(_SEPARATOR))
    columns = _measured(starts, ends, pa.array(page.ordinals, pa.int64()), where)
    return Messages(columns, frame=frame)


def message_count(body: bytes) -> int:
    """The number of messages of a non-empty array: no JSON message contains the separator."""
    return body.count(_SEPARATOR) + 1


def cut_out(body: bytes, starts: Numbers, ends: Numbers, kind: pa.DataType) -> pa.Array:
    """The texts of `body` between ascending positions, as one column."""
    count = len(starts)
    # All of the body as texts without a copy, of which every other one is taken.
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    pieces = pa.Array.from_buffers(
        kind, 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(body)]
    )
    return pieces.take(_every_other(1 << count.bit_length()).slice(0, count))


@lru_cache(maxsize=4)
def _every_other(count: int) -> pa.Array:
    """0, 2, 4…: so many, for the next answers, too."""
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.uint32))


def _line_feeds(data: NDArray[np.uint8]) -> Numbers:
    """Where line feeds are, block by block: what is compared stays in the processor's cache."""
    flags = np.empty(min(len(data), _BLOCK_BYTES), np.bool_)
    found = []
    for first in range(0, len(data), _BLOCK_BYTES):
        block = data[first : first + _BLOCK_BYTES]
        is_line_feed = flags[: len(block)]
        np.equal(block, _LINE_FEED, out=is_line_feed)
        found.append(true_at(is_line_feed) + first)
    return np.concatenate(found)


def true_at(flags: NDArray[np.bool_]) -> Numbers:
    """Where flags are true: eight are looked at together, which takes half the time if few are."""
    whole = len(flags) // 8 * 8
    eights = flags[:whole].view(_EIGHT)
    at = np.flatnonzero(eights != 0)
    found = eights[at]
    if (found & (found - _ONE)).any():
        return np.flatnonzero(flags)  # several in one place: short messages
    # The only byte that is not 0 moves its own number to the top.
    within = ((found * _NUMBERS) >> _TOP).view(np.int64)
    return np.concatenate((at * 8 + within, np.flatnonzero(flags[whole:]) + whole))


def offset_tokens(generations: NDArray[np.bytes_] | str, ends: Numbers) -> pa.Array:
    """Offsets as clients write them: generation and byte, in digits. Those of one generation are
    ascending."""
    count = len(ends)
    high = int(ends[0]) // _TWO_GROUPS if count else 0
    if isinstance(generations, str) and count and int(ends[-1]) // _TWO_GROUPS == high:
        # As in most answers: only the last digits differ.
        digits = OFFSET_DIGITS - 8
        token = bytearray(f"{generations}_{high:0{digits}d}{0:08d}".encode())
        tokens = np.frombuffer(token * count, _SAME_BEFORE)
        low = (ends - high * _TWO_GROUPS).astype(np.uint32)
        upper = low // np.uint32(_GROUP)
        tokens["upper"] = _digits().take(upper)
        tokens["lower"] = _digits().take(low - upper * np.uint32(_GROUP))
    else:
        tokens = np.empty(count, _TOKEN)
        tokens["generation"] = generations
        tokens["separator"] = b"_"
        rest = ends
        for group in reversed(range(_DIGIT_GROUPS)):
            above = rest // _GROUP
            tokens["digits"][:, group] = _digits()[rest - above * _GROUP]
            rest = above
            if group and count and int(rest.min()) == int(rest.max()):
                text = f"{int(rest[0]):0{4 * group}d}".encode()
                tokens["digits"][:, :group] = np.frombuffer(text, np.uint32)
                break
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(_TOKEN.itemsize)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(tokens)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


@cache
def _digits() -> NDArray[np.uint32]:
    """Four digits, as four bytes, of each number below ten thousand."""
    return np.frombuffer(b"".join(b"%04d" % number for number in range(_GROUP)), np.uint32)


def _check_end(end: int, where: Where) -> None:
    if end != where.end_byte:
        raise ProtocolError(
            f"An answer of {where.stream} ends at {where.end_offset}, and its messages end at "
            f"byte {end}: something between the server and this reader rewrites JSON. Bypass it."
        )


def byte_messages(body: bytes, where: Where) -> Messages:
    """Cut a byte stream, which has no messages, into pieces at fixed bytes."""
    view = memoryview(body)
    first = SPARK_ROW_BYTES - where.position % SPARK_ROW_BYTES
    cuts = [0, *range(first, len(body), SPARK_ROW_BYTES), len(body)] if body else []
    pieces = [view[low:high] for low, high in pairwise(cuts)]
    payloads = pa.array([bytes(piece) for piece in pieces], pa.binary())
    starts = pa.array([where.position + low for low in cuts[:-1]], pa.int64())
    if where.end_byte is None:
        return Messages(_counted(starts, where), payloads=payloads)
    if not body:
        return _no_messages()
    begins = np.array(cuts[:-1], np.int64) + where.position
    ends = np.array(cuts[1:], np.int64) + where.position
    return Messages(_measured(begins, ends, starts, where), payloads=payloads)


def raw_batch(messages: Messages) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*messages.columns, messages.payloads], schema=RAW_ARROW)


def take(messages: Messages, skip: int, count: int | None) -> Messages:
    """The `count` messages after the first `skip`; None for all of them."""
    length = len(messages) - skip if count is None else min(count, len(messages) - skip)
    columns = [column.slice(skip, length) for column in messages.columns]
    return Messages(columns, payloads=messages.payloads.slice(skip, length))


def repeated(value: str | int | None, count: int, kind: pa.DataType) -> pa.Array:
    if value is None:
        return pa.nulls(count, kind)
    if count > _REPEATED_MAX:
        return pa.repeat(pa.scalar(value, kind), count)
    # Answers of one stream follow each other, with about as many messages.
    return _repeated(value, 1 << count.bit_length(), kind).slice(0, count)


@lru_cache(maxsize=4)
def _repeated(value: str | int, count: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def numbers(first: int, count: int) -> pa.Array:
    return pa.array(np.arange(first, first + count, dtype=np.int64))


def texts(values: Sequence[str | None], *, sparse: bool = False) -> pa.Array:
    """A column of texts; in a sparse one an empty text stands for null."""
    if sparse:
        if not any(values):
            return pa.nulls(len(values), pa.string())
        return pa.array([value or None for value in values], pa.string())
    return pa.array(values, pa.string())


def raw_texts(values: Sequence[msgspec.Raw]) -> pa.Array:
    """A column of JSON texts from views into a larger body; an empty one stands for null."""
    # Joined at once: a Python object for each text would take twice as long as everything else.
    data = b"".join(values)
    if not data:
        return pa.nulls(len(values), pa.string())
    lengths = pa.array(list(map(len, values)), pa.int32())
    ends = _compute.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    present = _compute.not_equal(lengths, 0)
    valid = None if all(values) else present.buffers()[1]
    return pa.Array.from_buffers(
        pa.string(), len(values), [valid, offsets.buffers()[1], pa.py_buffer(data)]
    )


def _measured(starts: Numbers, ends: Numbers, seqs: pa.Array, where: Where) -> list[pa.Array]:
    """Location columns of a stream whose offsets are generation and byte."""
    count = len(starts)
    return [
        repeated(where.stream, count, pa.string()),
        repeated(where.generation, count, pa.int64()),
        pa.array(starts),
        seqs,
        offset_tokens(where.end_offset.partition("_")[0], ends),
    ]


def _counted(seqs: pa.Array, where: Where) -> list[pa.Array]:
    """Location columns of messages that have numbers but no offsets.

    Only the end of an answer has an offset, and answers do not end at the same message each time.
    """
    count = len(seqs)
    return [
        repeated(where.stream, count, pa.string()),
        repeated(where.generation, count, pa.int64()),
        seqs,
        seqs,
        pa.nulls(count, pa.string()),
    ]


def _no_messages() -> Messages:
    columns = [pa.array([], RAW_ARROW.field(index).type) for index in range(5)]
    return Messages(columns, payloads=pa.array([], pa.binary()))
