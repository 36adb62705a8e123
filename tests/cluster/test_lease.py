"""The lease: nobody is told that they are up to date by a node that another has replaced."""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext
from typing import Any

import pytest

from penstock.config.settings import Settings
from penstock.errors import ClusterRefused, ClusterUnavailable
from penstock.log.cluster.database import OutcomeUnknown, Rows, Sessions
from penstock.log.cluster.node import Holding, Node, Seen, View, assigned
from penstock.log.cluster.slots import Claim
from tests.helpers.app import Client, with_app

SETTINGS = Settings(cluster="postgresql://nowhere/none")
JSON = "application/json"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0


class BeatSession:
    """Answers beats: each is executed `delay` after it was sent, and answered as long after."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.delay = 0.0
        self.beat_at = 0.0
        self.epoch = 7
        self.is_closed = False

    def abort(self) -> None:
        self.is_closed = True

    async def fetch(self, statement: str, *values: Any) -> Rows:
        self.clock.now += self.delay
        self.beat_at = self.clock.now
        self.clock.now += self.delay
        return [([[0, self.epoch]],)]

    async def execute_many(self, statement: str, values: Any) -> None:
        raise AssertionError(statement)

    def transaction(self) -> Any:
        return nullcontext()


def owner(clock: Clock) -> tuple[Holding, BeatSession]:
    """Return a shard that a node owns, and the session of its beats."""
    session = BeatSession(clock)

    async def open_session() -> BeatSession:
        return session

    node = Node(SETTINGS, open_session=open_session, monotonic=lambda: clock.now)
    holding = Holding(node, 0, Sessions(open_session, size=1))
    holding.claim = Claim(7, 1)
    return holding, session


def is_ever_stale(rounds: int = 300) -> bool:
    """Whether a node says that it is current at a time when another may have taken over."""
    chance = random.Random(1)
    for _ in range(rounds):
        clock = Clock()
        holding, session = owner(clock)
        session.delay = chance.choice([0.0, 0.1, 1.0, 1.45, 2.0])
        asyncio.run(holding.node.beat())
        # Another node claims as soon as the beat, by the database's clock, is old enough.
        age_s = SETTINGS.cluster_takeover_s + 0.001
        view = View(7, holding.node.name, Seen("", age_s, True, True, False))
        assert view.is_free(SETTINGS.cluster_takeover_s)
        clock.now = max(clock.now, session.beat_at + age_s)
        if holding.is_current():
            return True
    return False


def test_no_node_is_current_when_another_may_claim() -> None:
    assert not is_ever_stale()


def test_a_lease_that_counts_from_the_answer_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Node._extend
    monkeypatch.setattr(Node, "_extend", lambda self, sent: real(self, self._now()))
    assert is_ever_stale()


def test_without_a_lease_a_frozen_node_is_current_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "has_lease", lambda self: True)
    assert is_ever_stale()


def test_a_node_is_current_from_its_beat_until_the_lease_is_over() -> None:
    clock = Clock()
    holding, _ = owner(clock)
    assert not holding.is_current()
    asyncio.run(holding.node.beat())
    assert holding.is_current()
    clock.now += SETTINGS.cluster_lease_s - 0.01
    assert holding.is_current()
    clock.now += 0.02
    assert not holding.is_current()


def test_the_lease_ends_with_the_session_by_which_others_see_the_node() -> None:
    holding, session = owner(Clock())
    asyncio.run(holding.node.beat())
    session.is_closed = True
    assert not holding.is_current()


def test_a_new_session_has_no_lease_before_its_first_beat() -> None:
    """Another node may have claimed the shard while there was none."""
    holding, session = owner(Clock())
    asyncio.run(holding.node.beat())
    session.is_closed = True
    seen: list[bool] = []
    beat = session.fetch

    async def fetch(statement: str, *values: Any) -> Rows:
        session.is_closed = False  # the new one is open
        seen.append(holding.is_current())
        return await beat(statement, *values)

    session.fetch = fetch  # type: ignore[method-assign]
    asyncio.run(holding.node.beat())
    assert seen == [False]
    assert holding.is_current()


def test_a_node_loses_only_the_shard_that_another_has_claimed() -> None:
    first, session = owner(Clock())
    second = Holding(first.node, 1, first.sessions)
    second.claim = Claim(3, 1, 1)
    beat = session.fetch

    async def fetch(statement: str, *values: Any) -> Rows:
        await beat(statement, *values)
        return [([[0, 7], [1, 4]],)]

    session.fetch = fetch  # type: ignore[method-assign]
    asyncio.run(first.node.beat())
    assert first.is_current()
    assert not second.is_current()
    assert second.claim is None


def test_a_beat_that_finds_another_epoch_ends_the_ownership() -> None:
    holding, session = owner(Clock())
    reasons: list[str] = []
    holding._on_lost = reasons.append
    session.epoch = 8
    asyncio.run(holding.node.beat())
    assert holding.claim is None
    assert len(reasons) == 1


def test_a_beat_sent_before_a_claim_says_nothing_about_it() -> None:
    holding, session = owner(Clock())
    claim, holding.claim = holding.claim, None

    async def run() -> None:
        beat = session.fetch

        async def fetch(statement: str, *values: Any) -> Rows:
            holding.claim = claim  # meanwhile
            session.epoch = 6
            return await beat(statement, *values)

        session.fetch = fetch  # type: ignore[method-assign]
        await holding.node.beat()

    asyncio.run(run())
    assert holding.claim is claim


@pytest.mark.parametrize(
    ("view", "is_free"),
    [
        (View(1, None, Seen(None, None, None, False, False)), True),
        (View(1, "a", Seen("", 0.1, True, True, False)), False),
        (View(1, "a", Seen("", 0.1, True, False, False)), True),
        (View(1, "a", Seen("", 0.1, False, False, False)), False),
        (View(1, "a", Seen("", 9.0, False, False, False)), True),
        (View(1, "a", Seen("", 9.0, True, True, False)), True),
        (View(1, "a", Seen("", 9.0, True, True, True)), False),
    ],
    ids=["released", "lives", "gone", "other primary", "silent", "frozen", "waits for a standby"],
)
def test_when_the_streams_may_be_claimed(view: View, is_free: bool) -> None:
    assert view.is_free(3.0) is is_free


def test_times_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ClusterRefused, match="cluster_beat_s"):
        Node(Settings(cluster="postgresql://nowhere/none", cluster_lease_s=5.0))


def test_a_node_without_a_session_is_not_current() -> None:
    async def open_session() -> Any:
        raise OutcomeUnknown("away")

    node = Node(SETTINGS, open_session=open_session, monotonic=lambda: 0.0)
    holding = Holding(node, 0, Sessions(open_session, size=1))
    holding.claim = Claim(7, 1)
    with pytest.raises(OutcomeUnknown):
        asyncio.run(node.beat())
    assert not holding.is_current()


def test_every_node_assigns_shards_alike_and_few_move() -> None:
    names = [f"node-{number}" for number in range(5)]
    shares = {shard: assigned(shard, names) for shard in range(1000)}
    assert shares == {shard: assigned(shard, reversed(names)) for shard in range(1000)}
    assert all(150 < list(shares.values()).count(name) < 250 for name in names)
    without = {shard: assigned(shard, names[1:]) for shard in range(1000)}
    moved = [shard for shard in shares if shares[shard] != without[shard]]
    assert moved == [shard for shard in shares if shares[shard] == names[0]]
    assert assigned(0, []) is None


# -- what readers are told


@with_app(long_poll_timeout_s=0.01)
async def test_a_reader_is_told_to_be_up_to_date_only_while_that_is_known(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    held: list[float] = []

    async def until_current(timeout_s: float) -> None:
        held.append(timeout_s)
        raise ClusterUnavailable("away", Retry_After="1")

    store = client.engine.store
    first = await client.get("a")
    assert first.headers["stream-up-to-date"] == "true"
    store.is_current, store.until_current = lambda: False, until_current
    second = await client.get("a")
    assert second.body == first.body
    assert "stream-up-to-date" not in second.headers
    assert "stream-up-to-date" not in (await client.get("a", "offset=now")).headers
    poll = await client.get("a", f"offset={first.offset}&live=long-poll")
    assert (poll.status, poll.headers["retry-after"]) == (503, "1")
    assert held == [0.01]
    sink = await client.sse("a")
    await sink.until(lambda each: bool(each.frames))
    assert b'"upToDate"' not in b"".join(sink.frames)
    nothing = await client.get("a", f"offset={first.offset}")
    assert (nothing.status, nothing.headers["retry-after"]) == (503, "1")


@with_app(long_poll_timeout_s=0.01)
async def test_a_closed_stream_may_have_been_deleted_by_another_node(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    end = (await client.post("a", stream_closed="true")).offset

    async def until_current(timeout_s: float) -> None:
        raise ClusterUnavailable("away", Retry_After="1")

    store = client.engine.store
    store.is_current, store.until_current = lambda: False, until_current
    for query in ("", "offset=now", f"offset={end}"):
        answer = await client.get("a", query)
        assert (answer.status, answer.headers["stream-closed"]) == (200, "true"), query
        assert "stream-up-to-date" not in answer.headers, query
    assert (await client.get("a", f"offset={end}&live=long-poll")).status == 503
