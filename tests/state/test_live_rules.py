"""The rules of live states, without a stream: batches in, plans out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.batches import Batch
from penstock.errors import ConnectionFailed, InvalidEvent, StateReset, StreamRecreated, TailMoved
from penstock.protocol.offsets import START
from penstock.state import (
    Collection,
    ControlEvent,
    StateEvent,
    StateSchema,
    delete,
    insert,
    reset,
    snapshot_end,
    snapshot_start,
    up_to_date,
    update,
)
from penstock.state.live.plan import Changed, Count, Exists, Plan, Position, Question
from penstock.state.live.rules import Rules
from penstock.state.live.transaction import Sequence
from penstock.state.lookup import token

A, B, C, D = "a" * 4, "b" * 4, "c" * 4, "d" * 4
BAD = b'{"type":"user","headers":{"operation":"insert"}}'


def batch(*events: StateEvent | bytes, tail: bool = True) -> Batch:
    data = b",".join(each if isinstance(each, bytes) else each.to_json() for each in events)
    return Batch(
        offset=B,
        next_offset=C,
        up_to_date=tail,
        closed=False,
        content_type="application/json",
        data=b"[" + data + b"]" if data else b"",
    )


def plan(
    rules: Rules,
    incoming: Batch,
    *,
    position: Position = Position(B),  # noqa: B008 - frozen
    open_txid: str | None = None,
    answer: Callable[[Question], Any] = lambda _: pytest.fail("there must be no question"),
) -> Plan:
    planning = rules.plan(incoming, position, open_txid, trace=True)
    reply: Any = None
    while True:
        try:
            question = planning.send(reply)
        except StopIteration as stop:
            outcome: Plan = stop.value
            return outcome
        reply = answer(question)


def noting(questions: list[Question], answer: Any) -> Callable[[Question], Any]:
    def note(question: Question) -> Any:
        questions.append(question)
        return answer

    return note


def test_events_fold_into_one_write_an_entity() -> None:
    outcome = plan(
        Rules(),
        batch(insert("user", "1", 1), insert("user", "2", 2), update("user", "1", 3),
              delete("user", "2")),
    )  # fmt: skip
    assert outcome.writes == {("user", "1"): b"3", ("user", "2"): None}
    assert outcome.position == Position(C)
    assert not outcome.clears
    assert not outcome.skips


def test_a_batch_without_data_only_moves_on() -> None:
    outcome = plan(Rules(), batch())
    assert outcome.writes == {}
    assert outcome.position.offset == C


def test_a_reset_clears_what_was_before_it_in_stream_order() -> None:
    outcome = plan(Rules(), batch(insert("user", "1", 1), reset(), insert("user", "2", 2)))
    assert outcome.clears
    assert outcome.writes == {("user", "2"): b"2"}


def test_a_reset_is_raised_if_asked_for() -> None:
    with pytest.raises(StateReset):
        plan(Rules(on_reset="raise"), batch(reset()))


@pytest.mark.parametrize(("choice", "clears"), [("clear", True), (None, True), ("keep", False)])
def test_a_function_decides_about_a_reset(choice: Any, clears: bool) -> None:
    questions: list[Any] = []

    def decide(event: Any) -> Any:
        questions.append(event)
        return choice

    outcome = plan(Rules(on_reset=decide), batch(insert("user", "1", 1), reset()))
    assert outcome.clears is clears
    assert isinstance(questions[0], ControlEvent)


def test_a_reset_that_is_kept_away_does_not_skip_either() -> None:
    outcome = plan(Rules(on_reset=lambda _: "keep"), batch(reset(offset=D), insert("user", "1", 1)))
    assert outcome.writes == {("user", "1"): b"1"}
    assert outcome.position.offset == C


def test_a_reset_to_an_offset_beyond_the_batch_skips_there() -> None:
    questions: list[Question] = []
    outcome = plan(
        Rules(),
        batch(insert("user", "1", 1), reset(offset=D), insert("user", "2", 2)),
        answer=noting(questions, True),
    )
    assert questions == [Exists(D)]
    assert outcome.clears
    assert outcome.skips
    assert outcome.writes == {}
    assert outcome.position.offset == D


def test_a_reset_to_where_the_stream_cannot_be_read_only_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcome = plan(Rules(), batch(reset(offset=D), insert("user", "2", 2)), answer=lambda _: False)
    assert "cannot be read" in caplog.text
    assert outcome.writes == {("user", "2"): b"2"}
    assert outcome.position.offset == C


def test_a_reset_to_the_end_of_the_batch_drops_the_rest_of_it() -> None:
    outcome = plan(Rules(), batch(reset(offset=C), insert("user", "2", 2)))
    assert outcome.writes == {}
    assert not outcome.skips
    assert outcome.position.offset == C


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, "234"), (2, "234"), (3, "34"), (4, "4"), (None, "234")],
)
def test_a_reset_into_its_own_batch_skips_only_forward(count: int | None, expected: str) -> None:
    """Messages before the offset: up to two are the reset itself and what was before it."""
    questions: list[Question] = []
    inside = B + "5"
    events = [insert("user", each, 1) for each in "1234"]
    outcome = plan(
        Rules(),
        batch(events[0], reset(offset=inside), *events[1:]),
        answer=noting(questions, count),
    )
    assert questions == [Count(B, inside)]
    assert [key for _, key in outcome.writes] == list(expected)


def test_places_count_events_that_were_left_out() -> None:
    outcome = plan(
        Rules(),
        batch(BAD, reset(offset=B + "5"), BAD, insert("user", "1", 1), insert("user", "2", 2)),
        answer=lambda _: 4,
    )
    assert [key for _, key in outcome.writes] == ["2"]
    assert outcome.skipped == 2


def test_a_reset_to_an_offset_behind_it_retains_what_has_changed_since() -> None:
    def answer(question: Question) -> bool:
        assert isinstance(question, Changed)
        assert question[:2] == (A, B)
        question.take(b"[" + insert("user", "1", 1).to_json() + b"]")
        question.take(b"[" + BAD + b"," + delete("user", "4").to_json() + b"]")
        return True

    events = insert("user", "2", 2), reset(offset=A), insert("user", "3", 3)
    outcome = plan(Rules(), batch(*events), answer=answer)
    assert not outcome.clears
    assert outcome.retains == {("user", "1"), ("user", "2"), ("user", "4")}
    assert outcome.writes == {("user", "2"): b"2", ("user", "3"): b"3"}


def test_a_reset_to_an_offset_behind_it_in_its_own_batch_retains_what_is_between() -> None:
    inside = B + "5"
    events = [insert("user", each, 1) for each in "123"]
    outcome = plan(
        Rules(), batch(*events, reset(offset=inside), insert("user", "4", 1)), answer=lambda _: 1
    )
    assert outcome.retains == {("user", "2"), ("user", "3")}
    values = {key: value for (_, key), value in outcome.writes.items()}
    assert values == {"1": None, "2": b"1", "3": b"1", "4": b"1"}


def test_a_reset_to_the_beginning_of_its_batch_needs_no_question() -> None:
    outcome = plan(Rules(), batch(insert("user", "1", 1), reset(offset=B)))
    assert outcome.retains == {("user", "1")}
    assert outcome.writes == {("user", "1"): b"1"}


def test_two_resets_retain_what_both_do() -> None:
    counts = iter([0, 1])
    events = insert("user", "1", 1), insert("user", "2", 2)
    outcome = plan(
        Rules(),
        batch(*events, reset(offset=B + "1"), reset(offset=B + "2")),
        answer=lambda _: next(counts),
    )
    assert outcome.retains == {("user", "2")}


def test_a_reset_to_an_offset_behind_it_that_cannot_be_read_clears(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcome = plan(Rules(), batch(reset(offset=A), insert("user", "2", 2)), answer=lambda _: None)
    assert "cannot be read" in caplog.text
    assert outcome.clears
    assert outcome.writes == {("user", "2"): b"2"}


def test_snapshot_ranges_are_kept_track_of_and_change_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    opened = plan(Rules(), batch(snapshot_start(), insert("user", "1", 1)))
    assert opened.position == Position(C, in_snapshot=True)
    closed = plan(Rules(), batch(snapshot_end()), position=Position(B, in_snapshot=True))
    assert closed.position == Position(C, in_snapshot=False)
    assert opened.writes == {("user", "1"): b"1"}
    assert not caplog.records


@pytest.mark.parametrize(
    ("event", "inside", "words"),
    [(snapshot_end(), False, "without a snapshot-start"), (snapshot_start(), True, "no end")],
)
def test_snapshot_bounds_that_do_not_match_are_warned_of(
    event: ControlEvent, inside: bool, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = plan(
        Rules(), batch(event, insert("user", "1", 1)), position=Position(B, in_snapshot=inside)
    )
    assert words in caplog.text
    assert outcome.writes == {("user", "1"): b"1"}


def test_controls_are_handed_on_in_order() -> None:
    outcome = plan(Rules(), batch(snapshot_start(), up_to_date(), snapshot_end()))
    assert [each.control for each in outcome.controls] == [
        "snapshot-start", "up-to-date", "snapshot-end",
    ]  # fmt: skip


SCHEMA = StateSchema(users=Collection(type="user", schema={"type": "integer"}))


@pytest.mark.parametrize("bad", [BAD, insert("user", "1", "text")])
def test_invalid_events_do_not_hold_up_others(bad: Any) -> None:
    dead: list[InvalidEvent] = []
    taken = batch(bad, insert("flag", "x", True))
    for rules in (Rules(schema=SCHEMA), Rules(schema=SCHEMA, on_invalid=dead.append)):
        outcome = plan(rules, taken)
        assert outcome.writes == {("flag", "x"): b"true"}
        assert outcome.skipped == 1
    assert [(error.index, bool(error.raw)) for error in dead] == [(0, True)]
    with pytest.raises(InvalidEvent):
        plan(Rules(schema=SCHEMA, on_invalid="raise"), taken)


def test_a_transaction_that_a_chunk_may_have_cut_stays_open() -> None:
    whole = batch(insert("user", "1", 1, txid="x"), insert("user", "2", 2, txid="y"))
    assert list(plan(Rules(), whole).txids) == ["x", "y"]
    cut = plan(
        Rules(),
        batch(insert("user", "1", 1, txid="x"), insert("user", "2", 2, txid="y"), tail=False),
    )
    assert list(cut.txids) == ["x"]
    assert cut.open_txid == "y"
    following = plan(Rules(), batch(insert("user", "3", 3), tail=False), open_txid="y")
    assert list(following.txids) == ["y"]
    still = plan(Rules(), batch(insert("user", "3", 3, txid="y"), tail=False), open_txid="y")
    assert list(still.txids) == []
    assert still.open_txid == "y"


def test_a_stream_made_anew_is_a_reset() -> None:
    error = StreamRecreated("made anew")
    outcome = Rules().gone(error, Position(C, in_snapshot=True))
    assert outcome.clears
    assert outcome.skips
    assert outcome.position == Position(START)
    for rules, at in ((Rules(on_reset="raise"), C), (Rules(on_reset=lambda _: "keep"), C),
                      (Rules(), START)):  # fmt: skip
        with pytest.raises(StreamRecreated):
            rules.gone(error, Position(at))


@pytest.mark.parametrize("options", [{"on_invalid": "drop"}, {"on_reset": "keep"}])
def test_unknown_policies_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match=r": use (raise, skip|clear, raise) or a function"):
        Rules(**options)


def test_a_new_epoch_follows_an_unknown_outcome_only() -> None:
    sequence = Sequence("me")
    sequence.stored()
    sequence.failed(TailMoved("no"))
    assert sequence.headers == ("me", 0, 1)
    sequence.failed(ConnectionFailed("lost"))
    assert sequence.headers == ("me", 1, 0)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(scalars, scalars)
def test_equal_values_have_equal_tokens(one: Any, other: Any) -> None:
    same = isinstance(one, bool) is isinstance(other, bool) and one == other
    assert (token(one) == token(other)) is bool(same)


def test_numbers_are_equal_whatever_their_spelling() -> None:
    assert token(1) == token(1.0)
    assert len({token(1), token(True), token("1"), token(None), token([1]), token({})}) == 6


def test_odd_timestamps_are_tolerated_with_one_warning_a_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    change = b'{"type":"t","key":"k","value":1,"headers":{"operation":"insert","timestamp":"%s"}}'
    odd = [change % text for text in (b"yesterday", b"2025-01-15", b"")]
    assert plan(Rules(), batch(*odd)).writes == {("t", "k"): b"1"}
    assert [record.getMessage() for record in caplog.records] == [
        f"timestamps of 3 events up to {C} are not RFC 3339"
    ]
    caplog.clear()
    plan(Rules(), batch(change % b"2025-01-15T10:30:00Z"))
    assert caplog.records == []
