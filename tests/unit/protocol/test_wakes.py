"""The life of a wake: every phase with every event, for webhooks and for workers."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest

from penstock.protocol.subscription import PULL_WAKE, WEBHOOK, Kind
from penstock.protocol.wakes import (
    Announced,
    AnnounceFailed,
    CallFailed,
    CallStarted,
    Claim,
    Deadline,
    Delete,
    Effect,
    Event,
    Extend,
    Finish,
    Issue,
    News,
    Phase,
    Refusal,
    Resume,
    Step,
    Wake,
    decide,
)

SOON, ANNOUNCE, STORE = Effect.ISSUE_SOON, Effect.ANNOUNCE, Effect.STORE
CALL, CANCEL = Effect.CALL, Effect.CANCEL_CALL
HELD, NO_WORK, STALE = Refusal.HELD, Refusal.NO_WORK, Refusal.STALE

# A wake in each phase, of the third generation and after two failures.
IDLE = Wake(3, attempts=2)
ISSUED = Wake(3, "w", attempts=2)
TOLD = Wake(3, "w", attempts=2, announced=True)
HELD_BY_W1 = Wake(3, "w", "w1", lease_us=50, announced=True)
CALLED = Wake(3, "w", lease_us=50, attempts=2)
ACCEPTED = Wake(3, "w", lease_us=50, announced=True)
RETRY = Wake(3, "w", attempts=2, retry_us=60)
BACKOFF = Wake(3, attempts=2, retry_us=60)

OVER = Wake(3)
NEXT = Wake(4, "new", attempts=2)
CLAIMED = Wake(3, "w", "w2", lease_us=90, attempts=2, announced=True)
CLAIMED_NEXT = Wake(4, "new", "w2", lease_us=90, attempts=2, announced=True)
EXTENDED = Wake(3, "w", lease_us=90, announced=True)
FAILED = Wake(3, "w", attempts=3, retry_us=99)
FAILED_FIRST = Wake(3, "w", attempts=1, retry_us=99, announced=True)
TIMED_OUT = Wake(3, attempts=3, retry_us=99)
TIMED_OUT_FIRST = Wake(3, attempts=1, retry_us=99, announced=True)

CLAIM = Claim("w2", "new", 90)
STARTED, FAILURE = CallStarted("w", 90), CallFailed("w", 99)
EXTEND, FINISH = Extend("w", 90), Finish("w")
PASSED, UNANSWERED = Deadline(False, 0), Deadline(True, 99)

PULL_STATES = (IDLE, ISSUED, TOLD, HELD_BY_W1)
WEBHOOK_STATES = (IDLE, ISSUED, CALLED, ACCEPTED, RETRY, BACKOFF)
PULL_EVENTS: tuple[Event, ...] = (
    News(), Issue("new"), Announced(3), AnnounceFailed(3), CLAIM, EXTEND, FINISH, PASSED, Resume(),
    Delete(),
)  # fmt: skip
WEBHOOK_EVENTS: tuple[Event, ...] = (
    News(), Issue("new"), STARTED, FAILURE, EXTEND, FINISH, PASSED, UNANSWERED, Resume(), Delete(),
)  # fmt: skip


class Case(NamedTuple):
    kind: Kind
    wake: Wake
    event: Event
    with_work: Step
    without_work: Step


def _pull(wake: Wake, event: Event, with_work: Step, without_work: Step | None = None) -> Case:
    return Case(PULL_WAKE, wake, event, with_work, without_work or with_work)


def _hook(wake: Wake, event: Event, with_work: Step, without_work: Step | None = None) -> Case:
    return Case(WEBHOOK, wake, event, with_work, without_work or with_work)


def _same(wake: Wake, *effects: Effect) -> Step:
    return Step(wake, effects)


def _refused(wake: Wake, refusal: Refusal) -> Step:
    return Step(wake, (), refusal)


TABLE = [
    # A worker's wake: nobody has it, or one worker does.
    _pull(IDLE, News(), _same(IDLE, SOON), _same(IDLE)),
    _pull(IDLE, Issue("new"), Step(NEXT, (ANNOUNCE, STORE)), _same(IDLE)),
    _pull(IDLE, Announced(3), _same(IDLE)),
    _pull(IDLE, AnnounceFailed(3), _same(IDLE)),
    _pull(IDLE, CLAIM, Step(CLAIMED_NEXT, (STORE,)), _refused(IDLE, NO_WORK)),
    _pull(IDLE, EXTEND, _refused(IDLE, STALE)),
    _pull(IDLE, FINISH, _refused(IDLE, STALE)),
    _pull(IDLE, PASSED, _same(IDLE)),
    _pull(IDLE, Resume(), _same(IDLE)),
    _pull(IDLE, Delete(), Step(OVER, (CANCEL,))),
    _pull(ISSUED, News(), _same(ISSUED)),
    _pull(ISSUED, Issue("new"), _same(ISSUED)),
    _pull(ISSUED, Announced(3), _same(TOLD)),
    _pull(ISSUED, AnnounceFailed(3), _same(ISSUED)),
    _pull(ISSUED, CLAIM, Step(CLAIMED, (STORE,)), Step(OVER, (STORE,), NO_WORK)),
    _pull(ISSUED, EXTEND, Step(EXTENDED, (STORE,))),
    _pull(ISSUED, FINISH, Step(OVER, (STORE, SOON)), Step(OVER, (STORE,))),
    _pull(ISSUED, PASSED, _same(ISSUED)),
    _pull(ISSUED, Resume(), _same(ISSUED, ANNOUNCE, STORE)),
    _pull(ISSUED, Delete(), Step(OVER, (CANCEL,))),
    _pull(TOLD, News(), _same(TOLD)),
    _pull(TOLD, Issue("new"), _same(TOLD)),
    _pull(TOLD, Announced(3), _same(TOLD)),
    _pull(TOLD, AnnounceFailed(3), _same(ISSUED)),
    _pull(TOLD, CLAIM, Step(CLAIMED, (STORE,)), Step(OVER, (STORE,), NO_WORK)),
    _pull(TOLD, EXTEND, Step(EXTENDED, (STORE,))),
    _pull(TOLD, FINISH, Step(OVER, (STORE, SOON)), Step(OVER, (STORE,))),
    _pull(TOLD, PASSED, _same(TOLD)),
    _pull(TOLD, Resume(), _same(TOLD)),
    _pull(TOLD, Delete(), Step(OVER, (CANCEL,))),
    _pull(HELD_BY_W1, News(), _same(HELD_BY_W1)),
    _pull(HELD_BY_W1, Issue("new"), _same(HELD_BY_W1)),
    _pull(HELD_BY_W1, Announced(3), _same(HELD_BY_W1)),
    _pull(HELD_BY_W1, AnnounceFailed(3), _same(HELD_BY_W1)),
    _pull(HELD_BY_W1, CLAIM, _refused(HELD_BY_W1, HELD)),
    _pull(HELD_BY_W1, EXTEND, Step(Wake(3, "w", "w1", lease_us=90, announced=True), (STORE,))),
    _pull(HELD_BY_W1, FINISH, Step(OVER, (STORE, SOON)), Step(OVER, (STORE,))),
    _pull(HELD_BY_W1, PASSED, Step(OVER, (SOON,)), Step(OVER, (STORE,))),
    _pull(HELD_BY_W1, Resume(), _same(HELD_BY_W1)),
    _pull(HELD_BY_W1, Delete(), Step(OVER, (CANCEL,))),
    # A webhook's wake: to be called, being called, accepted, or failed.
    _hook(IDLE, News(), _same(IDLE, SOON), _same(IDLE)),
    _hook(IDLE, Issue("new"), Step(NEXT, (STORE, CALL)), _same(IDLE)),
    _hook(IDLE, STARTED, _refused(IDLE, STALE)),
    _hook(IDLE, FAILURE, _refused(IDLE, STALE)),
    _hook(IDLE, EXTEND, _refused(IDLE, STALE)),
    _hook(IDLE, FINISH, _refused(IDLE, STALE)),
    _hook(IDLE, PASSED, _same(IDLE)),
    _hook(IDLE, UNANSWERED, _same(IDLE)),
    _hook(IDLE, Resume(), _same(IDLE)),
    _hook(IDLE, Delete(), Step(OVER, (CANCEL,))),
    _hook(ISSUED, News(), _same(ISSUED)),
    _hook(ISSUED, Issue("new"), _same(ISSUED)),
    _hook(ISSUED, STARTED, _same(Wake(3, "w", lease_us=90, attempts=2))),
    _hook(ISSUED, FAILURE, Step(FAILED, (STORE,))),
    _hook(ISSUED, EXTEND, Step(EXTENDED, (STORE,))),
    _hook(ISSUED, FINISH, Step(OVER, (STORE, SOON)), Step(OVER, (STORE,))),
    _hook(ISSUED, PASSED, _same(ISSUED)),
    _hook(ISSUED, UNANSWERED, _same(ISSUED)),
    _hook(ISSUED, Resume(), _same(ISSUED, STORE, CALL)),
    _hook(ISSUED, Delete(), Step(OVER, (CANCEL,))),
    _hook(CALLED, News(), _same(CALLED)),
    _hook(CALLED, Issue("new"), _same(CALLED)),
    _hook(CALLED, STARTED, _same(Wake(3, "w", lease_us=90, attempts=2))),
    _hook(CALLED, FAILURE, Step(FAILED, (STORE,))),
    _hook(CALLED, EXTEND, Step(EXTENDED, (STORE,))),
    _hook(CALLED, FINISH, Step(OVER, (STORE, SOON)), Step(OVER, (STORE,))),
    _hook(CALLED, PASSED, Step(OVER, (SOON,)), Step(OVER, (STORE,))),
    _hook(CALLED, UNANSWERED, Step(TIMED_OUT, (CANCEL, STORE))),
    _hook(CALLED, Resume(), _same(ISSUED, STORE, CALL)),
    _hook(CALLED, Delete(), Step(OVER, (CANCEL,))),
    _hook(ACCEPTED, News(), _same(ACCEPTED)),
    _hook(ACCEPTED, Issue("new"), _same(ACCEPTED)),
    _hook(ACCEPTED, STARTED, _same(EXTENDED)),
    _hook(ACCEPTED, FAILURE, Step(FAILED_FIRST, (STORE,))),
    _hook(ACCEPTED, EXTEND, Step(EXTENDED, (STORE,))),
    _hook(ACCEPTED, FINISH, Step(OVER, (STORE, SOON)), Step(OVER, (STORE,))),
    _hook(ACCEPTED, PASSED, Step(OVER, (SOON,)), Step(OVER, (STORE,))),
    _hook(ACCEPTED, UNANSWERED, Step(TIMED_OUT_FIRST, (CANCEL, STORE))),
    _hook(ACCEPTED, Resume(), _same(ACCEPTED)),
    _hook(ACCEPTED, Delete(), Step(OVER, (CANCEL,))),
    _hook(RETRY, News(), _same(RETRY)),
    _hook(RETRY, Issue("new"), _same(RETRY)),
    _hook(RETRY, STARTED, _same(Wake(3, "w", lease_us=90, attempts=2))),
    _hook(RETRY, FAILURE, Step(FAILED, (STORE,))),
    _hook(RETRY, EXTEND, Step(EXTENDED, (STORE,))),
    _hook(RETRY, FINISH, Step(OVER, (STORE, SOON)), Step(OVER, (STORE,))),
    _hook(RETRY, PASSED, Step(ISSUED, (CALL,))),
    _hook(RETRY, UNANSWERED, Step(ISSUED, (CALL,))),
    _hook(RETRY, Resume(), _same(RETRY)),
    _hook(RETRY, Delete(), Step(OVER, (CANCEL,))),
    _hook(BACKOFF, News(), _same(BACKOFF)),
    _hook(BACKOFF, Issue("new"), _same(BACKOFF)),
    _hook(BACKOFF, STARTED, _refused(BACKOFF, STALE)),
    _hook(BACKOFF, FAILURE, _refused(BACKOFF, STALE)),
    _hook(BACKOFF, EXTEND, _refused(BACKOFF, STALE)),
    _hook(BACKOFF, FINISH, _refused(BACKOFF, STALE)),
    _hook(BACKOFF, PASSED, Step(IDLE, (SOON,)), Step(OVER, (STORE,))),
    _hook(BACKOFF, UNANSWERED, Step(IDLE, (SOON,)), Step(OVER, (STORE,))),
    _hook(BACKOFF, Resume(), _same(BACKOFF)),
    _hook(BACKOFF, Delete(), Step(OVER, (CANCEL,))),
]


@pytest.mark.parametrize("case", TABLE, ids=lambda case: f"{case.kind} {case.wake} {case.event}")
def test_what_an_event_makes_of_a_wake(case: Case) -> None:
    kind, wake, event, with_work, without_work = case
    assert decide(wake, event, kind=kind, has_work=True) == with_work
    assert decide(wake, event, kind=kind, has_work=False) == without_work


def test_the_table_has_every_phase_with_every_event() -> None:
    # The class as well: events without fields are equal as tuples.
    table = {(case.kind, case.wake, type(case.event), case.event) for case in TABLE}
    every = {
        (kind, wake, type(event), event)
        for kind, wakes, events in (
            (PULL_WAKE, PULL_STATES, PULL_EVENTS),
            (WEBHOOK, WEBHOOK_STATES, WEBHOOK_EVENTS),
        )
        for wake in wakes
        for event in events
    }
    assert table == every
    assert len(TABLE) == len(every)
    assert {wake.phase for wake in (*PULL_STATES, *WEBHOOK_STATES)} == set(Phase)
    types = {type(event) for event in (*PULL_EVENTS, *WEBHOOK_EVENTS)}
    assert types == set(Event.__args__)


@pytest.mark.parametrize("event", [CallStarted("x", 9), CallFailed("x", 9), Extend("x", 9)])
@pytest.mark.parametrize("wake", [ISSUED, CALLED, ACCEPTED, RETRY])
def test_what_is_said_of_another_wake_is_stale(wake: Wake, event: Event) -> None:
    assert decide(wake, event, kind=WEBHOOK, has_work=True) == Step(wake, (), STALE)
    assert decide(wake, Finish("x"), kind=WEBHOOK, has_work=True) == Step(wake, (), STALE)


def test_an_announcement_of_another_generation_changes_nothing() -> None:
    assert decide(TOLD, AnnounceFailed(2), kind=PULL_WAKE, has_work=True) == Step(TOLD)
    assert decide(ISSUED, Announced(2), kind=PULL_WAKE, has_work=True) == Step(ISSUED)


@pytest.mark.parametrize(
    ("wake", "deadline_us"),
    [(IDLE, 0), (ISSUED, 0), (HELD_BY_W1, 50), (CALLED, 50), (RETRY, 60), (BACKOFF, 60)],
)
def test_the_deadline_of_a_wake(wake: Wake, deadline_us: int) -> None:
    assert wake.deadline_us == deadline_us


@pytest.mark.parametrize(
    ("wake", "wake_id", "generation", "is_current"),
    [
        (HELD_BY_W1, "w", 3, True),
        (HELD_BY_W1, "w", 2, False),
        (HELD_BY_W1, "x", 3, False),
        (IDLE, "", 3, False),
        (BACKOFF, "", 3, False),
    ],
)
def test_a_worker_has_to_name_the_current_wake(
    wake: Wake, wake_id: str, generation: int, is_current: bool
) -> None:
    assert wake.is_current(wake_id, generation) is is_current


def test_the_stored_form_of_a_wake() -> None:
    stored = {"generation": 3, "wake_id": "w", "holder": "w1", "lease_us": 50, "told": True}
    assert msgspec.to_builtins(HELD_BY_W1) == stored
    assert msgspec.convert(stored, Wake) == HELD_BY_W1
    assert msgspec.to_builtins(Wake()) == {}
