"""Change events that are written alike, cut out of the bytes of an answer as columns: without a
Python object for an event, which takes an eighth of the time that decoding them takes.

Writers write the members of their events in one order and without spaces. A shape is that order,
learned from one event. An event has the shape if the text between its members is the shape's, byte
for byte, if its short texts have no escapes, and if its `value` is one JSON value. The rest of an
answer is for the decoder. Relies on messages being valid JSON, which a Penstock server checks
before it stores them.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.limits import JSON_DEPTH_MAX
from penstock.spark.source.arrow import Frame, cut_out
from penstock.state.event import OPERATIONS
from penstock.state.json import SHALLOW_BYTES_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

SHAPES_MAX: Final = 4  # in one answer; events of further shapes are decoded
_LEARNED_BYTES_MAX: Final = 64 * 1024  # a longer event is not worth learning from
_WORD: Final = 8
_TEXT_WORDS_MAX: Final = 64  # a text that is longer is left to the decoder
_ALL_QUOTES: Final = np.uint64(0x2222222222222222)
_LOW_BITS: Final = np.uint64(0x0101010101010101)
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_QUOTE, _BACKSLASH, _OPEN, _CLOSE = b'"\\{}'
_BEFORE_OPEN: Final = ord("z")
_compute: Any = pc

_TEXT: Final = rb'"(?:type|key)":"[^"\\]+"'
_HEADER: Final = rb'"(?:operation|txid|timestamp)":"[^"\\]+"'
_MEMBER: Final = rb'(?:%s|"headers":\{%s(?:,%s)*\})' % (_TEXT, _HEADER, _HEADER)
_HEAD: Final = re.compile(rb'\{(?:%s,)*(?:"value":|%s\})' % (_MEMBER, _MEMBER))
_FOOT: Final = re.compile(rb"(?:,%s)*\}\Z" % _MEMBER)
_CAPTURE: Final = re.compile(rb'"(type|key|operation|txid|timestamp)":"([^"\\]+)(?=")')
_SURROGATE: Final = re.compile(rb"\\u[dD]")


class Shape(NamedTuple):
    """The text around the members of an event, before its value and after it.

    Between two literals of `head`, and of `foot`, is the text of the field of the same index. An
    event without a value has no `foot`.
    """

    head: tuple[bytes, ...]
    head_fields: tuple[str, ...]
    foot: tuple[bytes, ...] | None
    foot_fields: tuple[str, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.head_fields, *self.foot_fields)

    def count(self, character: bytes) -> int:
        """How often a character is in the literals."""
        return sum(each.count(character) for each in (*self.head, *(self.foot or ())))


def learn(message: bytes) -> Shape | None:
    """The shape of a change event; None if it is written in a way that no shape has."""
    head = None if len(message) > _LEARNED_BYTES_MAX else _HEAD.match(message)
    if head is None:
        return None
    has_value = head[0].endswith(b":")
    foot = _FOOT.search(message, head.end()) if has_value else None
    if has_value != (foot is not None) or (not has_value and head.end() != len(message)):
        return None
    head_literals, head_fields = _literals(head[0])
    foot_literals, foot_fields = ((), ()) if foot is None else _literals(foot[0])
    shape = Shape(head_literals, head_fields, None if foot is None else foot_literals, foot_fields)
    needed = {"type", "key", "operation"}
    is_plain = len(set(shape.fields)) == len(shape.fields) and needed <= set(shape.fields)
    return shape if is_plain and shape.count(b'"headers"') == 1 else None


def _literals(text: bytes) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
    literals, fields, at = [], [], 0
    for capture in _CAPTURE.finditer(text):
        literals.append(text[at : capture.start(2)])
        fields.append(capture[1].decode())
        at = capture.end()
    return (*literals, text[at:]), tuple(fields)


class Rows(NamedTuple):
    """The events of one shape: which messages they are, and the columns that they have."""

    messages: Numbers
    columns: dict[str, pa.Array]


class _Quotes(NamedTuple):
    """The quotes that begin and end texts, and the indices of the first and last of a message."""

    at: Numbers
    first: Numbers
    last: Numbers


class Events:
    """An answer whose texts are found by their quotes: from the text before them, or, if the answer
    has escapes, in a list of all quotes."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._body, self._data = frame.body, frame.data
        self._escapes = np.empty(0, np.int64)
        self._is_refused: Mask | None = None
        if _BACKSLASH in self._body:
            self._escapes = np.flatnonzero(self._data == _BACKSLASH)
            self._is_refused = self._with_surrogates()
        # Eight bytes at each position.
        self._words = np.ndarray((len(self._body) - _WORD + 1,), "<u8", self._body, 0, (1,))

    @cached_property
    def _quotes(self) -> _Quotes:
        """All quotes, which takes half as long as everything else."""
        quotes = np.flatnonzero(self._data == _QUOTE)
        if len(self._escapes):
            quotes = np.setdiff1d(quotes, _escaped(self._escapes), assume_unique=True)
        first = np.searchsorted(quotes, self._frame.starts)
        return _Quotes(quotes, first, np.append(first[1:], len(quotes)) - 1)

    def matching(self, shape: Shape, messages: Numbers) -> Rows:
        """The ones of these messages that have a shape."""
        spans, has_shape = self._spans(shape, messages)
        if not has_shape.all():
            spans = {name: (low[has_shape], high[has_shape]) for name, (low, high) in spans.items()}
            messages = messages[has_shape]
        columns = {}
        if len(messages):
            for name, (low, high) in spans.items():
                columns[name] = cut_out(self._body, low, high, pa.string())
            known = _compute.is_in(columns["operation"], pa.array(OPERATIONS, pa.string()))
            if shape.foot is None:
                known = _compute.and_(known, _compute.equal(columns["operation"], "delete"))
            if not _compute.all(known).as_py():
                columns = {name: column.filter(known) for name, column in columns.items()}
                messages = messages[np.asarray(known)]
        return Rows(messages, columns)

    def _spans(
        self, shape: Shape, messages: Numbers
    ) -> tuple[dict[str, tuple[Numbers, Numbers]], Mask]:
        """Where the texts of messages are if they have the shape, and which of them have it."""
        frame = self._frame
        spans: dict[str, tuple[Numbers, Numbers]] = {}
        has = np.ones(len(messages), np.bool_)
        first = last = None
        if self._is_refused is not None:
            first, last = self._quotes.first[messages], self._quotes.last[messages]
            has &= ~self._is_refused[messages] & (last - first + 1 >= shape.count(b'"'))
        at, quote = frame.starts[messages], first
        for literal, field in zip(shape.head, (*shape.head_fields, None), strict=True):
            has &= self._is_at(at, literal)
            at, quote = at + len(literal), _moved(quote, literal.count(b'"'))
            if field is not None:
                end = self._next_quote(at) if quote is None else self._quote(quote)
                spans[field] = (at, end)
                at = end
        if shape.foot is None:
            has &= at == frame.ends[messages]
            return self._checked(spans, has)
        value_start = at
        at, quote = frame.ends[messages], last
        for literal, field in zip(shape.foot[::-1], (*shape.foot_fields[::-1], None), strict=True):
            at, quote = at - len(literal), _moved(quote, -literal.count(b'"'))
            has &= self._is_at(at, literal)
            if field is not None:
                start = (self._quote_before(at) if quote is None else self._quote(quote)) + 1
                spans[field] = (start, at)
                at = start
        has &= at > value_start
        spans, has = self._checked(spans, has)
        spans["value"] = (value_start, at)
        has &= self._is_one_value(shape, has, value_start, at)
        return spans, has

    def _checked(
        self, spans: dict[str, tuple[Numbers, Numbers]], has: Mask
    ) -> tuple[dict[str, tuple[Numbers, Numbers]], Mask]:
        """Refuse texts that are empty or have escapes."""
        for low, high in spans.values():
            has &= high > low
            if len(self._escapes):
                before = np.searchsorted(self._escapes, low)
                has &= before == np.searchsorted(self._escapes, high)
        return spans, has

    def _quote(self, index: Numbers) -> Numbers:
        quotes = self._quotes.at
        return quotes[np.clip(index, 0, len(quotes) - 1)]

    def _next_quote(self, at: Numbers) -> Numbers:
        """The first quote at or after each position, if it is not too far away."""
        quotes = at.copy()
        rows = None
        for _ in range(_TEXT_WORDS_MAX):
            where = quotes if rows is None else quotes[rows]
            last = len(self._words) - 1
            words = self._words[_within(where, last)]
            beyond = where - last
            if int(beyond.max(initial=0)) > 0:  # shifted, so that what is beyond the end is zero
                words = np.where(beyond < _WORD, words >> _bits(beyond), np.uint64(0))
            steps = _bytes_before_quote(words)
            quotes[slice(None) if rows is None else rows] += steps
            rows = np.flatnonzero(steps == _WORD) if rows is None else rows[steps == _WORD]
            if not len(rows):
                break
        return quotes

    def _quote_before(self, at: Numbers) -> Numbers:
        """The last quote before each position, if it is not too far away."""
        quotes = at - 1
        rows = None
        for _ in range(_TEXT_WORDS_MAX):
            first = (quotes if rows is None else quotes[rows]) - (_WORD - 1)
            # No text after a value is so near to the beginning of an answer that it is clipped.
            words = self._words[_within(first, len(self._words) - 1)]
            steps = _bytes_before_quote(words.byteswap())
            quotes[slice(None) if rows is None else rows] -= steps
            rows = np.flatnonzero(steps == _WORD) if rows is None else rows[steps == _WORD]
            if not len(rows):
                break
        return quotes

    def _is_at(self, at: Numbers, literal: bytes) -> Mask:
        """Whether a literal is at each position. All of its bytes are gathered at once, which takes
        as long as gathering eight of them."""
        size = len(literal)
        last = len(self._body) - size
        if last < 0:
            return np.zeros(len(at), np.bool_)
        texts = np.ndarray((last + 1,), f"V{size}", self._body, 0, (1,))[_within(at, last)]
        if size < _WORD:
            # Without the zeros that a text ends with, which is none of a literal.
            return np.asarray(texts.view(f"S{size}") == literal)
        result = np.ones(len(at), np.bool_)
        for first in range(0, size, _WORD):
            first = min(first, size - _WORD)  # The last word may overlap the one before.
            words = np.ndarray((len(at),), "<u8", texts, first, (size,))
            result &= words == int.from_bytes(literal[first : first + _WORD], "little")
        return result

    def _is_one_value(self, shape: Shape, has: Mask, low: Numbers, high: Numbers) -> Mask:
        """Whether the text between two positions is one JSON value, and none is nested too deep.

        It begins with a value; the question is whether other members follow it.
        """
        has = has & ~self._may_be_deep(has, low, high)
        if has.all() and self._are_flat_objects(shape, low, high):
            return has
        low, high = np.where(has, low, 1), np.where(has, high, 2)
        quotes = self._quotes.at
        texts = np.searchsorted(quotes, high) - np.searchsorted(quotes, low)
        # A further member would have a quoted name.
        is_text = (texts == 2) & (self._data[low] == _QUOTE) & (self._data[high - 1] == _QUOTE)
        is_one: Mask = has & ((texts == 0) | is_text | self._is_one_container(low, high))
        return is_one

    def _are_flat_objects(self, shape: Shape, low: Numbers, high: Numbers) -> bool:
        """Whether each value is an object without further ones in it, which ends at its first
        closing brace. Counted over the whole answer, which every message is a part of."""
        if len(low) != len(self._frame):
            return False
        is_object = (self._data[low] == _OPEN) & (self._data[high - 1] == _CLOSE)
        if not is_object.all():
            return False
        # Each message has at least the braces of its shape and two more. The next characters after
        # z are {, | and }; bytes beyond ASCII are also greater, and rarely all that there is.
        least = len(low) * (shape.count(b"{") + shape.count(b"}") + 2)
        if np.count_nonzero(self._data > _BEFORE_OPEN) == least:
            return True
        return self._body.count(b"{") + self._body.count(b"}") == least

    def _is_one_container(self, low: Numbers, high: Numbers) -> Mask:
        """Whether the first bracket of each text is closed by its last one, and not before."""
        kinds = self._data | 32  # `[` and `{` become one, as do `]` and `}`
        brackets = np.flatnonzero((kinds == _OPEN) | (kinds == _CLOSE))
        # Brackets in texts have an odd number of quotes before them.
        owner = np.searchsorted(self._frame.starts, brackets, side="right") - 1
        quotes = np.searchsorted(self._quotes.at, brackets) - self._quotes.first[owner]
        brackets = brackets[(owner >= 0) & (quotes % 2 == 0)]
        opens = kinds[brackets] == _OPEN
        depth = np.cumsum(np.where(opens, 1, -1))
        starts = self._frame.starts
        before = np.searchsorted(brackets, starts)
        base = np.where(before > 0, depth[before - 1], 0)
        owner = np.searchsorted(starts, brackets, side="right") - 1
        returns = brackets[~opens & (depth == base[owner] + 1)]
        first = np.searchsorted(returns, low)
        is_container = (self._data[low] | 32) == _OPEN
        closing = returns[np.minimum(first, len(returns) - 1)] if len(returns) else low
        is_one: Mask = is_container & (closing == high - 1)
        return is_one

    def _may_be_deep(self, has: Mask, low: Numbers, high: Numbers) -> Mask:
        deep = np.zeros(len(low), np.bool_)
        for index in np.flatnonzero(has & (high - low > SHALLOW_BYTES_MAX)):
            bounds = int(low[index]), int(high[index])
            count = self._body.count(b"{", *bounds) + self._body.count(b"[", *bounds)
            deep[index] = count > JSON_DEPTH_MAX
        return deep

    def _with_surrogates(self) -> Mask:
        """The messages with an escape of half a character, which only the decoder judges."""
        found = [match.start() for match in _SURROGATE.finditer(self._body)]
        refused = np.zeros(len(self._frame), np.bool_)
        refused[np.searchsorted(self._frame.starts, found, side="right") - 1] = True
        return refused


def _moved(index: Numbers | None, count: int) -> Numbers | None:
    return None if index is None else index + count


def _within(at: Numbers, last: int) -> Numbers:
    """Positions from 0 to the last one. They nearly always are, which is found out sooner."""
    if len(at) and int(at.min()) >= 0 and int(at.max()) <= last:
        return at
    return np.clip(at, 0, last)


def _bits(count: Numbers) -> NDArray[np.uint64]:
    """The bits of some bytes, of which a word has up to seven to spare."""
    return np.clip(count, 0, _WORD - 1).astype(np.uint64) * np.uint64(8)


def _bytes_before_quote(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """How many bytes of each word, from the lowest, come before a quote; all eight without one."""
    others = words ^ _ALL_QUOTES
    # The lowest bit that is set is the highest of the first byte that is zero.
    zeros = (others - _LOW_BITS) & ~others & _HIGH_BITS
    return np.bitwise_count(~zeros & (zeros - np.uint64(1))) >> np.uint8(3)


def _escaped(backslashes: Numbers) -> Numbers:
    """The positions after an odd number of backslashes."""
    is_last = np.diff(backslashes, append=-1) != 1
    is_first = np.diff(backslashes, prepend=-2) != 1
    lengths = backslashes[is_last] - backslashes[is_first] + 1
    escaped: Numbers = backslashes[is_last][lengths % 2 == 1] + 1
    return escaped
