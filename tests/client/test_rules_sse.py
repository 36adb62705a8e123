"""Server-sent events from bytes: every spelling, every way to cut them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.sse import Event, EventParser, decode_base64, parse_control
from penstock.errors import ProtocolError
from penstock.protocol import sse

CONTROL = b'event: control\ndata:{"streamNextOffset":"1_2"}\n\n'


def parse(*pieces: bytes, json: bool = False) -> list[tuple[str, bytes]]:
    parser = EventParser(json=json)
    return [(event.type, event.data) for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize(
    ("sent", "events"),
    [
        (b"event: data\ndata:x\n\n", [("data", b"x")]),
        (b"event: data\ndata: x\n\n", [("data", b"x")]),
        (b"event: data\ndata:  x\n\n", [("data", b" x")]),
        (b"event:data\ndata:x\n\n", [("data", b"x")]),
        (b"event: data\ndata:\n\n", [("data", b"")]),
        (b"event: data\ndata\n\n", [("data", b"")]),
        (b"event: data\ndata:a\ndata:b\n\n", [("data", b"a\nb")]),
        (b"event: data\ndata: a\ndata: b\n\n", [("data", b"a\nb")]),
        (b"event: data\ndata:a\ndata: b\ndata:  c\n\n", [("data", b"a\nb\n c")]),
        (b"event: data\ndata:data:a\ndata:data:b\n\n", [("data", b"data:a\ndata:b")]),
        (b"event: data\ndata: data:a\ndata: data: b\n\n", [("data", b"data:a\ndata: b")]),
        (b"event: data\ndata:\ndata:\n\n", [("data", b"\n")]),
        (b"event: data\r\ndata:x\r\n\r\n", [("data", b"x")]),
        (b"event: data\rdata:x\rdata:y\r\r\n", [("data", b"x\ny")]),
        (b"data:x\nevent: data\n\n", [("data", b"x")]),
        (b"id: 7\nevent: data\nretry: 5\ndata:x\n\n", [("data", b"x")]),
        (b"event: data\ndata:x\nid: 7\n\n", [("data", b"x")]),
        (b"event: data\ndata:x\nid: 7\ndata:y\n\n", [("data", b"x\ny")]),
        (b"event: data\n: keep-alive\ndata:x\n\n", [("data", b"x")]),
        (b": keep-alive\n\nevent: data\ndata:x\n\n", [("data", b"x")]),
        (b"\n\n\nevent: data\ndata:x\n\n\n\n", [("data", b"x")]),
        (b"data:x\n\n", [("message", b"x")]),
        (b"event: future\ndata:x\n\n" + CONTROL, [("future", b"x"), ("control", CONTROL[20:-2])]),
        (b"event: data\n\n", []),
        (b"event: data\ndata:never ended\n", []),
        (b"\xef\xbb\xbfevent: data\ndata:x\n\n", [("data", b"x")]),
        ("event: data\ndata:a\u0085b\u2028c\n\n".encode(), [("data", "a\u0085b\u2028c".encode())]),
    ],
)
def test_every_spelling_means_the_same_however_it_is_cut(
    sent: bytes, events: list[tuple[str, bytes]]
) -> None:
    assert parse(sent) == events
    assert parse(*(sent[i : i + 1] for i in range(len(sent)))) == events
    for cut in range(len(sent)):
        assert parse(sent[:cut], sent[cut:]) == events


@given(st.lists(st.text(), min_size=1), st.data())
def test_what_the_server_sends_as_text_arrives(texts: list[str], data: st.DataObject) -> None:
    sent = b"".join(sse.data_text(text.encode("utf-8", "replace")) + CONTROL for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=5)))
    edges = [0, *cuts, len(sent)]
    pieces = [sent[start:end] for start, end in pairwise(edges)]
    expected = [
        text.encode("utf-8", "replace").decode().replace("\r\n", "\n").replace("\r", "\n")
        for text in texts
    ]
    payloads = [payload.decode() for kind, payload in parse(*pieces) if kind == "data"]
    assert payloads == expected


@pytest.mark.parametrize("space", [b"", b" "])
@pytest.mark.parametrize("piece_bytes", [1, 7, 10**6])
def test_json_arrays_over_many_lines_arrive(space: bytes, piece_bytes: int) -> None:
    sent = sse.data_json(b'{"a":"data:"},\n[1,\t2],\n"x",\n').replace(b"data:", b"data:" + space)
    sent = sent.replace(b'"data:' + space + b'"', b'"data:"') + CONTROL
    pieces = [sent[i : i + piece_bytes] for i in range(0, len(sent), piece_bytes)]
    (kind, payload), _ = parse(*pieces, json=True)
    assert kind == "data"
    assert b"".join(payload.split()) == b'[{"a":"data:"},[1,2],"x"]'


def test_field_after_json_lines_is_no_part_of_them() -> None:
    assert parse(b"event: data\ndata:[1,\ndata:2]\nid: 7\n\n", json=True) == [("data", b"[1,\n2]")]


def test_control_event_is_read_with_its_optional_fields() -> None:
    control = parse_control(b'{"streamNextOffset":"1_2","upToDate":true,"unknown":[]}')
    assert control.stream_next_offset == "1_2"
    assert control.up_to_date
    assert not control.stream_closed
    assert control.stream_cursor is None


@pytest.mark.parametrize("data", [b"", b"{invalid", b"[]", b"{}", b'{"streamNextOffset":7}'])
def test_control_event_that_cannot_be_read_breaks_the_protocol(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_control(data)


def test_base64_may_be_on_several_lines() -> None:
    assert decode_base64(b"AQID\nBAUG\r\nBw==") == bytes(range(1, 8))
    assert decode_base64(b"") == b""


@pytest.mark.parametrize("data", [b"A", b"A===", b"!!!!", b"AQID BAUG"])
def test_broken_base64_breaks_the_protocol(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_base64(data)


def test_event_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.sse.EVENT_BYTES_MAX", 100)
    parser = EventParser()
    parser.feed(b"event: data\ndata:" + b"x" * 50)
    with pytest.raises(ProtocolError, match="longer"):
        parser.feed(b"x" * 50)


def test_event_is_a_named_pair() -> None:
    assert Event("data", b"x") == EventParser().feed(b"event: data\ndata:x\n\n")[0]
