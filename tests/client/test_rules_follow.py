"""The rules of following, with a server that is a script and a clock that is held still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Retry
from penstock.client.answers import Answer
from penstock.client.batches import Batch
from penstock.client.checkpoint import MemoryCheckpoint
from penstock.client.flow import (
    Call,
    Close,
    Done,
    Effect,
    Emit,
    Exchange,
    Open,
    Pause,
    Piece,
    advance,
    fail,
)
from penstock.client.follow import SSE_FIRST_EVENT_S, Follower, FollowOptions
from penstock.client.requests import Request
from penstock.errors import (
    ConnectionFailed,
    Gone,
    PenstockError,
    ProtocolError,
    RateLimited,
    StreamNotFound,
)
from penstock.protocol import sse

URL = "http://host/v1/stream/orders"
STEPS_MAX = 500


class Script:
    """Answers effects one after the other, and remembers what was asked.

    An outcome is an Answer, an error to raise, bytes or None for a piece, or a callable that
    makes one of them (and may move the clock).
    """

    def __init__(self, *outcomes: Any, **options: Any) -> None:
        self.outcomes = list(outcomes)
        self.now_s = 1000.0
        self.requests: list[Request] = []
        self.pauses: list[float] = []
        self.batches: list[Batch] = []
        retry = options.pop("client_retry", Retry(first_s=1, max_s=8))
        content_type = options.pop("content_type", None)
        self.follower = Follower(
            URL,
            FollowOptions(**options),
            retry,
            content_type=content_type,
            now_s=lambda: self.now_s,
        )

    def run(self) -> Script:
        """Until the flow ends, or there is nothing left to answer it with."""
        flow = self.follower.flow()
        effect = advance(flow)
        for _ in range(STEPS_MAX):
            if isinstance(effect, Done) or (self._needs_outcome(effect) and not self.outcomes):
                flow.close()
                return self
            try:
                value = self._perform(effect)
            except PenstockError as error:
                effect = fail(flow, error)
            else:
                effect = advance(flow, value)
        raise AssertionError("the flow does not end")

    def _needs_outcome(self, effect: Effect) -> bool:
        return isinstance(effect, Exchange | Open | Piece)

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Exchange(request) | Open(request):
                self.requests.append(request)
                return self._outcome()
            case Piece():
                return self._outcome()
            case Pause(seconds):
                self.pauses.append(seconds)
                self.now_s += seconds
            case Call(function, arguments):
                return function(*arguments)
            case Emit(batch):
                self.batches.append(batch)
            case Close():
                pass
        return None

    def _outcome(self) -> Any:
        outcome = self.outcomes.pop(0)
        if callable(outcome):
            outcome = outcome()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def later(self, seconds: float, outcome: Any) -> Callable[[], Any]:
        """The outcome, after the clock has moved."""

        def act() -> Any:
            self.now_s += seconds
            return outcome

        return act

    @property
    def modes(self) -> list[str]:
        return [str(request.params.get("live", request.method)) for request in self.requests]

    @property
    def offsets(self) -> list[str]:
        return [str(request.params.get("offset", "")) for request in self.requests]

    @property
    def messages(self) -> list[Any]:
        return [message for batch in self.batches for message in batch.messages]


@pytest.fixture(autouse=True)
def _no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "penstock.client.retry.Retry.pause_s.__kwdefaults__", {"jitter": lambda low, high: high}
    )


def chunk(
    body: bytes,
    offset: str,
    *,
    up_to_date: bool = True,
    closed: bool = False,
    cursor: str | None = None,
    status: int = 200,
    content_type: str = "application/json",
) -> Answer:
    headers = {"content-type": content_type, "stream-next-offset": offset}
    if up_to_date:
        headers["stream-up-to-date"] = "true"
    if closed:
        headers["stream-closed"] = "true"
    if cursor is not None:
        headers["stream-cursor"] = cursor
    return Answer(status, headers, body)


def refusal(status: int, **headers: str) -> Answer:
    return Answer(status, {name.replace("_", "-"): value for name, value in headers.items()})


EVENTS = Answer(200, {"content-type": "text/event-stream; charset=utf-8"})


def event(
    wire: bytes, offset: str, *, closed: bool = False, cursor: str = "9", up_to_date: bool = True
) -> bytes:
    data = sse.data_json(wire) if wire else b""
    return data + sse.control(offset, cursor=cursor, up_to_date=up_to_date, closed=closed)


def lost(*, sent: bool = True) -> ConnectionFailed:
    error = ConnectionFailed("lost")
    error.sent = sent
    return error


def test_catches_up_in_chunks_and_then_tails_until_closed() -> None:
    script = Script(
        chunk(b"[1,2]", "2", up_to_date=False),
        chunk(b"[3]", "3"),
        EVENTS,
        event(b"", "3"),
        event(b"4,\n5,\n", "5"),
        event(b"6,\n", "6", closed=True),
    ).run()
    assert script.messages == [1, 2, 3, 4, 5, 6]
    assert script.modes == ["GET", "GET", "sse"]
    assert script.offsets == ["-1", "2", "3"]
    assert [batch.up_to_date for batch in script.batches] == [False, True, True, True]
    assert [batch.next_offset for batch in script.batches] == ["2", "3", "5", "6"]
    assert [batch.offset for batch in script.batches] == ["-1", "2", "3", "5"]
    assert script.batches[-1].closed


def test_data_without_its_control_event_is_not_handed_on() -> None:
    whole = event(b"2,\n", "2")
    script = Script(
        chunk(b"[1]", "1"),
        EVENTS,
        whole[: whole.index(b"event: control") + 20],
        lost(),
        EVENTS,
        whole,
        event(b"", "2", closed=True),
    ).run()
    assert script.messages == [1, 2]
    assert script.offsets == ["-1", "1", "1"]


def test_several_data_events_before_one_control_event_are_one_batch() -> None:
    script = Script(
        chunk(b"[]", "0"),
        EVENTS,
        sse.data_json(b"1,\n") + sse.data_json(b"2,\n3,\n") + event(b"", "3", closed=True),
    ).run()
    assert script.messages == [1, 2, 3]
    assert len(script.batches) == 2


@pytest.mark.parametrize("status", [400, 405, 406, 501])
def test_long_poll_follows_when_sse_is_refused(status: int) -> None:
    script = Script(
        chunk(b"[1]", "1", cursor="5"),
        refusal(status),
        chunk(b"[2]", "2", cursor="6"),
        chunk(b"", "2", status=204, closed=True),
    ).run()
    assert script.modes == ["GET", "sse", "long-poll", "long-poll"]
    assert script.messages == [1, 2]
    assert script.pauses == []


def test_long_poll_follows_when_sse_is_answered_with_something_else() -> None:
    script = Script(
        chunk(b"[1]", "1"), chunk(b"[]", "1"), chunk(b"[2]", "2", cursor="6", closed=True)
    ).run()
    assert script.modes == ["GET", "sse", "long-poll"]
    assert script.messages == [1, 2]


def test_long_poll_follows_when_sse_is_buffered() -> None:
    script = Script(chunk(b"[1]", "1"))
    for _ in range(3):  # no event comes until the patience is over
        script.outcomes += [EVENTS, script.later(SSE_FIRST_EVENT_S, lost())]
    script.outcomes += [chunk(b"[2]", "2", cursor="6", closed=True)]
    script.run()
    assert script.modes == ["GET", "sse", "sse", "sse", "long-poll"]
    assert script.messages == [1, 2]
    assert script.requests[1].read_timeout_s == SSE_FIRST_EVENT_S


def test_long_poll_follows_when_events_come_only_at_the_end_of_the_response() -> None:
    script = Script(chunk(b"[1]", "1"))
    for n in (2, 3, 4):
        held_back = script.later(60, event(b"%d,\n" % n, str(n)))
        script.outcomes += [EVENTS, held_back, None]
    script.outcomes += [chunk(b"[5]", "5", cursor="6", closed=True)]
    script.run()
    assert script.modes == ["GET", "sse", "sse", "sse", "long-poll"]
    assert script.messages == [1, 2, 3, 4, 5]


def test_sse_that_always_ends_at_once_is_slowed_down_and_given_up() -> None:
    script = Script(chunk(b"[1]", "1"))
    for _ in range(3):
        script.outcomes += [EVENTS, event(b"", "1"), None]
    script.outcomes += [chunk(b"[2]", "2", cursor="6", closed=True)]
    script.run()
    assert script.modes == ["GET", "sse", "sse", "sse", "long-poll"]
    assert script.pauses == [1, 2, 4]


def test_sse_that_works_is_reconnected_at_once_when_its_time_is_up() -> None:
    script = Script(chunk(b"[1]", "1"))
    for _ in range(5):
        script.outcomes += [EVENTS, event(b"", "1"), script.later(60, None)]
    script.run()
    assert script.modes[1:6] == ["sse"] * 5
    assert script.pauses == []


def test_connection_that_is_refused_says_nothing_about_sse() -> None:
    script = Script(chunk(b"[1]", "1"), *[lost(sent=False)] * 5, EVENTS, event(b"", "1")).run()
    assert script.modes == ["GET"] + ["sse"] * 6


def test_mode_that_was_chosen_is_used_from_the_first_request_and_kept() -> None:
    script = Script(
        EVENTS, event(b"1,\n", "1", closed=True), mode="sse", content_type="application/json"
    ).run()
    assert script.modes == ["sse"]
    assert script.messages == [1]
    script = Script(chunk(b"[1]", "1", cursor="1", closed=True), mode="long-poll").run()
    assert script.modes == ["long-poll"]
    with pytest.raises(PenstockError) as refused:
        Script(refusal(501), None, mode="sse", content_type="application/json").run()
    assert refused.value.status == 501


def test_type_of_the_events_is_asked_for_if_it_is_not_known() -> None:
    script = Script(chunk(b"", "1"), EVENTS, event(b"1,\n", "1", closed=True), mode="sse").run()
    assert script.modes == ["HEAD", "sse"]
    assert script.messages == [1]


def test_cursor_is_echoed() -> None:
    script = Script(
        chunk(b"[1]", "1"),
        EVENTS,
        event(b"2,\n", "2", cursor="41"),
        lost(),
        refusal(501),
        chunk(b"[3]", "3", cursor="42"),
        chunk(b"", "3", status=204, cursor="43"),
    ).run()
    assert [request.params.get("cursor") for request in script.requests] == [
        None,
        None,
        "41",
        "41",
        "42",
    ]


def test_live_answer_without_cursor_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="Stream-Cursor"):
        Script(chunk(b"[1]", "1"), mode="long-poll", protocol_errors_max=0).run()


def test_empty_long_polls_are_repeated_in_silence() -> None:
    script = Script(mode="long-poll", content_type="application/json")
    empty = chunk(b"", "1", status=204, cursor="1")
    script.outcomes += [script.later(30, empty)] * 3
    script.outcomes += [chunk(b"[1]", "2", cursor="2", closed=True)]
    script.run()
    assert [batch.messages for batch in script.batches] == [[], [1]]  # up to date; then news
    assert script.pauses == []


def test_long_poll_that_only_learns_the_offset_is_followed_by_the_next_at_once() -> None:
    # The reference server answers so from the start of an empty stream.
    empty = chunk(b"[]", "0_0", cursor="1")
    script = Script(empty, chunk(b"[1]", "0_1", cursor="2"), mode="long-poll").run()
    assert script.offsets[:2] == ["-1", "0_0"]
    assert script.messages == [1]
    assert script.pauses == []


def test_long_polls_that_do_not_wait_are_slowed_down() -> None:
    empty = chunk(b"", "1", status=204, cursor="1")
    script = Script(*[empty] * 5, offset="1", mode="long-poll").run()
    assert script.pauses == [1, 2, 4, 8, 8]


@pytest.mark.parametrize(
    "failure",
    [lost(), lost(sent=False), refusal(500), refusal(502), refusal(503), refusal(408)],
)
@pytest.mark.parametrize("mode", ["auto", "long-poll", "sse"])
def test_goes_on_from_the_last_offset_after_a_failure(failure: Any, mode: str) -> None:
    script = Script(mode=mode, content_type="application/json")
    if mode == "sse":
        ends = [None] if isinstance(failure, Answer) else []
        script.outcomes += [EVENTS, event(b"1,\n", "1"), lost(), failure, *ends, EVENTS]
        script.outcomes += [event(b"2,\n", "2", closed=True)]
    else:
        script.outcomes += [
            chunk(b"[1]", "1", up_to_date=False, cursor="1"),
            failure,
            chunk(b"[2]", "2", cursor="1", closed=True),
        ]
    script.run()
    assert script.messages == [1, 2]
    assert script.offsets[-1] == "1"
    assert script.pauses


def test_outage_is_waited_for_once_it_has_worked() -> None:
    script = Script(
        chunk(b"[1]", "1", up_to_date=False), *[lost()] * 50, chunk(b"[2]", "2", closed=True)
    ).run()
    assert script.messages == [1, 2]
    assert script.pauses[:5] == [1, 2, 4, 8, 8]


def test_outage_is_told_of_when_it_begins_and_when_it_is_over() -> None:
    told: list[PenstockError | None] = []
    first, second, again = lost(), lost(sent=False), lost(sent=False)
    Script(
        chunk(b"[1]", "1"),
        *(EVENTS, event(b"", "1"), first),  # a connection that is resumed is no outage
        *(EVENTS, event(b"", "1"), lost(), second, again, refusal(503), None),
        *(EVENTS, event(b"2,\n", "2"), event(b"", "2", closed=True)),
        on_outage=told.append,
    ).run()
    assert told == [second, None]


def test_server_that_never_answered_is_no_outage_but_a_failure() -> None:
    told: list[PenstockError | None] = []
    with pytest.raises(ConnectionFailed):
        Script(*[lost(sent=False)] * 6, on_outage=told.append).run()
    assert told == []


def test_server_that_never_answered_is_given_up() -> None:
    script = Script(*[lost(sent=False)] * 50, client_retry=Retry(attempts_max=4))
    with pytest.raises(ConnectionFailed):
        script.run()
    assert len(script.requests) == 4


def test_limit_that_was_asked_for_holds_in_the_middle_too() -> None:
    script = Script(
        chunk(b"[1]", "1", up_to_date=False), *[lost()] * 50, retry=Retry(attempts_max=3)
    )
    with pytest.raises(ConnectionFailed):
        script.run()
    assert len(script.requests) == 4


def test_retry_after_is_waited_for() -> None:
    script = Script(refusal(429, retry_after="3"), chunk(b"[1]", "1", closed=True)).run()
    assert script.pauses == [3]
    assert script.messages == [1]


@pytest.mark.parametrize(
    ("status", "cls"), [(404, StreamNotFound), (400, PenstockError), (401, PenstockError)]
)
def test_failure_that_does_not_pass_is_raised_at_once(
    status: int, cls: type[PenstockError]
) -> None:
    script = Script(chunk(b"[1]", "1", up_to_date=False), refusal(status))
    with pytest.raises(cls):
        script.run()
    assert script.pauses == []


def test_stream_that_is_deleted_during_the_tail_is_not_found() -> None:
    script = Script(chunk(b"[1]", "1"), EVENTS, event(b"", "1"), None, refusal(404), None)
    with pytest.raises(StreamNotFound):
        script.run()


BROKEN_CONTROL = b"event: control\ndata: {invalid\n\n"


def test_broken_events_are_retried_a_few_times_and_then_raised() -> None:
    script = Script(chunk(b"[1]", "1"))
    script.outcomes += [EVENTS, BROKEN_CONTROL] * 10
    with pytest.raises(ProtocolError):
        script.run()
    assert script.modes == ["GET"] + ["sse"] * 4


def test_broken_event_that_does_not_come_again_is_no_harm() -> None:
    script = Script(chunk(b"[1]", "1"))
    for n in range(2, 12):
        script.outcomes += [EVENTS, BROKEN_CONTROL, EVENTS, event(b"%d,\n" % n, str(n)), lost()]
    script.run()
    assert script.messages == list(range(1, 12))


def test_truncated_json_is_not_taken_for_the_whole() -> None:
    script = Script(chunk(b"[1,2", "2"), chunk(b"[1,2]", "2", closed=True)).run()
    assert script.messages == [1, 2]
    assert script.offsets == ["-1", "-1"]


def test_answer_that_does_not_move_on_is_no_endless_loop() -> None:
    script = Script(*[chunk(b"[]", "5", up_to_date=False)] * 100, offset="5")
    with pytest.raises(ProtocolError):
        script.run()


GONE = refusal(410)


def test_reset_is_raised_by_default() -> None:
    with pytest.raises(Gone):
        Script(GONE, offset="5").run()


def test_reset_restarts_from_the_earliest_if_told_to() -> None:
    script = Script(GONE, chunk(b"[1]", "1", closed=True), offset="5", on_reset="restart").run()
    assert script.offsets == ["5", "-1"]
    assert script.batches[0].offset == "-1"


def test_reset_during_the_tail_catches_up_again() -> None:
    script = Script(
        chunk(b"[1]", "1"), EVENTS, event(b"", "1"), None, GONE, None, on_reset="restart"
    )
    script.outcomes += [chunk(b"[2]", "2", closed=True)]
    script.run()
    assert script.modes == ["GET", "sse", "sse", "GET"]
    assert script.offsets[-1] == "-1"


def test_restart_that_is_gone_as_well_is_raised() -> None:
    with pytest.raises(Gone):
        Script(GONE, GONE, offset="5", on_reset="restart").run()


def test_reset_asks_the_callback_where_to_go_on() -> None:
    seen: list[Gone] = []

    def on_reset(error: Gone) -> str:
        seen.append(error)
        return "7"

    script = Script(GONE, chunk(b"[1]", "8", closed=True), offset="5", on_reset=on_reset).run()
    assert script.offsets == ["5", "7"]
    assert seen[0].status == 410
    with pytest.raises(Gone):
        Script(GONE, offset="5", on_reset=lambda error: None).run()


def test_callback_that_insists_is_slowed_down() -> None:
    script = Script(*[GONE] * 3, offset="5", on_reset=lambda error: "5").run()
    assert script.pauses == [1, 2, 4]


def test_offset_is_saved_when_the_next_batch_is_asked_for() -> None:
    checkpoint = MemoryCheckpoint()
    script = Script(
        chunk(b"[1]", "1", up_to_date=False),
        chunk(b"[2]", "2", up_to_date=False),
        checkpoint=checkpoint,
    )
    flow = script.follower.flow()
    effect = advance(flow)
    saved = []
    while not isinstance(effect, Done) and (script.outcomes or isinstance(effect, Call | Emit)):
        if isinstance(effect, Emit):
            saved.append(checkpoint.load(URL))
        effect = advance(flow, script._perform(effect))
    flow.close()
    assert saved == [None, "1"]
    assert checkpoint.load(URL) == "2"


def test_saved_offset_wins_over_the_one_that_was_given() -> None:
    checkpoint = MemoryCheckpoint()
    checkpoint.save("mine", "5")
    script = Script(
        chunk(b"[6]", "6", closed=True), offset="2", checkpoint=checkpoint, checkpoint_key="mine"
    ).run()
    assert script.offsets == ["5"]
    assert checkpoint.load("mine") == "6"


def test_stops_when_up_to_date_if_told_to() -> None:
    script = Script(
        chunk(b"[1]", "1", up_to_date=False), chunk(b"[2]", "2"), stop_when_up_to_date=True
    ).run()
    assert script.messages == [1, 2]
    assert script.modes == ["GET", "GET"]


def test_ends_when_nothing_has_come_for_the_idle_time() -> None:
    script = Script(mode="long-poll", idle_timeout_s=5, content_type="application/json")
    empty = chunk(b"", "1", status=204, cursor="1")
    script.outcomes += [
        script.later(4, empty),
        script.later(3, chunk(b"[1]", "2", cursor="1")),
    ]
    script.outcomes += [script.later(2, empty), script.later(5, lost()), chunk(b"[9]", "9")]
    script.run()
    assert script.messages == [1]
    assert len(script.outcomes) == 1
    assert script.requests[0].read_timeout_s == 5


def test_start_at_now_is_pinned_by_the_first_answer() -> None:
    script = Script(chunk(b"[]", "7"), lost(), EVENTS, event(b"8,\n", "8"), offset="now").run()
    assert script.offsets == ["now", "7", "7"]


BASE64 = Answer(200, {"content-type": "text/event-stream", "stream-sse-data-encoding": "base64"})
TEXT = "text/plain; charset=utf-8"


def text_event(data: bytes, offset: str, *, closed: bool = False) -> bytes:
    """Text as servers without base64 send it: some bytes are not those of the stream."""
    return sse.data_text(data) + sse.control(offset, cursor="9", up_to_date=True, closed=closed)


@pytest.mark.parametrize("decode", [True, False])
def test_text_is_asked_for_in_base64(decode: bool) -> None:
    written = b"a\r\nb\rc\xff\xc3"
    control = sse.control("9", cursor="9", up_to_date=True, closed=False)
    script = Script(
        chunk(b"\r", "1", content_type=TEXT),
        BASE64,
        sse.data_binary(written) + control,
        sse.data_binary(b"\xa9") + sse.control("a", cursor="9", up_to_date=True, closed=True),
        decode=decode,
    ).run()
    assert script.modes == ["GET", "sse"]
    assert script.requests[1].params["sse"] == "base64"
    assert b"".join(batch.data for batch in script.batches) == b"\r" + written + b"\xa9"
    text = "\ra\r\nb\rc\ufffdé" if decode else ""
    assert "".join(batch.text for batch in script.batches) == text


@pytest.mark.parametrize("content_type", ["application/json", "image/png"])
def test_only_text_is_asked_for_in_base64(content_type: str) -> None:
    script = Script(chunk(b"[1]", "1", content_type=content_type), EVENTS).run()
    assert "sse" not in script.requests[1].params


@pytest.mark.parametrize("content_type", [TEXT, "application/xml"])
def test_events_that_are_not_exact_lead_to_long_polls(content_type: str) -> None:
    script = Script(
        chunk(b"a\r\n", "3", content_type=content_type),
        EVENTS,
        chunk(b"b\r\n", "6", content_type=content_type, cursor="1", closed=True),
    ).run()
    assert script.modes == ["GET", "sse", "long-poll"]
    assert [batch.data for batch in script.batches] == [b"a\r\n", b"b\r\n"]


def test_chosen_events_that_are_in_doubt_are_read_again() -> None:
    script = Script(
        EVENTS,
        sse.control("0", cursor="9", up_to_date=True, closed=False),
        text_event(b"plain", "5"),
        text_event(b"a\r\n", "8"),
        chunk(b"a\r", "7", content_type=TEXT, up_to_date=False),
        chunk(b"\nb", "9", content_type=TEXT),  # more than the event was about
        text_event(b"b", "9") + text_event(b"c", "91") + text_event(b"d\n", "93"),
        chunk(b"d\nef", "95", content_type=TEXT),
        text_event(b"efg", "96"),  # begins before what is delivered, and ends after it
        chunk(b"g", "96", content_type=TEXT),
        text_event("\ufffd".encode(), "a", closed=True),
        chunk(b"\xff", "a", content_type=TEXT, closed=True),
        mode="sse",
        content_type=TEXT,
        offset="0",
    ).run()
    assert script.modes == ["sse", *["GET"] * 5]
    assert script.offsets == ["0", "5", "7", "91", "95", "96"]
    assert b"".join(batch.data for batch in script.batches) == b"plaina\r\nbcd\nefg\xff"
    assert script.batches[-1].closed


def test_chosen_events_from_now_on_begin_with_the_first_control_event() -> None:
    script = Script(
        EVENTS,
        sse.control("5", cursor="9", up_to_date=True, closed=False) + text_event(b"x\n", "7"),
        chunk(b"x\n", "7", content_type=TEXT, closed=True),
        mode="sse",
        content_type=TEXT,
        offset="now",
    ).run()
    assert script.offsets == ["now", "5"]
    assert b"".join(batch.data for batch in script.batches) == b"x\n"


def test_chosen_events_are_asked_for_without_base64_if_that_is_refused() -> None:
    script = Script(
        refusal(400), EVENTS, text_event(b"x", "1", closed=True), mode="sse", content_type=TEXT
    ).run()
    assert [request.params.get("sse") for request in script.requests] == ["base64", None]
    assert [batch.text for batch in script.batches] == ["x"]


def test_binary_events_are_decoded() -> None:
    answer = Answer(
        200, {"content-type": "text/event-stream", "stream-sse-data-encoding": "base64"}
    )
    control = sse.control("3", cursor=None, up_to_date=True, closed=True)
    script = Script(
        answer,
        sse.data_binary(b"\x00\xff") + sse.data_binary(b"\x01") + control,
        mode="sse",
        content_type="image/png",
    ).run()
    assert script.batches[0].data == b"\x00\xff\x01"


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode"):
        Script(mode="websocket")


def test_rate_limit_is_an_error_with_its_class_when_retries_are_over() -> None:
    with pytest.raises(RateLimited):
        Script(refusal(429), client_retry=Retry(attempts_max=1)).run()


def test_half_a_character_of_the_old_stream_is_no_part_of_the_new_one() -> None:
    script = Script(
        chunk(b"a\xc3", "2", content_type="text/plain", up_to_date=False),
        GONE,
        chunk(b"b", "1", content_type="text/plain", closed=True),
        on_reset="restart",
    ).run()
    assert [batch.text for batch in script.batches] == ["a", "b"]
