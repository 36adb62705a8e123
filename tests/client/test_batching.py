"""The rules of producers: tables, and a model server behind a network that does what it likes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import errors
from penstock.client.producer_options import ProducerOptions, encoder_of
from penstock.client.producer_window import FULL, QUIET, WAKE, AppendBatch, Failed, Window
from penstock.client.retry import Retry
from penstock.protocol.headers import Producer
from penstock.protocol.producer import Accept, Duplicate, ProducerState, decide

PATIENT = Retry(attempts_max=None, first_s=1, max_s=1)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def window(clock: Clock | None = None, **options: Any) -> Window:
    options = {"id": "p", "retry": PATIENT, "linger_ms": 0, **options}
    return Window(ProducerOptions(**options), clock or Clock())


def next_batch(rules: Window) -> AppendBatch:
    """Return the next batch to send, and mark it as written, so that the next may follow."""
    batch = rules.take()
    assert isinstance(batch, AppendBatch), batch
    rules.written(batch)
    return batch


def in_flight(rules: Window, count: int) -> list[AppendBatch]:
    """An established producer with so many batches of one message each on their way."""
    rules.add(b"first")
    rules.accepted(next_batch(rules))
    batches = []
    for number in range(count):
        rules.add(b"%d" % number)
        batches.append(next_batch(rules))
    return batches


def gap(expected: int, received: int) -> errors.SequenceGap:
    return errors.SequenceGap(
        "gap", Producer_Expected_Seq=str(expected), Producer_Received_Seq=str(received)
    )


def stale(epoch: int) -> errors.StaleEpoch:
    return errors.StaleEpoch("stale", Producer_Epoch=str(epoch))


def lost(*, sent: bool = True) -> errors.ConnectionFailed:
    error = errors.ConnectionFailed("gone")
    error.sent = sent
    return error


# -- options and messages


@pytest.mark.parametrize(
    "options",
    [
        {"id": ""},
        {"id": " p"},
        {"id": "a\nb"},
        {"id": "ü"},
        {"id": "x" * 257},
        {"epoch": -1},
        {"epoch": 2**53},
        {"batch_bytes_max": 0},
        {"batch_bytes_max": -1},
        {"batch_items_max": 0},
        {"batch_items_max": -1},
        {"linger_ms": -1},
        {"in_flight_max": 0},
        {"queue_bytes_max": 0},
    ],
    ids=str,
)
def test_an_option_that_makes_no_sense_is_refused_by_its_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ProducerOptions(**{"id": "p", **options})


@pytest.mark.parametrize(
    ("content_type", "value", "expected"),
    [
        ("application/json", {"a": [1, None]}, b'{"a":[1,null]}'),
        ("application/json", [1, 2], b"[1,2]"),
        ("application/json", None, b"null"),
        ("application/json", "text", b'"text"'),
        ("application/json", 2**70, b"1180591620717411303424"),
        ("application/json", b' {"encoded": true}', b' {"encoded": true}'),
        ("text/plain", "é", "é".encode()),
        ("text/plain", b"raw", b"raw"),
        ("application/octet-stream", bytearray(b"raw"), b"raw"),
    ],
)
def test_a_value_becomes_one_message(content_type: str, value: Any, expected: bytes) -> None:
    assert encoder_of(content_type)(value) == expected


@pytest.mark.parametrize(
    ("content_type", "value", "error"),
    [
        ("application/json", object(), TypeError),
        ("application/json", {"a": {1j}}, TypeError),
        ("application/json", "\ud800", ValueError),
        ("application/json", b"1,2", ValueError),
        ("application/json", b"]", ValueError),
        ("application/json", b"", ValueError),
        ("text/plain", "", ValueError),
        ("text/plain", 1, TypeError),
        ("application/octet-stream", "text", TypeError),
    ],
)
def test_what_is_no_message_is_refused_at_once(
    content_type: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        encoder_of(content_type)(value)


def test_a_value_that_is_nested_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="JSON"):
        encoder_of("application/json")(endless)


# -- batching


def test_a_batch_waits_for_its_linger_and_no_longer() -> None:
    clock = Clock()
    rules = window(clock, linger_ms=5)
    assert rules.add(b"a") == WAKE
    assert rules.add(b"b") == QUIET
    assert rules.take() == pytest.approx(clock.now + 0.005)
    clock.now += 0.005
    assert next_batch(rules).messages == [b"a", b"b"]


def test_flush_ends_the_waiting() -> None:
    rules = window(linger_ms=60_000)
    rules.add(b"a")
    assert rules.flush() == 1
    assert next_batch(rules).messages == [b"a"]


@pytest.mark.parametrize(
    ("options", "separator_bytes", "sizes"),
    [
        ({"batch_items_max": 2}, 1, [2, 2, 1]),
        ({"batch_bytes_max": 7}, 1, [3, 2]),  # [a,a,a]
        ({"batch_bytes_max": 6}, 1, [2, 2, 1]),  # [a,a] is 5 bytes long, three would be 7
        ({"batch_bytes_max": 2}, 0, [2, 2, 1]),
        ({"batch_bytes_max": 1}, 1, [1, 1, 1, 1, 1]),  # a message too large goes alone
    ],
)
def test_five_messages_are_cut_into_batches(
    options: dict[str, Any], separator_bytes: int, sizes: list[int]
) -> None:
    rules = window(linger_ms=60_000, **options)
    rules.separator_bytes = separator_bytes
    for _ in range(5):
        rules.add(b"a")
    rules.flush()
    counts = []
    while (batch := rules.take()) is not None:
        assert isinstance(batch, AppendBatch)
        counts.append(len(batch.messages))
        rules.accepted(batch)
    assert counts == sizes
    assert rules.next_seq == len(sizes)


def test_while_every_slot_is_taken_the_open_batch_grows() -> None:
    rules = window(in_flight_max=1)
    first = in_flight(rules, 1)[0]
    rules.add(b"a")
    rules.add(b"b")
    assert rules.take() is None
    rules.accepted(first)
    assert next_batch(rules).messages == [b"a", b"b"]


def test_a_full_queue_takes_nothing_in_until_something_is_settled() -> None:
    rules = window(queue_bytes_max=100)
    assert rules.add(b"x" * 1000) == WAKE  # alone, even the largest has to fit
    assert rules.add(b"a") == FULL
    rules.accepted(next_batch(rules))
    assert rules.add(b"a") == WAKE
    assert rules.pending_count == 1


def test_a_full_queue_does_not_wait_for_the_linger() -> None:
    rules = window(queue_bytes_max=100, linger_ms=60_000)
    rules.add(b"x" * 50)
    assert rules.add(b"x" * 50) == FULL
    assert next_batch(rules).messages == [b"x" * 50]


def test_only_one_batch_is_sent_until_the_epoch_is_accepted() -> None:
    rules = window(batch_items_max=1)
    for _ in range(3):
        rules.add(b"a")
    first = next_batch(rules)
    assert rules.take() is None
    rules.accepted(first)
    assert [next_batch(rules).seq, next_batch(rules).seq] == [1, 2]
    assert rules.take() is None


def test_the_next_batch_leaves_when_the_one_before_it_has_been_written() -> None:
    rules = window()
    in_flight(rules, 0)
    rules.add(b"a")
    batch = rules.take()
    assert isinstance(batch, AppendBatch)
    rules.add(b"b")
    assert rules.take() is None
    rules.written(batch)
    assert next_batch(rules).messages == [b"b"]


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({}, True),
        ({"batch_items_max": 4}, True),
        ({"batch_items_max": 3}, False),  # it would be full, and so has to be closed
        ({"batch_bytes_max": 8}, True),
        ({"batch_bytes_max": 7}, False),  # [a,b,c] is full
        ({"queue_bytes_max": 147}, True),
        ({"queue_bytes_max": 146}, False),
    ],
    ids=str,
)
def test_several_messages_join_an_open_batch_that_has_room_for_all(
    options: dict[str, Any], fits: bool
) -> None:
    rules = window(linger_ms=60_000, **options)
    rules.separator_bytes = 1
    assert rules.extend([b"b", b"c"]) is False  # there is none yet
    rules.add(b"a")
    assert rules.extend([b"b", b"c"]) is fits
    assert rules.pending_count == (3 if fits else 1)
    rules.flush()
    assert next_batch(rules).messages == ([b"a", b"b", b"c"] if fits else [b"a"])


# -- outcomes


def test_a_batch_that_came_too_early_is_sent_again_after_the_one_before_it() -> None:
    rules = window()
    first, second, third = in_flight(rules, 3)
    assert rules.failed(second, gap(expected=1, received=2)) == []
    assert rules.failed(third, gap(expected=1, received=3)) == []
    assert rules.take() is None
    rules.accepted(first)
    assert [next_batch(rules), next_batch(rules)] == [second, third]
    assert (second.seq, third.seq) == (2, 3)


def test_an_early_batch_whose_refusal_comes_late_is_sent_again_at_once() -> None:
    rules = window()
    first, second = in_flight(rules, 2)
    rules.accepted(first)
    assert rules.failed(second, gap(expected=1, received=2)) == []
    assert next_batch(rules) is second


def test_batches_that_overtake_each_other_make_fewer_leave_at_once() -> None:
    rules = window(in_flight_max=4)
    first, *others = in_flight(rules, 4)
    for batch in others:
        rules.failed(batch, gap(expected=1, received=batch.seq))
    rules.accepted(first)
    # Half as many, though three were refused.
    assert [next_batch(rules), next_batch(rules)] == others[:2]
    assert rules.take() is None
    for batch in others[:2]:
        rules.accepted(batch)
    assert rules.in_flight_count == 0
    for number in range(4):
        rules.add(b"%d" % number)
        next_batch(rules)
        if rules.in_flight_count == 3:
            break
    assert rules.in_flight_count == 3


@pytest.mark.parametrize("expected", [0, 2])
def test_a_gap_before_what_was_confirmed_is_fatal(expected: int) -> None:
    rules = window()
    (batch,) = in_flight(rules, 1)
    error = gap(expected=expected, received=1)
    assert rules.failed(batch, error) == [Failed(error, [b"0"])]
    assert rules.error is error


@pytest.mark.parametrize(
    "error",
    [
        lost(),
        lost(sent=False),
        errors.Overloaded("busy"),
        errors.RateLimited("slow down"),
        errors.InternalError("oops"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_may_pass_is_repeated_under_the_same_number(error: errors.PenstockError) -> None:
    clock = Clock()
    rules = window(clock)
    first, second = in_flight(rules, 2)
    assert rules.failed(first, error) == []
    assert rules.failed(second, error) == []
    moment = rules.take()
    assert isinstance(moment, float)
    clock.now = moment
    assert next_batch(rules) is first
    assert first.seq == 1
    assert rules.take() is None  # alone, until it is known that the server is back
    rules.accepted(first)
    assert next_batch(rules) is second


def test_the_server_says_how_long_to_wait() -> None:
    clock = Clock()
    rules = window(clock, retry=Retry(max_s=60))
    (batch,) = in_flight(rules, 1)
    rules.failed(batch, errors.RateLimited("later", Retry_After="7"))
    assert rules.take() == clock.now + 7


def test_repeating_ends_after_the_last_attempt() -> None:
    clock = Clock()
    rules = window(clock, retry=Retry(attempts_max=2))
    (batch,) = in_flight(rules, 1)
    assert rules.failed(batch, lost()) == []
    clock.now += 1
    error = lost()
    assert rules.failed(next_batch(rules), error) == [Failed(error, [b"0"])]
    assert "may be stored" in error.__notes__[0]
    with pytest.raises(errors.ConnectionFailed):
        rules.add(b"more")


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidJson("no"),
        errors.Unauthorized("no"),
        errors.StreamNotFound("no"),
        errors.StreamClosed("no"),
        errors.ContentTypeMismatch("no"),
        errors.BodyTooLarge("no"),
        errors.DiskFull("no"),
        errors.ClientClosed("no"),
        stale(5),
        KeyError("a header callable failed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_fatal_failure_takes_what_follows_with_it_and_nothing_else(error: Exception) -> None:
    rules = window()
    first, second, third = in_flight(rules, 3)
    rules.add(b"open")
    assert rules.failed(second, error) == [Failed(error, [b"1"]), Failed(error, [b"open"])]
    rules.accepted(first)
    refused = gap(expected=2, received=3)
    assert rules.failed(third, refused) == [Failed(refused, [b"2"])]
    assert rules.is_settled
    assert rules.error is error
    with pytest.raises(type(error)):
        rules.add(b"more")


def test_what_precedes_a_fatal_failure_is_still_repeated() -> None:
    clock = Clock()
    rules = window(clock)
    first, second = in_flight(rules, 2)
    rules.failed(second, errors.InvalidJson("no"))
    rules.failed(first, lost())
    clock.now += 10
    assert next_batch(rules) is first
    rules.accepted(first)
    assert rules.is_settled


def test_a_fenced_producer_claims_the_next_epoch_once_all_are_answered() -> None:
    rules = window(auto_claim=True)
    first, second, third = in_flight(rules, 3)
    assert rules.failed(second, stale(5)) == []
    assert rules.take() is None
    rules.accepted(first)  # under the old epoch
    assert rules.take() is None
    rules.failed(third, stale(5))
    again = next_batch(rules)
    assert (again.messages, again.epoch, again.seq) == ([b"1"], 6, 0)
    assert rules.take() is None
    rules.accepted(again)
    again = next_batch(rules)
    assert (again.messages, again.epoch, again.seq) == ([b"2"], 6, 1)
    assert (rules.epoch, rules.next_seq) == (6, 2)


def test_a_batch_that_may_be_stored_is_not_claimed_again() -> None:
    clock = Clock()
    rules = window(clock, auto_claim=True)
    first, second = in_flight(rules, 2)
    rules.failed(first, lost())
    error = stale(5)
    assert rules.failed(second, error) == [Failed(error, [b"0"]), Failed(error, [b"1"])]
    assert "may be stored" in error.__notes__[0]


def test_a_batch_that_certainly_is_not_stored_is_claimed_again() -> None:
    clock = Clock()
    rules = window(clock, auto_claim=True)
    first, second = in_flight(rules, 2)
    rules.failed(first, lost(sent=False))
    assert rules.failed(second, stale(5)) == []
    clock.now += 10
    assert next_batch(rules).epoch == 6


def test_two_that_claim_from_each_other_for_ever_are_stopped() -> None:
    rules = window(auto_claim=True)
    rules.add(b"a")
    failures: list[Failed] = []
    for epoch in range(100):
        failures = rules.failed(next_batch(rules), stale(2 * epoch + 1))
        if failures:
            break
    assert isinstance(rules.error, errors.StaleEpoch)


@pytest.mark.parametrize("last_seq", [0, 7])
def test_a_duplicate_of_what_was_never_sent_is_an_epoch_used_before(last_seq: int) -> None:
    rules = window()
    rules.add(b"a")
    ((error, messages),) = rules.accepted(next_batch(rules), duplicate=True, last_seq=last_seq)
    assert isinstance(error, errors.StaleEpoch)
    assert messages == [b"a"]


def test_an_epoch_used_before_is_claimed_if_asked_for() -> None:
    rules = window(auto_claim=True, epoch=3)
    rules.add(b"a")
    assert rules.accepted(next_batch(rules), duplicate=True, last_seq=0) == []
    again = next_batch(rules)
    assert (again.messages, again.epoch, again.seq) == ([b"a"], 4, 0)


def test_a_duplicate_after_a_lost_answer_is_stored() -> None:
    clock = Clock()
    rules = window(clock)
    rules.add(b"a")
    rules.failed(next_batch(rules), lost())
    clock.now += 10
    assert rules.accepted(next_batch(rules), duplicate=True, last_seq=0) == []
    assert rules.is_settled


def test_a_duplicate_beyond_all_that_was_sent_is_not_ours_even_after_a_lost_answer() -> None:
    clock = Clock()
    rules = window(clock)
    rules.add(b"a")
    rules.failed(next_batch(rules), lost())
    clock.now += 10
    assert rules.accepted(next_batch(rules), duplicate=True, last_seq=1) != []


def test_restart_begins_an_epoch_above_the_one_that_fenced_it() -> None:
    rules = window()
    (batch,) = in_flight(rules, 1)
    rules.failed(batch, stale(5))
    rules.restart()
    rules.add(b"a")
    again = next_batch(rules)
    assert (again.epoch, again.seq, rules.error) == (6, 0, None)


def test_closing_the_stream_goes_last_and_alone() -> None:
    rules = window()
    (batch,) = in_flight(rules, 1)
    rules.add(b"open")
    closing = rules.close_stream(b"final")
    last = next_batch(rules)
    assert last.messages == [b"open"]
    assert rules.take() is None
    rules.accepted(batch)
    rules.accepted(last)
    assert next_batch(rules) is closing
    assert (closing.messages, closing.close) == ([b"final"], True)
    rules.accepted(closing)
    assert rules.is_settled
    assert rules.pending_count == 0


def test_what_is_abandoned_is_neither_sent_nor_reported() -> None:
    rules = window()
    (batch,) = in_flight(rules, 1)
    rules.add(b"open")
    assert rules.abandon() == 2
    assert rules.take() is None
    assert rules.failed(batch, lost()) == []
    assert rules.in_flight_count == rules.pending_count == 0


# -- any network


class Sent(NamedTuple):
    batch: AppendBatch
    producer: Producer
    messages: tuple[bytes, ...]


class World:
    """A producer, a server that follows the protocol, and all that is on its way between them."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.rules = window(self.clock, **options)
        self.state: ProducerState | None = None
        self.added: list[bytes] = []
        self.stored: list[bytes] = []
        self.failed: list[bytes] = []
        self.on_their_way: list[Sent] = []
        self.zombies: list[Sent] = []  # the producer has given up waiting for these

    def add(self) -> None:
        message = b"%d" % len(self.added)
        if self.rules.error is None and self.rules.add(message) != FULL:
            self.added.append(message)

    def send(self) -> None:
        batch = self.rules.take()
        if isinstance(batch, AppendBatch):
            producer = Producer("p", batch.epoch, batch.seq)
            self.on_their_way.append(Sent(batch, producer, tuple(batch.messages)))
            self.rules.written(batch)

    def serve(self, sent: Sent) -> errors.PenstockError | Accept | Duplicate:
        try:
            decision = decide(self.state, sent.producer)
        except errors.PenstockError as error:
            return error
        if isinstance(decision, Accept):
            self.state = decision.state
            self.stored.extend(sent.messages)
        return decision

    def fail(self, sent: Sent, error: Exception) -> None:
        for failed in self.rules.failed(sent.batch, error):
            self.failed.extend(failed.messages)

    def answer(self, sent: Sent) -> None:
        answer = self.serve(sent)
        if isinstance(answer, errors.PenstockError):
            self.fail(sent, answer)
            return
        for failed in self.rules.accepted(
            sent.batch, duplicate=isinstance(answer, Duplicate), last_seq=answer.state.seq
        ):
            self.failed.extend(failed.messages)

    def step(self, action: str, pick: int) -> None:
        if action in ("add", "send"):
            getattr(self, action)()
        elif action == "flush":
            self.rules.flush()
        elif action == "wait":
            self.clock.now += 1
        elif action == "rival":
            epoch = -1 if self.state is None else self.state.epoch
            self.state = ProducerState(epoch + 1, RIVAL_SEQ)
        elif action == "zombie":
            if self.zombies:
                self.serve(self.zombies.pop(pick % len(self.zombies)))
        elif self.on_their_way:
            sent = self.on_their_way.pop(pick % len(self.on_their_way))
            if action == "answer":
                self.answer(sent)
            elif action == "lose the answer":
                self.serve(sent)
                self.fail(sent, lost())
            elif action == "lose the request":
                self.fail(sent, lost())
            elif action == "stall":
                self.zombies.append(sent)
                self.fail(sent, lost())
            elif action == "no connection":
                self.fail(sent, lost(sent=False))
            elif action == "overloaded":
                self.fail(sent, errors.Overloaded("busy"))
            elif action == "refuse":
                self.fail(sent, errors.InvalidJson("no"))

    def finish(self) -> None:
        """From here on the network is kind."""
        for _ in range(10_000):
            if self.rules.is_settled and not self.on_their_way:
                return
            self.rules.flush()
            self.clock.now += 1
            self.send()
            if self.on_their_way:
                self.answer(self.on_their_way.pop(0))
        raise AssertionError("it never ends")


RIVAL_SEQ = 200  # more than any script sends, so that even a lost answer leaves no doubt
FAULTS = ["lose the answer", "lose the request", "stall", "zombie", "no connection", "overloaded"]
GOOD = ["add", "send", "answer", "wait", "flush"]
OPTIONS = st.fixed_dictionaries(
    {
        "in_flight_max": st.integers(1, 5),
        "batch_items_max": st.sampled_from([1, 2, 3]),
        "linger_ms": st.sampled_from([0, 500]),
        "queue_bytes_max": st.sampled_from([200, 2**20]),
    }
)


def steps(*actions: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    weighted = [*GOOD, "add", "send", "send", *actions]
    return st.lists(st.tuples(st.sampled_from(weighted), st.integers(0, 4)), max_size=120)


def played(options: dict[str, Any], script: list[tuple[str, int]]) -> World:
    world = World(**options)
    for action, pick in script:
        world.step(action, pick)
    world.finish()
    return world


@settings(max_examples=400)
@given(OPTIONS, steps(*FAULTS))
def test_whatever_the_network_does_each_message_is_stored_once_and_in_order(
    options: dict[str, Any], script: list[tuple[str, int]]
) -> None:
    world = played(options, script)
    assert world.stored == world.added
    assert world.failed == []
    assert world.rules.pending_count == world.rules.in_flight_count == 0


@settings(max_examples=400)
@given(OPTIONS, steps("rival", "overloaded", "no connection"))
def test_a_rival_costs_nothing_if_no_answer_was_lost(
    options: dict[str, Any], script: list[tuple[str, int]]
) -> None:
    world = played({**options, "auto_claim": True}, script)
    if world.rules.error is None:
        assert world.stored == world.added
    else:
        assert world.rules._claims >= 10


@settings(max_examples=400)
@given(OPTIONS, st.booleans(), steps(*FAULTS, "rival", "refuse"))
def test_whatever_happens_nothing_is_doubled_reordered_or_lost_without_a_word(
    options: dict[str, Any], auto_claim: bool, script: list[tuple[str, int]]
) -> None:
    world = played({**options, "auto_claim": auto_claim}, script)
    numbers = [int(message) for message in world.stored]
    assert numbers == sorted(set(numbers))
    assert set(world.stored) | set(world.failed) == set(world.added)
    assert len(world.failed) == len(set(world.failed))
    if world.rules.error is None:
        assert world.stored == world.added
