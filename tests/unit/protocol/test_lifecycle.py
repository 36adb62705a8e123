from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import (
    ContentTypeMismatch,
    EmptyBody,
    EpochStart,
    MissingContentType,
    PenstockError,
    SequenceGap,
    StaleEpoch,
    StreamExists,
    StreamSeqConflict,
    TooManyProducers,
)
from penstock.limits import INTEGER_MAX, TIME_US_MAX
from penstock.protocol.headers import Producer, format_expires_at
from penstock.protocol.lifecycle import (
    AppendRequest,
    Outcome,
    StreamConfig,
    create_matches,
    expires_at_us,
    judge_append,
    stream_closed,
)
from penstock.protocol.producer import ProducerState

TEXT = StreamConfig("text/plain", None, None)
NEW_YEAR_US = 1_767_225_600_000_000


@pytest.mark.parametrize(
    ("existing", "existing_closed", "requested", "requested_closed"),
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
    existing: StreamConfig, existing_closed: bool, requested: StreamConfig, requested_closed: bool
) -> None:
    create_matches(existing, existing_closed, requested, requested_closed)


@pytest.mark.parametrize(
    ("existing", "existing_closed", "requested", "requested_closed", "differences"),
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
    requested: StreamConfig,
    requested_closed: bool,
    differences: list[str],
) -> None:
    with pytest.raises(StreamExists) as caught:
        create_matches(existing, existing_closed, requested, requested_closed)
    for text in differences:
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


# An append that nothing speaks against.
REQUEST: dict[str, Any] = {
    "body": b"1",
    "content_type": "application/json",
    "close": False,
    "producer": None,
    "stream_seq": "0006",
}


STREAM: dict[str, Any] = {
    "closed": False,
    "closed_by": None,
    "content_type": "application/json",
    "last_stream_seq": "0005",
    "producer_state": None,
}
CLOSED = {"closed": True}
CLOSED_BY_IT = {"closed": True, "closed_by": Producer("p", 3, 7)}
KNOWN = {"producer_state": ProducerState(3, 6)}
FULL = {"takes_producers": False}
OTHER_TYPE = {"content_type": "text/plain"}
NO_TYPE = {"content_type": None}
OLD_SEQ = {"stream_seq": "0005"}
NO_BODY = {"body": b""}
CLOSE = {"close": True}
ONLY_CLOSE = {"body": b"", "close": True}
NEXT = {"producer": Producer("p", 3, 7)}
AGAIN = {"producer": Producer("p", 3, 6)}
GAP = {"producer": Producer("p", 3, 9)}
STALE = {"producer": Producer("p", 2, 0)}
NEW_EPOCH = {"producer": Producer("p", 4, 0)}
LATE_EPOCH = {"producer": Producer("p", 4, 1)}
FIRST = {"producer": Producer("q", 0, 0)}
SECOND = {"producer": Producer("q", 0, 1)}

ACCEPT, DUPLICATE = Outcome.ACCEPT, Outcome.DUPLICATE
ALREADY_CLOSED, REFUSED = Outcome.ALREADY_CLOSED, Outcome.CLOSED


@pytest.mark.parametrize(
    ("stream", "request_", "outcome"),
    [
        ({}, {}, ACCEPT),
        (CLOSED, {}, REFUSED),
        (CLOSED, OTHER_TYPE, REFUSED),
        (CLOSED, NO_TYPE | OLD_SEQ, REFUSED),
        (CLOSED, OTHER_TYPE | OLD_SEQ, REFUSED),
        ({}, OTHER_TYPE, ContentTypeMismatch),
        ({}, OTHER_TYPE | OLD_SEQ, ContentTypeMismatch),
        ({}, NO_TYPE | OLD_SEQ, MissingContentType),
        ({}, OLD_SEQ, StreamSeqConflict),
        ({}, {"stream_seq": "0004"}, StreamSeqConflict),
        ({}, {"stream_seq": "00050"}, ACCEPT),
        ({}, {"stream_seq": "9"}, ACCEPT),
        ({"last_stream_seq": "9"}, {"stream_seq": "10"}, StreamSeqConflict),
        ({"last_stream_seq": "a"}, {"stream_seq": "B"}, StreamSeqConflict),
        ({}, {"stream_seq": None}, ACCEPT),
        ({"last_stream_seq": None}, {}, ACCEPT),
        ({}, {"content_type": "Application/JSON; charset=utf-8"}, ACCEPT),
        ({}, ONLY_CLOSE | OTHER_TYPE, ACCEPT),
        ({}, ONLY_CLOSE | NO_TYPE, ACCEPT),
        ({}, ONLY_CLOSE | OLD_SEQ, StreamSeqConflict),
        (CLOSED, ONLY_CLOSE, ALREADY_CLOSED),
        (CLOSED, ONLY_CLOSE | OTHER_TYPE | OLD_SEQ, ALREADY_CLOSED),
        # Closing with a body is an append, and a closed stream takes none.
        ({}, CLOSE, ACCEPT),
        (CLOSED, CLOSE, REFUSED),
        # A request that neither appends nor closes says nothing.
        ({}, NO_BODY, EmptyBody),
        ({}, NO_BODY | NO_TYPE | OLD_SEQ | STALE, EmptyBody),
        (CLOSED, NO_BODY, REFUSED),
        # The producer's request that closed the stream may be repeated, and no other.
        (CLOSED_BY_IT | KNOWN, CLOSE | NEXT, ALREADY_CLOSED),
        (CLOSED_BY_IT | KNOWN, CLOSE | NEXT | OTHER_TYPE | OLD_SEQ, ALREADY_CLOSED),
        (CLOSED_BY_IT | KNOWN, CLOSE | AGAIN, REFUSED),
        (CLOSED | KNOWN, CLOSE | NEXT, REFUSED),
        (CLOSED | KNOWN, STALE, REFUSED),
        (CLOSED | KNOWN, ONLY_CLOSE | STALE, ALREADY_CLOSED),
        # The content type comes before the producer, the producer before the sequence.
        (KNOWN, NEXT, ACCEPT),
        (KNOWN, NEW_EPOCH, ACCEPT),
        (KNOWN, STALE, StaleEpoch),
        (KNOWN, GAP, SequenceGap),
        (KNOWN, LATE_EPOCH, EpochStart),
        (KNOWN, OTHER_TYPE | STALE, ContentTypeMismatch),
        (KNOWN, OTHER_TYPE | AGAIN, ContentTypeMismatch),
        (KNOWN, STALE | OLD_SEQ, StaleEpoch),
        (KNOWN, GAP | OLD_SEQ, SequenceGap),
        (KNOWN, NEXT | OLD_SEQ, StreamSeqConflict),
        (KNOWN, AGAIN, DUPLICATE),
        (KNOWN, AGAIN | OLD_SEQ, DUPLICATE),
        (KNOWN, AGAIN | ONLY_CLOSE, DUPLICATE),
        # A stream that takes no more producers refuses new ones alone, and before the sequence.
        ({}, FIRST, ACCEPT),
        ({}, SECOND, SequenceGap),
        (FULL, {}, ACCEPT),
        (FULL, FIRST, TooManyProducers),
        (FULL, SECOND, SequenceGap),
        (FULL, FIRST | OLD_SEQ, TooManyProducers),
        (FULL, FIRST | OTHER_TYPE, ContentTypeMismatch),
        (FULL | KNOWN, NEXT, ACCEPT),
        (FULL | KNOWN, AGAIN, DUPLICATE),
    ],
)
def test_an_append_is_judged_in_the_order_of_the_protocol(
    stream: dict[str, Any], request_: dict[str, Any], outcome: Outcome | type[PenstockError]
) -> None:
    request = AppendRequest(**(REQUEST | request_))
    if isinstance(outcome, Outcome):
        assert judge_append(request, **(STREAM | stream))[0] is outcome
        return
    with pytest.raises(outcome) as caught:
        judge_append(request, **(STREAM | stream))
    assert type(caught.value) is outcome


@pytest.mark.parametrize(
    ("stream", "request_", "state"),
    [
        ({}, {}, None),
        ({}, FIRST, ProducerState(0, 0)),
        (KNOWN, NEXT, ProducerState(3, 7)),
        (KNOWN, NEW_EPOCH, ProducerState(4, 0)),
        (KNOWN, AGAIN, ProducerState(3, 6)),
        (CLOSED | KNOWN, STALE, ProducerState(3, 6)),
        (CLOSED_BY_IT | {"producer_state": ProducerState(3, 7)}, CLOSE | NEXT, ProducerState(3, 7)),
    ],
)
def test_the_state_is_the_new_one_if_accepted_and_else_the_one_the_answer_reports(
    stream: dict[str, Any], request_: dict[str, Any], state: ProducerState | None
) -> None:
    assert judge_append(AppendRequest(**(REQUEST | request_)), **(STREAM | stream))[1] == state


def test_closed_answer_tells_that_and_where_the_stream_ended() -> None:
    tail = "0000000000000001_0000000000000005"
    assert stream_closed(tail).headers == {"Stream-Closed": "true", "Stream-Next-Offset": tail}
