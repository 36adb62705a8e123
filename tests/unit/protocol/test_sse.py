from __future__ import annotations

import base64
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import InvalidParameter
from penstock.protocol import json_mode, sse
from penstock.protocol.sse import SseForm

TEXTS = st.lists(
    st.sampled_from(
        [
            "\r",
            "\n",
            "\r\n",
            " ",
            "  ",
            ":",
            "data:",
            "event: control",
            "{}",
            "ä",
            "😀",
            "x",
            "\x00",
        ]
    )
    | st.text(max_size=3),
    max_size=12,
).map("".join)


def events(stream: bytes) -> list[tuple[str, str]]:
    """A small parser after the WHATWG text: (event, data) pairs."""
    lines = stream.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n")
    fields: list[tuple[str, str]] = []
    event, data = "", None
    for line in lines:
        if line == "":
            if data is not None:
                fields.append((event, data))
            event, data = "", None
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            event = value
        elif name == "data":
            data = value if data is None else data + "\n" + value
    return fields


def as_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


@given(TEXTS)
@example('safe\r\n\r\nevent: control\r\ndata: {"injected":true}\r\n\r\nmore')
@example('start\r\revent: control\rdata: {"cr":true}\r\rend')
@example("start\n\nevent: data\ndata: fake\n\nend")
@example("")
@example(" leading\n  more\n")
def test_text_arrives_as_one_event_whatever_it_holds(text: str) -> None:
    stream = sse.data_text(text.encode()) + sse.data_text(b"next")
    assert events(stream) == [("data", as_lines(text)), ("data", "next")]


@given(st.binary(max_size=60))
def test_invalid_utf8_is_replaced_and_never_breaks_the_event(data: bytes) -> None:
    assert events(sse.data_text(data)) == [("data", as_lines(data.decode("utf-8", "replace")))]


def test_text_lines_have_no_space_after_the_colon() -> None:
    assert sse.data_text(b"line1\nline2") == b"event: data\ndata:line1\ndata:line2\n\n"


@given(st.binary(max_size=200))
def test_binary_round_trips(data: bytes) -> None:
    [(event, text)] = events(sse.data_binary(data))
    assert event == "data"
    assert base64.b64decode(text, validate=True) == data


def test_json_messages_are_lines_of_one_array() -> None:
    assert (
        sse.data_json(b'{"k":"v"},\n{"k":"w"},\n')
        == b'event: data\ndata:[\ndata:{"k":"v"},\ndata:{"k":"w"}\ndata:]\n\n'
    )
    assert sse.data_json(b"") == b"event: data\ndata:[\ndata:]\n\n"


def test_message_events_have_no_type() -> None:
    assert sse.data_text(b" a\nb", head=sse.MESSAGE) == b"data:  a\ndata:b\n\n"
    assert sse.data_json(b"1,\n", head=sse.MESSAGE) == b"data:[\ndata:1\ndata:]\n\n"
    assert sse.data_json(b"", head=sse.MESSAGE) == b"data:[\ndata:]\n\n"
    assert sse.data_binary(b"\x00", head=sse.MESSAGE) == b"data:AA==\n\n"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("base64", SseForm(base64=True)),
        ("message", SseForm(message=True)),
        ("base64,message", SseForm(base64=True, message=True)),
        ("message,base64", SseForm(base64=True, message=True)),
    ],
)
def test_the_form_of_events(text: str, form: SseForm) -> None:
    assert sse.parse_form(text) == form


@pytest.mark.parametrize("text", ["", "base64,", "Base64", "text", "base64, message", "message;"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter, match="base64, message"):
        sse.parse_form(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(VALUES, max_size=4), st.sampled_from([None, 1]))
def test_json_round_trips_through_framing_and_event(
    values: list[object], indent: int | None
) -> None:
    body = json.dumps(values, indent=indent, ensure_ascii=False).replace("\n", "\r\n").encode()
    wire, _ = json_mode.frame(body, allow_empty=True)
    [(event, text)] = events(sse.data_json(wire))
    assert event == "data"
    assert json.loads(text) == values


@pytest.mark.parametrize(
    ("cursor", "up_to_date", "closed", "expected"),
    [
        ("12", False, False, {"streamCursor": "12"}),
        ("12", True, False, {"streamCursor": "12", "upToDate": True}),
        ("12", True, True, {"upToDate": True, "streamClosed": True}),
        (None, False, True, {"upToDate": True, "streamClosed": True}),
        (None, True, False, {"upToDate": True}),
    ],
)
def test_control_event(
    cursor: str | None, up_to_date: bool, closed: bool, expected: dict[str, object]
) -> None:
    stream = sse.control("1_2", cursor=cursor, up_to_date=up_to_date, closed=closed)
    assert stream.startswith(b'event: control\ndata:{"streamNextOffset"')
    [(event, text)] = events(stream)
    assert event == "control"
    assert json.loads(text) == {"streamNextOffset": "1_2"} | expected


@pytest.mark.parametrize(
    ("data", "at_most", "expected"),
    [
        (b"", 10, 0),
        (b"abc", 10, 3),
        (b"abc", 3, 3),
        (b"abc", 2, 2),
        (b"abc", 0, 1),
        ("aä".encode(), 2, 1),
        ("ä".encode(), 1, 2),
        ("😀x".encode(), 2, 4),
        ("x😀".encode(), 4, 1),
        (b"a\r\nb", 2, 1),
        (b"a\r\nb", 3, 3),
        (b"\r\nb", 1, 2),
        (b"\r\r\n", 2, 1),
        (b"a\r", 2, 2),
        (b"\n\n", 1, 1),
        (b"abc\xe2\x82", 10, 3),
        (b"abc\xf0\x9f\x98", 10, 3),
        (b"abc\xf0", 10, 3),
        (b"\xe2\x82", 10, 2),
        (b"\xe2\x82", 1, 2),
        (b"\xf0\x9f\x98", 1, 3),
        (b"\x80\x80\x80\x80\x80", 2, 2),
        (b"\xff\xff", 1, 1),
        (b"\xc0\x80", 1, 1),
        (b"\xf0\x90a", 1, 2),
    ],
)
def test_text_cut(data: bytes, at_most: int, expected: int) -> None:
    assert sse.text_cut(data, at_most) == expected


@given(TEXTS, st.integers(min_value=1, max_value=40))
def test_cut_text_is_the_text(text: str, at_most: int) -> None:
    data = text.encode()
    pieces = []
    while data:
        cut = sse.text_cut(data, at_most)
        assert 0 < cut <= max(at_most, 4)
        pieces.append(data[:cut])
        data = data[cut:]
    received = [events(sse.data_text(piece))[0][1] for piece in pieces]
    assert "".join(received) == as_lines(text)


@given(TEXTS, st.integers(min_value=1, max_value=40))
def test_cut_is_the_largest_that_splits_nothing(text: str, at_most: int) -> None:
    data = text.encode()
    legal = {
        len(text[:at].encode()) for at in range(1, len(text) + 1) if text[at - 1 : at + 1] != "\r\n"
    }
    fitting = [cut for cut in legal if cut <= at_most]
    expected = max(fitting) if fitting else min(legal, default=0)
    assert sse.text_cut(data, at_most) == expected


@given(st.binary(max_size=12), st.integers(min_value=0, max_value=14))
def test_cut_of_any_bytes_makes_progress(data: bytes, at_most: int) -> None:
    cut = sse.text_cut(data, at_most)
    assert cut <= len(data)
    assert (cut > 0) == bool(data)
