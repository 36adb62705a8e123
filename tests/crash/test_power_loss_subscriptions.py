"""The plug is pulled while subscriptions work on a disk that is full now and then: no ack is
undone and none made up, no generation comes twice, nobody's work is forgotten, and keys that were
shown can still be checked.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.egress import Egress
from penstock.errors import AlreadyClaimed, Fenced, NoPendingWork, PenstockError, StreamNotFound
from penstock.log import rewriter
from penstock.log.engine import Engine
from penstock.log.offline.verify import verify
from penstock.protocol.subscription import Ack, Report
from penstock.subscriptions import matching, store
from penstock.subscriptions.model import Subscription
from penstock.subscriptions.service import Subscriptions
from penstock.subscriptions.store import SubscriptionStore
from tests.crash.engines import START_US, abandon, small_blocks, small_settings, start
from tests.crash.power import Image, Luck, Record
from tests.crash.power_run import ODDS, ROOT, recording
from tests.crash.subscription_scenario import PULLS, QUEUE_BYTES, Scenario, fold, position
from tests.subscriptions.desk import Receiver, caught_up, receiver

BURSTS = 100
QUICK_CUTS = 60
OPTIONS: dict[str, Any] = {"development": True, "subscription_log_bytes": 3000}
OVERLOADED: dict[str, Any] = {**OPTIONS, "append_queue_bytes_max": QUEUE_BYTES}
DEADLINE_S = 60


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(store, "LINKS_PER_APPEND", 2)
    monkeypatch.setattr(rewriter, "ROWS_PER_APPEND", 2)
    monkeypatch.setattr(matching, "NOTICED_PER_TURN", 1)
    with small_blocks():
        yield


class Run(NamedTuple):
    record: Record
    scenario: Scenario
    ended_us: int


@contextmanager
def _serving(engine: Engine, settings: Settings, clock: ManualClock) -> Iterator[Subscriptions]:
    service = Subscriptions(engine, settings, Egress(settings), clock=clock)
    service.start()
    try:
        yield service
    finally:
        service.close()


async def _record(base: Path, seed: int, hook: Receiver) -> Run:
    record, clock = Record(), ManualClock(START_US)
    settings = small_settings(base / ROOT, **OVERLOADED)
    engine = await start(settings, clock=clock, make=recording(base, record))
    try:
        with _serving(engine, settings, clock) as service:
            scenario = Scenario(seed, engine, service, clock, record, hook)
            await scenario.run(BURSTS)
    finally:
        await abandon(engine)
    return Run(record, scenario, clock.now_us())


async def _check_cuts(run: Run, cuts: Iterable[int], seed: int) -> None:
    for cut, image in run.record.images(cuts):
        luck = Luck(seed * 1_000_003 + cut, ODDS[(cut + seed) % len(ODDS)])
        async with asyncio.timeout(DEADLINE_S):
            await _check_left(image.after_power_loss(luck), run, cut)


async def _check_left(image: Image, run: Run, cut: int) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-power-") as name:
        base = Path(name)
        image.write_to(base, root=ROOT)
        settings = small_settings(base / ROOT, **OPTIONS)
        clock = ManualClock(run.ended_us)
        engine = await start(settings, clock=clock)
        try:
            left = await _left(engine, settings)
            _check_writes(run.scenario, left, engine, cut)
            _check_promises(run.scenario, left, engine, cut)
            with _serving(engine, settings, clock) as service:
                await caught_up(service)
                _check_keys(run.scenario, service, cut)
                await _check_ended(run.scenario, service, cut)
                await _check_nothing_is_forgotten(service, engine)
                await _work_off(service, clock)
                cursors = _cursors(service)
        finally:
            await (abandon(engine) if cut % 2 else engine.stop())
        assert verify(base / ROOT).problems == []
        engine = await start(settings, clock=clock)
        try:
            with _serving(engine, settings, clock) as service:
                await caught_up(service)
                assert _cursors(service) == cursors
                assert not any(each.pending for each in service.all.values())
        finally:
            await engine.stop()


async def _left(engine: Engine, settings: Settings) -> dict[str, dict[str, Any]]:
    """What is kept of each subscription."""
    stored = SubscriptionStore(engine, settings)
    if not stored.exists:
        return {}
    await stored.load()
    return {
        id: {
            "row": msgspec.to_builtins(each.row),
            "wake": msgspec.to_builtins(each.wake),
            "links": {path: msgspec.to_builtins(link) for path, link in each.links.items()},
        }
        for id, each in stored.all.items()
    }


def _check_writes(
    scenario: Scenario, left: dict[str, dict[str, Any]], engine: Engine, cut: int
) -> None:
    """A moment of the past: not before anything that was durable, not after anything unsaid."""
    relevant = _relevant(left, engine)
    writes = [each for each in scenario.writes if not each.failed]
    least = most = 0
    for count, written in enumerate(writes, 1):
        if written.answered_at is not None and written.answered_at <= cut:
            least = count
        if written.submitted_at <= cut:
            most = count
    folded: dict[str, dict[str, Any]] = {}
    drafts: dict[str, dict[str, Any]] = {}
    for written in writes[:least]:
        fold(written.rows, folded, drafts)
    for count in range(least, most + 1):
        if _relevant(folded, engine) == relevant:
            return
        if count < most:
            fold(writes[count].rows, folded, drafts)
    raise AssertionError(f"after {cut} steps, {least} of {most} writes durable: {left}")


def _relevant(all: dict[str, dict[str, Any]], engine: Engine) -> dict[str, dict[str, Any]]:
    """Without cursors of streams that are gone, which do no harm: if their end met a full disk,
    they are there until it is written again, or until the stream is rewritten from memory."""
    relevant = {}
    for id, each in all.items():
        links = {}
        for path, link in each["links"].items():
            is_stale = link.get("stream", 0) not in (0, _id(engine, path))
            current = {"explicit": True} if is_stale and link.get("explicit") else link
            if current and (current is not link or not is_stale):
                links[path] = current
        relevant[id] = {**each, "links": links}
    return relevant


def _check_promises(
    scenario: Scenario, left: dict[str, dict[str, Any]], engine: Engine, cut: int
) -> None:
    for said in scenario.generations:
        kept = left.get(said.id)
        if said.at <= cut and kept is not None and kept["row"]["created_us"] == said.created_us:
            assert kept["wake"].get("generation", 0) >= said.what, said
    for id, kept in left.items():
        age = kept["row"]["created_us"]
        acked = _furthest(scenario.acked, id, age, cut)
        asked = _furthest(scenario.asked, id, age, cut)
        for path, link in kept["links"].items():
            key = (path, link.get("stream", 0))
            assert link.get("position", 0) >= acked.get(key, 0), (id, path)
            if age in {said.created_us for said in scenario.generations if said.at <= cut}:
                assert link.get("position", 0) <= asked.get(key, 0), (id, path)
        for path, stream in acked:
            if path in kept["links"] and _id(engine, path) == stream:
                assert kept["links"][path].get("stream") == stream, "a cursor is lost"


def _furthest(said: list[Any], id: str, age: int, cut: int) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for each in said:
        if each.at <= cut and (each.id, each.created_us) == (id, age):
            path, offset = each.what
            stream, at = position(offset)
            found[path, stream] = max(at, found.get((path, stream), 0))
    return found


def _id(engine: Engine, path: str) -> int:
    try:
        return engine.find(path, touch=False).id
    except StreamNotFound:
        return 0


def _check_keys(scenario: Scenario, service: Subscriptions, cut: int) -> None:
    published = {key["kid"] for key in service.keys.jwks()["keys"]}
    assert published >= {kid for at, kid in scenario.kids if at <= cut}
    if published:
        assert service.keys.sign(b"{}").split("kid=")[1].split(",")[0] in published


async def _check_ended(scenario: Scenario, service: Subscriptions, cut: int) -> None:
    """Whoever has ended a wake, or lost it, cannot go on with it."""
    for said in scenario.ended:
        subscription = service.all.get(said.id)
        if said.at > cut or subscription is None:
            continue
        if subscription.row.created_us == said.created_us:
            report = Report(said.what["wake_id"], said.what["generation"])
            try:
                await service.workers.ack(subscription, said.what["token"], report)
            except Fenced:
                continue
            raise AssertionError(f"{said.id} goes on with a wake that is over")


async def _check_nothing_is_forgotten(service: Subscriptions, engine: Engine) -> None:
    for info in await engine.list_streams("", "", 1000):
        for subscription in service.matching.subscribers(info.path):
            stream = engine.find(info.path, touch=False)
            has_work = stream.tail > subscription.position(stream)
            assert (info.path in subscription.pending) == has_work, (subscription.id, info.path)


async def _work_off(service: Subscriptions, clock: ManualClock) -> None:
    """Do everything that is left; generations go up."""
    for subscription in service.all.values():
        if subscription.id in PULLS:
            await _pull(service, subscription, clock)
    while await _has_work(service):
        if not service.webhooks.in_flight:
            clock.advance(70)  # leases run out, and waits are over
            service.wakes.tick()
        await asyncio.sleep(0.002)


async def _has_work(service: Subscriptions) -> bool:
    """Whether something is to be done, or was done and is undone because it cannot be written."""
    with suppress(PenstockError):
        await service.store.caught_up()
    return bool(service.webhooks.in_flight) or any(each.pending for each in service.all.values())


async def _pull(service: Subscriptions, subscription: Subscription, clock: ManualClock) -> None:
    before, is_held = subscription.wake.generation, bool(subscription.wake.wake_id)
    while True:
        try:
            claimed = await service.workers.claim(subscription, "after")
        except NoPendingWork:
            return
        except AlreadyClaimed:
            clock.advance(2)
            is_held = False
            continue
        assert claimed["generation"] >= before + (0 if is_held else 1)
        before, is_held = claimed["generation"], False
        acks = [
            Ack(each["path"], each["tail_offset"])
            for each in claimed["streams"]
            if each["has_pending"]
        ]
        report = Report(claimed["wake_id"], claimed["generation"], acks, done=True)
        await service.workers.ack(subscription, claimed["token"], report)


def _cursors(service: Subscriptions) -> dict[str, Any]:
    return {
        id: (each.wake.generation, dict(each.links))
        for id, each in service.all.items()
        if id in PULLS
    }


def test_the_scenario_reaches_everything_that_is_kept(tmp_path: Path) -> None:
    """Else the cuts below prove nothing. One seed may miss something on a slow machine."""
    scenarios: list[Scenario] = []
    for seed in range(1, 7):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with receiver() as hook:
            scenarios.append(asyncio.run(_record(folder, seed, hook)).scenario)
        missing = _missing(scenarios)
        if not missing:
            break
    assert missing == []


def _missing(scenarios: list[Scenario]) -> list[str]:
    """Return what the scenarios have not reached."""
    writes = [each for scenario in scenarios for each in scenario.writes]
    counts = sum((Counter(scenario.counts) for scenario in scenarios), Counter[str]())
    wakes = [row["value"] for each in writes for row in each.rows if row["type"] == "wake"]
    ends = [row["type"] for each in writes for row in each.rows if "value" not in row]
    failed = [row["type"] for each in writes if each.failed for row in each.rows]
    generations = {each.id for scenario in scenarios for each in scenario.generations}
    reached = {
        "acks": sum(len(scenario.acked) for scenario in scenarios) > 10,
        "ends": sum(len(scenario.ended) for scenario in scenarios) > 5,
        "keys": len({kid for scenario in scenarios for _, kid in scenario.kids}) > 2,
        "retries": any(wake.get("retry_us") for wake in wakes),
        "attempts": any(wake.get("attempts", 0) > 1 for wake in wakes),
        "holders": any(wake.get("holder") for wake in wakes),
        "deletes": set(ends) == {"subscription", "link"},
        "generations": generations == {"p", "q", "h"},
        "full disks": counts["disk-full"] > 3,
        "overload": counts["overloaded"] > 3,
        "failed writes": {"wake", "link"} <= set(failed),
    }
    return [name for name, is_reached in reached.items() if not is_reached]


def test_nothing_is_lost_to_a_subscriber_when_the_power_fails(tmp_path: Path) -> None:
    _check(tmp_path, seed=1, cuts=QUICK_CUTS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 16))
def test_nothing_is_lost_to_a_subscriber_at_any_step(tmp_path: Path, seed: int) -> None:
    _check(tmp_path, seed=seed, cuts=None)


def _check(folder: Path, *, seed: int, cuts: int | None) -> None:
    with receiver() as hook:
        run = asyncio.run(_record(folder, seed, hook))
        hook.forget()
        steps = range(len(run.record) + 1)
        chosen = list(steps)
        if cuts is not None:
            chosen = sorted({*random.Random(seed).sample(steps, cuts), steps[-1]})
        asyncio.run(_check_cuts(run, chosen, seed))


def test_an_ack_that_is_not_kept_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks above fail if a worker is told before its ack is durable."""

    def hasty(wakes: Any, subscription: Subscription, event: Any, acks: Iterable[Any] = ()) -> Any:
        loop = asyncio.get_running_loop()
        paths = wakes._ack(subscription, acks)
        step = wakes._step(subscription, event)
        rows = [store.link_row(subscription, path) for path in paths]
        loop.call_later(0.02, wakes._store.write, [*rows, store.wake_row(subscription)])
        at_once = loop.create_future()
        at_once.set_result(None)
        return step, at_once

    monkeypatch.setattr("penstock.subscriptions.wakes.Wakes.commit", hasty)
    with receiver() as hook:
        run = asyncio.run(_record(tmp_path, 1, hook))
        monkeypatch.undo()
        hook.forget()
        with pytest.raises((AssertionError, PenstockError)):
            asyncio.run(_check_cuts(run, range(0, len(run.record) + 1, 3), 1))
