from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import (
    ContentTypeMismatch,
    MissingContentType,
    PenstockError,
    StreamClosed,
    StreamExists,
    StreamSeqConflict,
)
from penstock.limits import INTEGER_MAX, TIME_US_MAX
from penstock.protocol.headers import format_expires_at
from penstock.protocol.lifecycle import (
    StreamConfig,
    append_precedence,
    create_matches,
    expires_at_us,
)

TEXT = StreamConfig("text/plain", None, None)
NEW_YEAR_US = 1_767_225_600_000_000


@pytest.mark.parametrize(
    ("existing", "existing_closed", "wanted", "wanted_closed"),
    [
        (TEXT, False, TEXT, False),
        (TEXT, True, TEXT, True),
        (TEXT, False, TEXT._replace(content_type="TEXT/Plain"), False),
        (TEXT, False, TEXT._replace(content_type="text/plain; charset=utf-8"), False),
        (TEXT._replace(ttl_s=60), False, TEXT._replace(ttl_s=60), False),
        (TEXT._replace(ttl_s=0), False, TEXT._replace(ttl_s=0), False),
        (TEXT._replace(expires_at_us=5), False, TEXT._replace(expires_at_us=5), False),
    ],
)
def test_same_configuration_matches(
    existing: StreamConfig, existing_closed: bool, wanted: StreamConfig, wanted_closed: bool
) -> None:
    create_matches(existing, existing_closed, wanted, wanted_closed)


@pytest.mark.parametrize(
    ("existing", "existing_closed", "wanted", "wanted_closed", "said"),
    [
        (
            TEXT,
            False,
            TEXT._replace(content_type="application/json"),
            False,
            ["Content-Type is text/plain, the request wants application/json"],
        ),
        (
            TEXT._replace(ttl_s=3600),
            False,
            TEXT._replace(ttl_s=7200),
            False,
            ["Stream-TTL is 3600, the request wants 7200"],
        ),
        (
            TEXT,
            False,
            TEXT._replace(ttl_s=0),
            False,
            ["Stream-TTL is not set, the request wants 0"],
        ),
        (
            TEXT._replace(expires_at_us=NEW_YEAR_US),
            False,
            TEXT,
            False,
            ["Stream-Expires-At is 2026-01-01T00:00:00.000Z, the request wants not set"],
        ),
        (
            TEXT._replace(expires_at_us=NEW_YEAR_US),
            False,
            TEXT._replace(expires_at_us=NEW_YEAR_US + 1),
            False,
            ["the request wants 2026-01-01T00:00:00.000001Z"],
        ),
        (TEXT, True, TEXT, False, ["Stream-Closed is true, the request wants not set"]),
        (TEXT, False, TEXT, True, ["Stream-Closed is not set, the request wants true"]),
        (
            TEXT,
            False,
            StreamConfig("image/png", 5, None),
            True,
            ["Content-Type is", "Stream-TTL is", "Stream-Closed is"],
        ),
    ],
)
def test_every_difference_is_named(
    existing: StreamConfig,
    existing_closed: bool,
    wanted: StreamConfig,
    wanted_closed: bool,
    said: list[str],
) -> None:
    with pytest.raises(StreamExists) as caught:
        create_matches(existing, existing_closed, wanted, wanted_closed)
    for text in said:
        assert text in caught.value.detail


@pytest.mark.parametrize(
    ("config", "touched_us", "expected"),
    [
        (TEXT, 1_000, None),
        (TEXT._replace(ttl_s=2), 1_000, 2_001_000),
        (TEXT._replace(ttl_s=0), 1_000, 1_000),
        (TEXT._replace(expires_at_us=77), 1_000, 77),
        (TEXT._replace(ttl_s=INTEGER_MAX), 1_000, TIME_US_MAX),
    ],
)
def test_ttl_slides_and_expiry_stays(
    config: StreamConfig, touched_us: int, expected: int | None
) -> None:
    assert expires_at_us(config, touched_us) == expected


def test_the_latest_expiry_can_be_printed() -> None:
    assert format_expires_at(TIME_US_MAX) == "9999-12-31T23:59:59.999999Z"


def append(**changes: Any) -> None:
    """An append that nothing speaks against, but for the given changes."""
    request: dict[str, Any] = {
        "closed": False,
        "tail": "0000000000000001_0000000000000005",
        "stream_content_type": "application/json",
        "has_body": True,
        "content_type": "application/json",
        "last_stream_seq": "0005",
        "stream_seq": "0006",
    }
    append_precedence(**(request | changes))


CLOSED = {"closed": True}
OTHER_TYPE = {"content_type": "text/plain"}
NO_TYPE = {"content_type": None}
OLD_SEQ = {"stream_seq": "0005"}
NO_BODY = {"has_body": False}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, None),
        (CLOSED, StreamClosed),
        (CLOSED | OTHER_TYPE, StreamClosed),
        (CLOSED | NO_TYPE | OLD_SEQ, StreamClosed),
        (CLOSED | OTHER_TYPE | OLD_SEQ, StreamClosed),
        (OTHER_TYPE, ContentTypeMismatch),
        (OTHER_TYPE | OLD_SEQ, ContentTypeMismatch),
        (NO_TYPE | OLD_SEQ, MissingContentType),
        (OLD_SEQ, StreamSeqConflict),
        ({"stream_seq": "0004"}, StreamSeqConflict),
        ({"stream_seq": "00050"}, None),
        ({"stream_seq": "9"}, None),
        ({"stream_seq": "10", "last_stream_seq": "9"}, StreamSeqConflict),
        ({"stream_seq": "B", "last_stream_seq": "a"}, StreamSeqConflict),
        ({"stream_seq": None}, None),
        ({"last_stream_seq": None}, None),
        ({"content_type": "Application/JSON; charset=utf-8"}, None),
        (NO_BODY | OTHER_TYPE, None),
        (NO_BODY | NO_TYPE, None),
        (NO_BODY | OLD_SEQ, StreamSeqConflict),
        (NO_BODY | CLOSED, None),
        (NO_BODY | CLOSED | OTHER_TYPE | OLD_SEQ, None),
    ],
)
def test_precedence_is_closed_then_content_type_then_sequence(
    changes: dict[str, Any], error: type[PenstockError] | None
) -> None:
    if error is None:
        append(**changes)
        return
    with pytest.raises(error) as caught:
        append(**changes)
    assert type(caught.value) is error


def test_closed_answer_tells_that_and_where_the_stream_ended() -> None:
    with pytest.raises(StreamClosed) as caught:
        append(closed=True)
    assert caught.value.headers == {
        "Stream-Closed": "true",
        "Stream-Next-Offset": "0000000000000001_0000000000000005",
    }
