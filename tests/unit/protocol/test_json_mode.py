from __future__ import annotations

import json
import re

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock import limits
from penstock.errors import (
    BodyTooLarge,
    EmptyArray,
    InvalidJson,
    JsonTooDeep,
    MessageTooLarge,
    NumberTooLong,
    PenstockError,
)
from penstock.protocol import json_mode
from penstock.protocol.json_mode import check_sizes, frame, unframe


@pytest.mark.parametrize(
    ("body", "wire", "count"),
    [
        (b'{"event": "created"}', b'{"event": "created"},\n', 1),
        (b'[{"event":"a"}, {"event":"b"}]', b'{"event":"a"},\n{"event":"b"},\n', 2),
        (b"[[1,2], [3,4]]", b"[1,2],\n[3,4],\n", 2),
        (b"[[[1,2,3]]]", b"[[1,2,3]],\n", 1),
        (b"[[]]", b"[],\n", 1),
        (b'"text"', b'"text",\n', 1),
        (b" 1 ", b"1,\n", 1),
        (b"\r\n[ 1 ,\n2 ]\t", b"1,\n2,\n", 2),
        (b"null", b"null,\n", 1),
        (b'{"a":1,"a":2}', b'{"a":1,"a":2},\n', 1),
        (b"1e999", b"1e999,\n", 1),
        (b"[1e999,-0]", b"1e999,\n-0,\n", 2),
        (b"9" * 1000, b"9" * 1000 + b",\n", 1),
        (b'{\r\n "a":\n1}', b'{   "a": 1},\n', 1),
        (b'{"a":\r1}', b'{"a": 1},\n', 1),
        (b'[{"a":\r1}]', b'{"a": 1},\n', 1),
        (b'[{\n"a":\r1},\n{"b":2}]', b'{ "a": 1},\n{"b":2},\n', 2),
        (b'"\\n\\r\\u0000"', b'"\\n\\r\\u0000",\n', 1),
        (b'"\\ud83d\\ude00"', b'"\\ud83d\\ude00",\n', 1),
        (b'"\\\\ud800"', b'"\\\\ud800",\n', 1),
        ('["ä","\u2028"]'.encode(), '"ä",\n"\u2028",\n'.encode(), 2),
    ],
)
def test_messages_are_kept_byte_for_byte_one_a_line(body: bytes, wire: bytes, count: int) -> None:
    assert frame(body, allow_empty=False) == (wire, count)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "empty"),
        (b" \r\n", "empty"),
        (b"{", "truncated"),
        (b"[", "truncated"),
        (b'"abc', "truncated"),
        (b"nul", "truncated"),
        (b"01", "invalid number"),
        (b"[01]", "invalid number"),
        (b"-01", "invalid number"),
        (b"1.", "invalid number"),
        (b"1e+", "invalid number"),
        (b"+1", "invalid character"),
        (b".5", "invalid character"),
        (b"-", "invalid character"),
        (b"NaN", "invalid character"),
        (b"[NaN]", "invalid character"),
        (b'{"a":Infinity}', "invalid character"),
        (b"-Infinity", "invalid character"),
        (b"1 x", "trailing characters"),
        (b"1 ,", "trailing characters"),
        (b"{}{}", "trailing characters"),
        (b"[1],[2]", "trailing characters"),
        (b"[1]\x00", "trailing characters"),
        (b"1\x0c", "trailing characters"),
        (b"\x0c1", "invalid character"),
        (b"\x0b[1]", "invalid character"),
        (b"[1,]", "trailing comma"),
        (b'{"a":1,}', "trailing comma"),
        (b"[1 2]", "expected"),
        (b"{a:1}", "expected"),
        (b"{'a':1}", "expected"),
        (b'"a\nb"', "invalid character"),
        (b'{"a":"\r"}', "invalid character"),
        (b'{"a\nb":1}', "invalid character"),
        (b'["\n"]', "invalid character"),
        (b'"\x00"', "invalid character"),
        (b'"\\x"', "escape"),
        (b'"\\u12G4"', "escape"),
        (b"/*x*/1", "invalid character"),
        (b'"\xff"', "UTF-8"),
        (b'["\xff"]', "UTF-8"),
        (b'{"\xc3":1}', "UTF-8"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b"\xef\xbb\xbf1", "byte order mark"),
        (b'"\\ud800"', "surrogate"),
        (b'["\\uD800x"]', "surrogate"),
        (b'{"\\udc00":1}', "surrogate"),
        (b'"\\ud800\\u0041"', "surrogate"),
        (b'"\\ude00\\ud83d"', "surrogate"),
        (b'"\\\\\\ud800"', "surrogate"),
    ],
)
def test_what_is_not_json_is_refused_with_the_reason(body: bytes, reason: str) -> None:
    for batch in (body, b'{"a":' + body + b"}" if body.strip() else body):
        with pytest.raises(InvalidJson):
            frame(batch, allow_empty=True)
    with pytest.raises(InvalidJson) as caught:
        frame(body, allow_empty=False)
    assert reason in caught.value.detail
    assert caught.value.detail.isprintable()


@pytest.mark.parametrize("body", [b"[]", b" [ \n] "])
def test_empty_array_appends_nothing_and_is_only_for_creation(body: bytes) -> None:
    assert frame(body, allow_empty=True) == (b"", 0)
    with pytest.raises(EmptyArray):
        frame(body, allow_empty=False)


def nested(depth: int, inner: bytes = b"1") -> bytes:
    """Objects and arrays in turn, the outermost an object, `depth` of them around `inner`."""
    pairs, odd = divmod(depth, 2)
    return b'{"a":[' * pairs + b'{"b":' * odd + inner + b"}" * odd + b"]}" * pairs


def test_depth_is_that_of_a_message_without_the_batch_around_it() -> None:
    at_limit, beyond = nested(limits.JSON_DEPTH_MAX), nested(limits.JSON_DEPTH_MAX + 1)
    assert frame(at_limit, allow_empty=False)[1] == 1
    assert frame(b"[" + at_limit + b",1," + at_limit + b"]", allow_empty=False)[1] == 3
    for body in (beyond, b"[" + beyond + b"]", b"[1," + beyond + b"]"):
        with pytest.raises(InvalidJson, match="deeper than 128"):
            frame(body, allow_empty=False)


def test_depth_has_a_code_of_its_own_that_names_the_setting() -> None:
    for depth in (limits.JSON_DEPTH_MAX + 1, 100_000):
        with pytest.raises(JsonTooDeep, match="json_depth_max") as caught:
            frame(nested(depth), allow_empty=False)
        assert (caught.value.status, caught.value.code) == (400, "json-too-deep")


def test_every_message_has_so_many_bytes() -> None:
    for body, longest in (
        (b'"12345678"', 10),
        (b'["1","12345678","1"]', 10),
        (b'["12345678"]', 10),
        (b'["1","12345678"]', 10),
    ):
        wire, _ = frame(body, allow_empty=False)
        check_sizes(wire, longest)
        with pytest.raises(MessageTooLarge, match=f"has {longest} bytes.*message_bytes_max"):
            check_sizes(wire, longest - 1)
    check_sizes(b"", 1)


@pytest.mark.parametrize("depth", [1_000, 100_000, 2_000_000])
def test_absurd_depth_is_an_answer_and_not_a_crash(depth: int) -> None:
    for body in (nested(depth), b"[" * depth + b"]" * depth, b"[" * depth):
        with pytest.raises(InvalidJson):
            frame(body, allow_empty=False)


def test_wide_messages_and_brackets_in_strings_are_not_deep() -> None:
    wide = json.dumps([[i, {"k": "]["}] for i in range(3000)]).encode()
    strings = json.dumps({"a": ["[" * 500, '"' + "{" * 500, "\\" + "[" * 200 + '\\"{']}).encode()
    assert frame(wide, allow_empty=False)[1] == 3000
    assert frame(b'{"w":' + wide + b"}", allow_empty=False)[1] == 1
    assert frame(strings, allow_empty=False)[1] == 1
    with pytest.raises(InvalidJson, match="deeper"):
        frame(nested(130, inner=strings), allow_empty=False)


NUMBERS = ("-%s", "%s.5", "0.%s", "1e%s", "1E-%s", "[1, %s]", '{"a\\\\": [%s]}', '["\\"", %s, "x"]')


@pytest.mark.parametrize("form", NUMBERS)
@pytest.mark.parametrize("lead", [0, 1, 499, 500, 501, 998])
def test_numbers_with_too_many_digits_are_refused(form: str, lead: int) -> None:
    longest = limits.JSON_NUMBER_DIGITS_MAX
    padding = b'"%s",' % (b"x" * lead)
    for digits, count in ((longest, 2), (longest + 1, 0), (4 * longest, 0)):
        value = form.replace("%s", "7" * digits).encode()
        for body in (b"[" + padding + value + b"]", b'{"a":[' + padding + value + b"]}"):
            if count:
                assert frame(body, allow_empty=False)[1] in (1, count)
                continue
            with pytest.raises(NumberTooLong, match="more than 1000 digits") as caught:
                frame(body, allow_empty=False)
            assert (caught.value.status, caught.value.code) == (400, "number-too-long")


def test_digits_in_strings_are_text() -> None:
    text = "4" * 5000
    body = json.dumps([text, {text: f'"{text}\\'}, 1, f"\\{text}"]).encode()
    assert frame(body, allow_empty=False)[1] == 4
    with pytest.raises(NumberTooLong):
        frame(body[:-1] + b"," + text.encode() + b"]", allow_empty=False)


_RUNS = st.integers(1, 1600).map(lambda length: "3" * length)
_VALUES = st.one_of(
    _RUNS.map(lambda digits: f'"{digits}"'),
    _RUNS,
    _RUNS.map(lambda d: f"1.{d}e5"),
    st.just('"\\""'),
)


@given(st.lists(_VALUES, min_size=1, max_size=8))
def test_the_bound_of_digits_is_exact(values: list[str]) -> None:
    body = f"[{', '.join(values)}]".encode()
    numbers = [value for value in values if not value.startswith('"')]
    is_long = any(re.search("[0-9]{1001}", number) for number in numbers)
    if is_long:
        with pytest.raises(NumberTooLong):
            frame(body, allow_empty=False)
    else:
        assert frame(body, allow_empty=False)[1] == len(values)


def test_too_many_messages_are_refused_before_they_are_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = limits.MESSAGES_PER_APPEND_MAX
    monkeypatch.setattr(json_mode, "SLICE_BYTES", 20_000)
    at_limit = b"[" + b",".join([b'[1,","]'] * most) + b"]"
    assert frame(at_limit, allow_empty=False)[1] == most
    with pytest.raises(BodyTooLarge, match=f"more than {most} messages"):
        frame(at_limit[:-1] + b",1]", allow_empty=False)
    with pytest.raises(InvalidJson):
        frame(at_limit + b",", allow_empty=False)


@pytest.mark.parametrize("shift", range(5))
def test_utf8_of_large_bodies_is_checked_in_pieces(shift: int) -> None:
    body = b'"' + b"x" * shift + "😀".encode() * (limits.MIB // 4 + 50) + b'"'
    assert frame(body, allow_empty=False) == (body + b",\n", 1)
    for at in (limits.MIB - 1, limits.MIB, limits.MIB + 1, len(body) - 2):
        broken = body[:at] + b"\xff" + body[at + 1 :]
        with pytest.raises(InvalidJson, match="UTF-8"):
            frame(broken, allow_empty=False)


def test_structure_is_the_same_wherever_the_pieces_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'[{"a":"[\\"{,"},["\\\\",{"b":",]"}],"x","","\\\\\\"]"]'
    whole = b"".join(json_mode.structure(body))
    assert whole == b"[{},[,{}],,,]"
    for size in range(1, 20):
        monkeypatch.setattr(json_mode, "_SCAN_BYTES", size)
        assert b"".join(json_mode.structure(body)) == whole


def test_a_large_array_is_decoded_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    decode = json_mode._decode_array

    def measured(raw: bytes) -> list[msgspec.Raw]:
        sizes.append(len(raw))
        return decode(raw)

    monkeypatch.setattr(json_mode, "_decode_array", measured)
    for message in (b'{"a":[{"b":1},{"b":2}],"c":"},{"}', b"1", b'"a,b"', b'[{"a":1},{"a":2}]'):
        for separator in (b",", b", ", b" ,\n"):
            count = 3 * json_mode.SLICE_BYTES // len(message)
            body = b"[" + separator.join([message] * count) + b"]"
            assert frame(body, allow_empty=False) == ((message + b",\n") * count, count)
    assert max(sizes) < json_mode.SLICE_BYTES + 100


def test_an_error_in_a_large_array_has_its_position() -> None:
    body = b"[" + b"1," * json_mode.SLICE_BYTES + b"x]"
    with pytest.raises(InvalidJson, match=rf"byte {2 * json_mode.SLICE_BYTES + 1}\)"):
        frame(body, allow_empty=False)
    with pytest.raises(InvalidJson, match="trailing comma"):
        frame(body[:-2] + b"]", allow_empty=False)


def test_slices_are_whole_messages() -> None:
    message = b'{"a":"' + b"x" * 1000 + b'"},\n'
    wire = message * 300
    pieces = list(json_mode.slices(wire))
    assert b"".join(pieces) == wire
    assert all(len(piece) % len(message) == 0 for piece in pieces)
    assert len(pieces) == -(
        -len(wire) // (json_mode.SLICE_BYTES // len(message) + 1) // len(message)
    )
    assert list(json_mode.slices(b"")) == []


def test_unframe() -> None:
    assert unframe(b"") == b"[]"
    assert unframe(b'1,\n{"a":2},\n') == b'[1,\n{"a":2}]'


# The fixture only names a size, which is the same for all examples of a test.
SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

TEXTS = st.text(max_size=5)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)
LAYOUTS = st.fixed_dictionaries(
    {
        "indent": st.sampled_from([None, 0, 2, "\t"]),
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([(",", ":"), (" , ", " : "), ("\r\n,", ":\n")]),
    }
)


@pytest.fixture(params=[1, 7, 30, json_mode.SLICE_BYTES], ids="slices of {}".format)
def slice_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The result must not depend on where an array is cut."""
    monkeypatch.setattr(json_mode, "SLICE_BYTES", request.param)
    return int(request.param)


@SETTINGS
@given(VALUES, LAYOUTS)
def test_framing_round_trips(slice_bytes: int, value: object, layout: dict[str, object]) -> None:
    body = json.dumps(value, **layout).encode()  # type: ignore[arg-type]
    messages = value if isinstance(value, list) else [value]
    wire, count = frame(body, allow_empty=True)
    assert json.loads(unframe(wire)) == messages
    assert count == len(messages) == wire.count(b"\n")
    assert b"\r" not in wire
    assert [json.loads(line[:-1]) for line in wire.splitlines()] == messages


def refuse_constant(name: str) -> None:
    raise ValueError(name)


def oracle(body: bytes) -> list[object]:
    """What the standard library makes of a body, less what is refused on purpose."""
    value = json.loads(
        body.decode(), parse_constant=refuse_constant, parse_int=str, parse_float=str
    )
    if re.search(r"[\ud800-\udfff]", json.dumps(value, ensure_ascii=False)):
        raise ValueError("lone surrogate")
    return value if isinstance(value, list) else [value]


SEEDS = st.sampled_from(
    [
        b'{"a":[1,-2.5e+3,true,null],"b":"x\\u00e4\\n"}',
        b'[{"k":"\\ud83d\\ude00"},"\\\\",0.1, [ ] ]',
        b'"\\ud83d\\ude00\\"\\/"',
        b"[-0,1E5,10,false]",
        '{"ä":"€😀"}'.encode(),
    ]
)
INSERTS = st.sampled_from(
    [bytes((byte,)) for byte in b'[]{},:"\\/-+.eE0189untfs \t\r\n\x00\x0b\x0c\x1f\x7f']
    + [b"NaN", b"Infinity", b"\\u", b"\\ud800", b"\\udc00", b"\\u0000", b"\xff", b"\xc3", b"\xa0"]
    + [b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"//", b"1e999", b"true"]
)
EDITS = st.lists(
    st.tuples(
        st.integers(min_value=0, max_value=50), st.integers(min_value=0, max_value=3), INSERTS
    ),
    min_size=1,
    max_size=4,
)


@SETTINGS
@given(SEEDS, EDITS)
@example(b"[", [(0, 0, b" ")])
@example(b"[1,2]", [(4, 0, b",")])
@example(b"[1,2]", [(1, 0, b",")])
@example(b"[[],2]", [(4, 0, b",")])
def test_mutated_bodies_are_judged_as_the_standard_library_judges_them(
    slice_bytes: int, seed: bytes, edits: list[tuple[int, int, bytes]]
) -> None:
    body = seed
    for at, removed, inserted in edits:
        body = body[:at] + inserted + body[at + removed :]
    try:
        expected = oracle(body)
    except ValueError:
        with pytest.raises(InvalidJson):
            frame(body, allow_empty=True)
        return
    wire, count = frame(body, allow_empty=True)
    assert oracle(unframe(wire)) == expected
    assert count == len(expected) == wire.count(b"\n")


@given(st.binary(max_size=30))
def test_random_bytes_give_an_answer_or_a_penstock_error(body: bytes) -> None:
    try:
        wire, count = frame(body, allow_empty=False)
    except PenstockError:
        return
    assert len(oracle(unframe(wire))) == count
