"""How bytes become messages and text."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from penstock.client.batches import Batch, Decoder, joined
from penstock.errors import ProtocolError


def batch(
    decoder: Decoder, data: bytes, content_type: str = "application/json", *, closed: bool = False
) -> Batch:
    return decoder.batch(
        data,
        content_type=content_type,
        offset="0_0",
        next_offset="0_1",
        up_to_date=True,
        closed=closed,
    )


@pytest.mark.parametrize(
    ("data", "messages"),
    [
        (b"[]", []),
        (b"", []),
        (b'[{"a":1},\n[1,2],\n"x"]', [{"a": 1}, [1, 2], "x"]),
        (b"[\n1,\n2\n]", [1, 2]),
        (b"[1e999]", [math.inf]),  # valid JSON that strict decoders refuse
        (b"[123456789012345678901234567890]", [123456789012345678901234567890]),
        (b'["\\ud800"]', ["\ud800"]),
        (b"[1," + b"9" * 5000 + b"]", [1, 10**5000 - 1]),  # more digits than Python converts
        (b"[-" + b"9" * 5000 + b"]", [1 - 10**5000]),
    ],
)
def test_json_messages_are_decoded(data: bytes, messages: list[Any]) -> None:
    assert batch(Decoder(decode=True), data).messages == messages


@pytest.mark.parametrize("data", [b"[1,2", b'{"a":1}', b"<html>", b"[" * 100_000, b"7"])
def test_what_is_no_json_array_breaks_the_protocol(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        batch(Decoder(decode=True), data)


def test_a_message_that_is_nested_too_deep_says_how_it_can_be_read() -> None:
    data = b"[" * 5000 + b"]" * 5000
    with pytest.raises(ProtocolError, match="decode=False"):
        batch(Decoder(decode=True), data)
    assert batch(Decoder(decode=False), data).data == data


def test_empty_json_answer_has_no_data() -> None:
    assert batch(Decoder(decode=True), b"[]").data == b""


def test_messages_are_decoded_as_the_type_that_was_asked_for() -> None:
    class Order(msgspec.Struct):
        id: int

    assert batch(Decoder(decode=True, message_type=Order), b'[{"id":7}]').messages == [Order(7)]
    with pytest.raises(msgspec.ValidationError):
        batch(Decoder(decode=True, message_type=Order), b'[{"id":"x"}]')


def test_character_that_is_cut_is_completed_by_the_next_batch() -> None:
    decoder = Decoder(decode=True)
    data = "aé€😀z".encode()
    texts = [batch(decoder, data[i : i + 1], "text/plain").text for i in range(len(data))]
    assert "".join(texts) == "aé€😀z"


def test_character_that_never_ends_is_replaced_when_the_stream_closes() -> None:
    decoder = Decoder(decode=True)
    assert batch(decoder, b"a\xc3", "text/plain").text == "a"
    assert batch(decoder, b"", "text/plain", closed=True).text == "\ufffd"


def test_half_a_character_is_forgotten_on_restart() -> None:
    decoder = Decoder(decode=True)
    batch(decoder, b"\xc3", "text/plain")
    decoder.restart()
    assert batch(decoder, b"a", "text/plain").text == "a"


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "image/png"])
def test_without_decoding_there_are_only_the_bytes(content_type: str) -> None:
    raw = batch(Decoder(decode=False), b"[1]", content_type)
    assert (raw.data, raw.messages, raw.text) == (b"[1]", [], "")


def test_batches_are_joined_into_one_read() -> None:
    decoder = Decoder(decode=True)
    read = joined([batch(decoder, b"[1,\n2]"), batch(decoder, b"[]"), batch(decoder, b"[3]")])
    assert read.messages == [1, 2, 3]
    assert msgspec.json.decode(read.data) == [1, 2, 3]
    assert (read.offset, read.next_offset) == ("0_0", "0_1")
