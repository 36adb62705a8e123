"""Events that are cut out of the bytes of an answer are those that the decoder sees."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.limits import JSON_DEPTH_MAX
from penstock.spark.source.arrow import Frame
from penstock.spark.source.event_columns import _by_shape, _one_by_one
from penstock.spark.source.event_shapes import Events, learn
from penstock.state import delete, insert, update

_SHORT = st.text(st.sampled_from('ab{}[]":,\\\n ключ😀'), max_size=6)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _SHORT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_SHORT, inner, max_size=3),
    max_leaves=8,
)
_HEADERS = st.fixed_dictionaries(
    {"operation": st.sampled_from(["insert", "update", "delete", "upsert", "other", 5])},
    optional={"txid": _SHORT, "timestamp": _SHORT, "offset": _SHORT, "control": st.just("reset")},
)


@st.composite
def _events(draw: st.DrawFn) -> bytes:
    members: list[tuple[str, Any]] = [
        ("type", draw(st.sampled_from(["user", "order", "", "a\\b", 'q"q', "ключ", 7]))),
        ("key", draw(_SHORT)),
        ("headers", draw(_HEADERS)),
    ]
    if draw(st.integers(0, 4)):
        members.append(("value", draw(_VALUES)))
    if not draw(st.integers(0, 7)):
        name = draw(st.sampled_from(["old_value", "value", "type", "headers", "extra"]))
        members.append((name, draw(_VALUES)))
    if draw(st.booleans()):
        members = draw(st.permutations(members))
    spaces = draw(st.sampled_from([(",", ":"), (",", ":"), (",", ":"), (", ", ": ")]))
    ascii_only = draw(st.booleans())
    encoder = json.JSONEncoder(ensure_ascii=ascii_only, separators=spaces)
    inner = spaces[0].join(
        encoder.encode(name) + spaces[1] + encoder.encode(value) for name, value in members
    )
    return f"{{{inner}}}".encode()


def framed(messages: list[bytes]) -> Frame:
    return Frame(b"[" + b",\n".join(messages) + b"]")


def rows(messages: list[bytes]) -> tuple[Any, Any]:
    """The rows by shape (None: left to the decoder), and those of the decoder."""
    frame = framed(messages)
    payloads = frame.texts(frame.starts, frame.ends, pa.binary())
    assert payloads.to_pylist() == messages
    by_shape = _by_shape(frame)
    decoded = [column.to_pylist() for column in _one_by_one(payloads)]
    return None if by_shape is None else [column.to_pylist() for column in by_shape], decoded


@settings(max_examples=200, deadline=None)
@given(st.lists(_events(), min_size=1, max_size=4), st.integers(1, 3))
def test_they_are_equal_for_any_events(messages: list[bytes], copies: int) -> None:
    by_shape, decoded = rows(messages * copies)
    assert by_shape is None or by_shape == decoded


def plain(**more: Any) -> list[bytes]:
    return [insert("user", f"u{n}", {"n": n, **more}).to_json() for n in range(50)]


@pytest.mark.parametrize(
    "messages",
    [
        plain(),
        plain(nested={"a": [1, {"b": "}"}], "c": "]"}),
        plain(text="\\", nested={"last": "\\\\"}),
        plain(text='quotes " and \\ and {braces}'),
        [*plain(), *(delete("user", f"u{n}").to_json() for n in range(9)), *plain(city="Oslo")],
        [update("user", f"u{n}", "text", timestamp="2025-01-15T10:30:00Z", txid=str(n)).to_json()
         for n in range(20)],
        [b'{"headers":{"operation":"upsert"},"value":[1,[2]],"key":"%d","type":"t"}' % n
         for n in range(20)],
        [insert("t" * (n % 17 + 1), "k" * (n + 1), {"n": n}).to_json() for n in range(400)],
        [b'{"type":"t","value":{"a":"|~"},"headers":{"operation":"delete"},"key":"%s"}' % (b"k" * n)
         for n in range(40, 1, -1)],
        [b'{"headers":{"operation":"delete"},"type":"t","key":"%s"}' % (b"k" * n)
         for n in range(40, 1, -1)],
        plain(name="ключ"),
    ],
)  # fmt: skip
def test_events_of_common_writers_are_not_decoded(
    messages: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("penstock.spark.source.event_columns._decoded", _never)
        assert _by_shape(framed(messages)) is not None
    by_shape, decoded = rows(messages)
    assert by_shape == decoded


def test_a_text_longer_than_most_is_decoded() -> None:
    messages = [*plain(), insert("user", "k" * 2000, {"n": 1}).to_json(), *plain()]
    by_shape, decoded = rows(messages)
    assert by_shape == decoded


def _never(*_: object) -> None:
    raise AssertionError("decoded")


@pytest.mark.parametrize(
    "message",
    [
        b'{"type":"user","key":"a","value":{"x":1},"old_value":{"x":0},"headers":{"operation":"update"}}',
        b'{"type":"user","key":"a","value":{"a":"{"},"x":{"b":"}"},"headers":{"operation":"update"}}',
        b'{"type":"user","key":"a","value":1,"type":"b","headers":{"operation":"update"}}',
        b'{"type":"user","key":"a","value":"v","extra":"w","headers":{"operation":"update"}}',
        b'{"type":"user","key":"a","value":[1],"extra":[2],"headers":{"operation":"update"}}',
        b'{"type":"user","key":"a","headers":{"operation":"update"}}',
        b'{"type":"user","key":"a\\nb","value":{},"headers":{"operation":"update"}}',
        b'{"type":"user","key":"a\\\\","value":{},"headers":{"operation":"update"}}',
        b'{"type":"user","key":"a","value":"\\ud800","headers":{"operation":"update"}}',
        b'{"type":"user","key":"a","value":%s1%s,"headers":{"operation":"update"}}'
        % (b"[" * (JSON_DEPTH_MAX + 1), b"]" * (JSON_DEPTH_MAX + 1)),
    ],
)
def test_an_event_that_only_looks_like_the_shape_is_decoded(message: bytes) -> None:
    messages = [*plain(), message, *plain()]
    frame = framed(messages)
    shape = learn(message.replace(b',"extra":[2]', b"")) or learn(messages[0])
    assert shape is not None
    matched = Events(frame).matching(shape, np.arange(len(frame))).messages
    assert 50 not in matched
    by_shape, decoded = rows(messages)
    assert by_shape == decoded
