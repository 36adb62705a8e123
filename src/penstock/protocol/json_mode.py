"""JSON mode: from a request body to wire bytes, one message a line, and back to an array.

Messages are validated but never parsed into objects or rewritten: what a client reads is, byte
for byte, what was appended, except that raw line ends between tokens have become spaces. The rules
are those of RFC 8259. Where parsers differ, decided on purpose:

- refused: NaN and Infinity, a byte order mark, invalid UTF-8 (surrogates encoded as UTF-8 too), raw
  control characters in strings, lone surrogate escapes (they name no character, and strict parsers
  fail on them when reading), nesting deeper than the limit, numbers with more digits in a row than
  the limit (many parsers refuse them, and one such message would end every read of the stream);
- accepted as they stand: duplicate keys, numbers too large or too precise for a float (`1e999`,
  integers of hundreds of digits), any scalar as a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn

import msgspec

from penstock import limits
from penstock.errors import (
    BodyTooLarge,
    EmptyArray,
    InvalidJson,
    JsonTooDeep,
    MessageTooLarge,
    NumberTooLong,
)

_LF, _CR, _COMMA, _BACKSLASH = b"\n\r,\\"
_WHITESPACE = b" \t\r\n"
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
# The bytes of a structural scan: brackets, commas, and quotes to recognise strings.
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{},"'))
_SCAN_BYTES = 64 * limits.KIB
_BRACKETS = bytes.maketrans(b"{}", b"[]")
# What is usually between two messages.
_SEPARATORS = (b"},{", b"}, {", b"},\n", b",")
# Strings, and what has a meaning outside of them.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},]', re.DOTALL)
_BYTE = re.compile(r"\(byte (\d+)\)")

SLICE_BYTES = 128 * limits.KIB
"""How much JSON is decoded in one step; that takes a few milliseconds at most."""

_DIGITS = b"0123456789"
# Digits in a row that are more than the limit cover eight neighbours among bytes this far apart.
_DIGIT_STRIDE = limits.JSON_NUMBER_DIGITS_MAX // 8
_NEIGHBOURS = re.compile(rb"[0-9]{8,}")
_DIGITS_AS_ZERO = bytes.maketrans(_DIGITS, b"0000000000")
_SURROGATE = re.compile(rb"\\u[dD](?:([89abAB])|[c-fC-F])[0-9a-fA-F]{2}")

_decode_value = msgspec.json.Decoder(msgspec.Raw).decode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


def frame(
    body: bytes, *, allow_empty: bool, depth_max: int = limits.JSON_DEPTH_MAX
) -> tuple[bytes, int]:
    """Return the wire bytes of a body, each message followed by a comma and LF, and their number.

    An array is flattened by one level; an empty one is refused unless `allow_empty`. A large array
    is decoded in slices: other threads can run between them, and a slice is all the memory it takes
    beside the result.
    """
    try:
        # The decoder does not check the bytes of strings, so UTF-8 is checked separately.
        if not body.isascii():
            _check_utf8(body)
        value = body.strip(_WHITESPACE)
        if value[:1] == b"[":
            if len(value) > SLICE_BYTES:
                return _frame_slices(value, allow_empty=allow_empty, depth_max=depth_max)
            return _frame_array(body, allow_empty=allow_empty, depth_max=depth_max)
        _decode_value(body)
        _check_numbers(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse(body, error, depth_max)
    # Valid JSON has raw line ends only between tokens, where a space means the same.
    if _LF in value or _CR in value:
        value = value.translate(_ONE_LINE)
    check_depth(value, depth_max)
    return value + b",\n", 1


def check_sizes(wire: bytes, bytes_max: int) -> None:
    """Refuse framed messages of which one has more than `bytes_max` bytes."""
    if len(wire) - 2 <= bytes_max:
        return
    longest = max(map(len, wire.split(b"\n"))) - 1
    if longest > bytes_max:
        raise MessageTooLarge(
            f"A message has {longest} bytes, and may have at most {bytes_max} (message_bytes_max). "
            "Split it into several messages."
        )


def unframe(wire: bytes | memoryview) -> bytes:
    """Return the JSON array of framed messages."""
    return b"".join((b"[", memoryview(wire)[:-2], b"]"))


def slices(wire: bytes) -> Iterator[bytes]:
    """Yield framed messages in pieces of whole messages, of about SLICE_BYTES each."""
    start = 0
    while start < len(wire):
        end = wire.find(b"\n", min(start + SLICE_BYTES, len(wire)) - 1) + 1
        yield wire[start:end]
        start = end


def _frame_array(body: bytes, *, allow_empty: bool, depth_max: int) -> tuple[bytes, int]:
    messages = _decode_messages(body, depth_max)
    if not messages:
        return _frame_nothing(allow_empty=allow_empty)
    count = len(messages)
    messages.append(msgspec.Raw(b""))
    return b",\n".join(messages), count


def _frame_nothing(*, allow_empty: bool) -> tuple[bytes, int]:
    if allow_empty:
        return b"", 0
    raise EmptyArray("An empty array appends nothing: send at least one message.")


def _decode_messages(array: bytes, depth_max: int) -> list[msgspec.Raw]:
    """Return the elements of an array, without line ends."""
    messages = _decode_array(array)
    _check_numbers(array)
    if _LF in array or _CR in array:
        messages = _decode_array(array.translate(_ONE_LINE))
    for message in messages:
        # Closed brackets come in pairs: a short message cannot be too deep.
        if len(message) > 2 * depth_max:
            check_depth(bytes(message), depth_max)
    return messages


def _frame_slices(array: bytes, *, allow_empty: bool, depth_max: int) -> tuple[bytes, int]:
    """Return the wire bytes of an array that is too large to be decoded at once."""
    pieces: list[bytes] = []
    count, start, separator = 0, 1, b","
    while start:
        messages, start, separator = _next_slice(array, start, separator, depth_max)
        count += len(messages)
        if count > limits.MESSAGES_PER_APPEND_MAX:
            raise BodyTooLarge(
                f"The array holds more than {limits.MESSAGES_PER_APPEND_MAX} messages: split it "
                "into several appends."
            )
        messages.append(msgspec.Raw(b""))
        pieces.append(b",\n".join(messages))
    if not count:
        return _frame_nothing(allow_empty=allow_empty)
    return b"".join(pieces), count


def _next_slice(
    array: bytes, start: int, separator: bytes, depth_max: int
) -> tuple[list[msgspec.Raw], int, bytes]:
    """Return the elements from `start` on up to some comma, where the next ones start (0 at the
    end), and the separator that was before them.

    A comma is between two elements if what is before it is a whole array when it is closed there.
    So a cut is guessed by the separator that was right the last time, and searched for if the guess
    is wrong.
    """
    limit = start + SLICE_BYTES
    if limit < len(array):
        for guess in dict.fromkeys((separator, *_SEPARATORS)):
            cut = array.rfind(guess, start, limit)
            if cut < 0:
                continue
            cut += guess.index(b",")
            try:
                messages = _decode_messages(b"[%b]" % array[start:cut], depth_max)
            except (msgspec.DecodeError, RecursionError):
                continue
            if messages:
                return messages, cut + 1, guess
        cut = _comma_after(array, start, limit)
        if cut:
            messages = _decode_elements(array, start, b"]", cut, depth_max)
            return messages, cut + 1, separator
    return _decode_elements(array, start, b"", len(array), depth_max), 0, separator


def _decode_elements(
    array: bytes, start: int, ending: bytes, end: int, depth_max: int
) -> list[msgspec.Raw]:
    """Return the elements in [start, end); a part of an array has at least one."""
    try:
        messages = _decode_messages(b"[%b%b" % (array[start:end], ending), depth_max)
    except msgspec.DecodeError as error:
        where = _BYTE.sub(lambda match: f"(byte {int(match[1]) + start - 1})", str(error))
        raise msgspec.DecodeError(where) from None
    if not messages and (start, end) != (1, len(array)):
        raise msgspec.DecodeError(f"trailing comma in array (byte {start})")
    return messages


def _comma_after(array: bytes, start: int, limit: int) -> int:
    """Return the first comma between two elements that ends at least a slice; 0 if there is none.

    Counts brackets outside of strings, token by token.
    """
    depth = 0
    for match in _TOKEN.finditer(array, start):
        mark = array[match.start()]
        if mark in b"[{":
            depth += 1
        elif mark in b"]}":
            depth -= 1
        elif mark == _COMMA and depth == 0 and match.start() >= limit:
            return match.start()
    return 0


def nesting(valid: bytes, *, depth_max: int) -> int:
    """Return how deep valid JSON is nested, or `depth_max` + 1 if it is nested deeper."""
    marks = b"".join(structure(valid)).replace(b",", b"").translate(_BRACKETS)
    depth = 0
    while marks and depth <= depth_max:
        # Innermost pairs go first: each round is one level.
        marks = marks.replace(b"[]", b"")
        depth += 1
    return depth


def check_depth(value: bytes, depth_max: int) -> None:
    """Refuse valid JSON that is nested deeper than `depth_max`."""
    # Most messages are too short, or have too few brackets, to need a scan.
    if len(value) <= 2 * depth_max or value.count(b"[") + value.count(b"{") <= depth_max:
        return
    if nesting(value, depth_max=depth_max) > depth_max:
        raise _too_deep(depth_max)


def _check_numbers(valid: bytes) -> None:
    """Refuse valid JSON with a number that has too many digits in a row.

    Only every _DIGIT_STRIDE-th byte is looked at, until eight neighbours are digits.
    """
    if len(valid) <= limits.JSON_NUMBER_DIGITS_MAX:
        return
    samples = valid[::_DIGIT_STRIDE].translate(_DIGITS_AS_ZERO)
    if b"00000000" not in samples:  # five times as fast as the pattern
        return
    counted = quotes = 0
    for neighbours in _NEIGHBOURS.finditer(samples):
        for sample in range(neighbours.start(), neighbours.end()):
            position = sample * _DIGIT_STRIDE
            if not valid[position : position + _DIGIT_STRIDE].isdigit():
                continue
            before = valid[max(position - _DIGIT_STRIDE, 0) : position]
            start = position - len(before) + len(before.rstrip(_DIGITS))
            if not valid[start : start + limits.JSON_NUMBER_DIGITS_MAX + 1].isdigit():
                continue
            # Digits in strings are text. A digit escapes nothing, so a cut there splits no escape.
            part = valid[counted:position].replace(b"\\\\", b"").replace(b'\\"', b"")
            quotes, counted = quotes + part.count(b'"'), position
            if quotes % 2 == 0:
                raise NumberTooLong(
                    f"A number has more than {limits.JSON_NUMBER_DIGITS_MAX} digits in a row, "
                    "which many parsers cannot read: send it as a string."
                )


def structure(valid: bytes) -> Iterator[bytes]:
    """Yield the brackets and commas outside the strings of valid JSON, in bounded pieces."""
    if _BACKSLASH in valid:
        # Escaped backslashes go first: what then still escapes a quote is an escape.
        valid = valid.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = valid.translate(None, _NOT_STRUCTURE)
    in_string = 0
    for start in range(0, len(marks), _SCAN_BYTES):
        parts = marks[start : start + _SCAN_BYTES].split(b'"')
        yield b"".join(parts[in_string::2])
        in_string ^= (len(parts) - 1) & 1


def _check_utf8(body: bytes) -> None:
    if len(body) <= limits.MIB:
        body.decode()
        return
    # In pieces, so that a large body is not held a second time as wider text.
    start = 0
    while start < len(body):
        end = start + limits.MIB
        # A cut must not fall inside a sequence: step back over continuation bytes, at most three.
        while start + limits.MIB - 3 <= end < len(body) and body[end] & 0xC0 == 0x80:
            end -= 1
        body[start:end].decode()
        start = end


def _refuse(body: bytes, error: Exception, depth_max: int) -> NoReturn:
    """Raise an error that explains what is wrong; runs only when a body is refused."""
    if isinstance(error, RecursionError):
        raise _too_deep(depth_max) from None
    if isinstance(error, UnicodeDecodeError):
        detail = "The body is not valid UTF-8, the only encoding of JSON."
    elif not body.strip(_WHITESPACE):
        detail = "The body is empty: send a JSON value, or an array of them."
    elif body.startswith(b"\xef\xbb\xbf"):
        detail = "The body starts with a byte order mark, which JSON does not allow: remove it."
    elif _has_lone_surrogate(body.replace(b"\\\\", b"")):
        detail = (
            "A string holds half of a surrogate pair (\\uD800 to \\uDFFF alone), which is no "
            "character: send both halves, or replace it by \\uFFFD."
        )
    else:
        detail = f"The body is not valid JSON: {str(error).removeprefix('JSON is malformed: ')}."
    raise InvalidJson(detail) from None


def _has_lone_surrogate(body: bytes) -> bool:
    """Whether an escape of half a surrogate pair has no other half beside it."""
    high_end = -1  # where the first half of a pair ended
    for match in _SURROGATE.finditer(body):
        if match[1] is None:
            if match.start() != high_end:
                return True
            high_end = -1
        elif high_end >= 0:
            return True
        else:
            high_end = match.end()
    return high_end >= 0


def _too_deep(depth_max: int) -> JsonTooDeep:
    return JsonTooDeep(
        f"A message is nested deeper than {depth_max} levels (json_depth_max). Send it with fewer "
        "levels, or its inner part as a string."
    )
