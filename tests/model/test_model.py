"""Disk engine, memory engine and reference are always equal, whatever happens in between."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.log.engine import Engine
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import ForkConfig, StreamConfig
from tests.helpers.log import shrink_blocks
from tests.model.machine import Create, Delete, Fork, Outcome, Post, Trim, Trio, Write, attempt
from tests.model.reference import JSON, Line, Refused

BYTES = "application/octet-stream"
EPOCH_US = 1_700_000_000_000_000

PATHS = ("a", "a/b", "a0", "b", "c/d")
paths = st.sampled_from(PATHS)
values = st.one_of(
    st.integers(0, 9),
    st.text('xé\n\\"', max_size=5),
    st.integers(0, 60).map(lambda n: {"k": "v" * n}),
    st.integers(90, 700).map(lambda n: "w" * n),
)
documents = st.one_of(values, st.lists(values, max_size=4)).map(
    lambda value: json.dumps(value, separators=(",", ":")).encode()
)
json_bodies = st.one_of(documents, documents, documents, st.sampled_from([b"", b"{", b"[]"]))
byte_bodies = st.one_of(
    st.binary(max_size=20), st.integers(50, 700).map(lambda n: b"line\n" * (n // 5))
)
types = st.sampled_from([JSON, JSON, BYTES])
configs = st.one_of(
    types.map(lambda kind: StreamConfig(kind, None, None)),
    st.builds(StreamConfig, types, st.integers(1, 3).map(lambda n: n * 100), st.none()),
    st.builds(
        StreamConfig, types, st.none(), st.integers(1, 9).map(lambda n: EPOCH_US + n * 10**8)
    ),
)
fork_configs = st.one_of(
    st.just(ForkConfig(None, None, None)),
    st.just(ForkConfig(None, None, None)),
    st.builds(ForkConfig, types, st.integers(1, 3).map(lambda n: n * 100), st.none()),
)
producers = st.builds(
    Producer, st.sampled_from(["p", "q", "r"]), st.integers(0, 2), st.integers(0, 3)
)
rarely = st.sampled_from([False] * 11 + [True])

Draw = Callable[[st.SearchStrategy[Any]], Any]


class Script(RuleBasedStateMachine):
    """Rules draw a shape of write; which offsets and sequences fit is looked up in the reference,
    so that most of them are accepted and the rest are near misses."""

    options: ClassVar[dict[str, Any]] = {"active_streams_max": 2}

    def __init__(self) -> None:
        super().__init__()
        self.trio = Trio(**self.options)
        self.offsets = ["-1", "now", f"{0:016d}_{0:016d}", f"{99:016d}_{0:016d}"]

    def teardown(self) -> None:
        self.trio.compare_all()
        self.trio.close()

    # -- making writes

    @initialize(creations=st.lists(st.tuples(paths, configs, json_bodies), min_size=1, max_size=4))
    def begin(self, creations: list[tuple[str, StreamConfig, bytes]]) -> None:
        self.write([Create(path, config, body, False) for path, config, body in creations])

    def write(self, writes: list[Write]) -> None:
        for outcome in self.trio.write(writes):
            if isinstance(outcome.answer, tuple) and outcome.answer[0] not in self.offsets:
                self.offsets.append(outcome.answer[0])

    def line(self, path: str) -> Line | None:
        return self.trio.reference.lines.get(path)

    def draw_path(self, draw: Draw) -> str:
        """Most often that of a stream which takes appends."""
        lines = self.trio.reference.lines
        is_open = [path for path in PATHS if path in lines and not lines[path].closed]
        path: str = draw(paths if not is_open or draw(rarely) else st.sampled_from(is_open))
        return path

    def draw_producer(self, draw: Draw, line: Line | None) -> Producer:
        producer: Producer = draw(producers)
        if line is None or draw(rarely):
            return producer
        if line.closed_by is not None and draw(st.booleans()):
            return line.closed_by
        candidates = line.producers.get(producer.id)
        if candidates is None:
            return Producer(producer.id, producer.epoch, 0)
        return Producer(producer.id, candidates.epoch, candidates.seq + 1)

    def draw_post(self, draw: Draw) -> Post:
        path = self.draw_path(draw)
        line = self.line(path)
        kind = draw(types) if line is None or draw(rarely) else line.config.content_type
        producer = self.draw_producer(draw, line) if draw(st.booleans()) else None
        seq = draw(st.sampled_from(["1", "10", "2", "a", "b"])) if draw(rarely) else None
        expected = None
        if draw(rarely):
            expected = draw(st.sampled_from(["*", *self.offsets[-3:]]))
            expected = line.token() if line and draw(st.booleans()) else expected
        return Post(
            path,
            draw(json_bodies if kind == JSON else byte_bodies),
            None if draw(rarely) else kind,
            draw(rarely),
            producer,
            seq,
            expected,
        )

    def draw_write(self, draw: Draw) -> Write:
        shapes = ["post", "post", "post", "post", "create", "delete", "fork", "fork", "trim"]
        shape = draw(st.sampled_from(shapes))
        if shape == "post":
            return self.draw_post(draw)
        if shape == "fork":
            return self.draw_fork(draw, draw(st.sampled_from([None, None, None, "now", "-1"])))
        path = draw(paths)
        if shape == "trim":
            return Trim(path, "now" if draw(rarely) else "-1")
        if shape == "delete":
            return Delete(path)
        config, line = draw(configs), self.line(path)
        if line and draw(st.booleans()):
            config = line.config
        body = draw(json_bodies if config.content_type == JSON else byte_bodies)
        return Create(path, config, body, draw(rarely))

    def draw_fork(self, draw: Draw, offset: str | None, sub_offset: int = 0) -> Fork:
        """From what is there, most often to where there is nothing."""
        lines = self.trio.reference.lines
        source = draw(st.sampled_from(sorted(lines)) if lines and not draw(rarely) else paths)
        free = [path for path in PATHS if path not in lines]
        path = draw(paths if not free or draw(rarely) else st.sampled_from(free))
        line = self.line(source)
        kind = draw(types) if line is None or draw(rarely) else line.config.content_type
        body = draw(json_bodies if kind == JSON else byte_bodies)
        requested = draw(fork_configs)
        if requested.content_type is not None and not draw(rarely):
            requested = requested._replace(content_type=kind)
        return Fork(path, source, offset, sub_offset, requested, body, draw(rarely))

    def draw_writes(self, draw: Draw) -> list[Write]:
        return [self.draw_write(draw) for _ in range(draw(st.integers(1, 6)))]

    # -- clients

    @rule(path=paths, config=configs, body=json_bodies)
    def create(self, path: str, config: StreamConfig, body: bytes) -> None:
        self.write([Create(path, config, body, False)])

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        self.write([self.draw_post(data.draw)])

    @rule(data=st.data(), size=st.integers(50, 700), times=st.integers(1, 6))
    def append_a_lot(self, data: st.DataObject, size: int, times: int) -> None:
        path = self.draw_path(data.draw)
        line = self.line(path)
        kind = JSON if line is None else line.config.content_type
        self.write([Post(path, b'"%s"' % (b"w" * size), kind, False, None, None, None)] * times)

    @rule(data=st.data(), pick=st.integers(0, 10**6), shift=st.sampled_from([0, 0, 0, 0, 1, -3]))
    def fork(self, data: st.DataObject, pick: int, shift: int) -> None:
        """Anywhere in a stream, its own offsets and those of whatever it was forked from."""
        fork = self.draw_fork(data.draw, None, data.draw(st.sampled_from([0, 0, 0, 1, 2, 7])))
        if not fork.sub_offset or data.draw(st.booleans()):
            fork = fork._replace(offset=self.offset(fork.source, pick, shift))
        self.write([fork] * data.draw(st.sampled_from([1, 1, 1, 2])))

    @rule(data=st.data(), pick=st.integers(0, 10**6), shift=st.sampled_from([0, 0, 0, 0, 0, 1]))
    def trim(self, data: st.DataObject, pick: int, shift: int) -> None:
        path = self.draw_path(data.draw)
        self.write([Trim(path, self.offset(path, pick, shift))])

    @rule(data=st.data(), pick=st.integers(0, 10**6), cut=st.integers(0, 10**6))
    def read_while_it_is_trimmed(self, data: st.DataObject, pick: int, cut: int) -> None:
        path = self.draw_path(data.draw)
        line = self.line(path)
        if line is None or line.expired(self.trio.reference.now) or line.closed:
            return
        places = line.boundaries()
        body = b'"%s"' % (b"z" * (cut % 400))
        post = Post(path, body, line.config.content_type, False, None, None, None)
        trim = Trim(path, line.token(places[cut % len(places)]))
        writes: list[Write] = [post, post, trim, post]
        self.trio.read_beside(path, places[pick % len(places)], writes)

    @rule(data=st.data())
    def write_several_at_once(self, data: st.DataObject) -> None:
        self.write(self.draw_writes(data.draw))

    @rule(data=st.data())
    def repeat_and_overtake(self, data: st.DataObject) -> None:
        """A producer that sends one thing twice, and its next before an answer."""
        path = self.draw_path(data.draw)
        line = self.line(path)
        kind = JSON if line is None else line.config.content_type
        producer = self.draw_producer(data.draw, line)
        first = Post(path, b"1", kind, False, producer, None, None)
        after = first._replace(producer=producer._replace(seq=producer.seq + 1))
        last = after._replace(producer=producer._replace(seq=producer.seq + 2), close=True)
        self.write([first, first, after, *([last, last] if data.draw(rarely) else []), first])

    @rule(path=paths, pick=st.integers(0, 10**6), shift=st.sampled_from([0, 0, 0, 1, -1, 5]))
    def read(self, path: str, pick: int, shift: int) -> None:
        offset = self.offset(path, pick, shift)
        reference = self.trio.reference

        def expected() -> object:
            line = reference.find(path, touch=True)
            start = reference.position(line, offset)
            return line.data[start:], line.token(start), line.token(), line.closed

        async def actual(engine: Engine) -> object:
            stream = engine.find(path, touch=True)
            start, end = await engine.position(stream, offset), stream.tail
            wire = await engine.read(stream, start, end)
            assert engine.read_now(stream, start, end) in (wire, None)
            return wire, engine.token(stream, start), engine.token(stream, end), stream.closed

        self.trio.ask(actual, attempt(expected))

    def offset(self, path: str, pick: int, shift: int) -> str:
        line = self.line(path)
        candidates = self.offsets
        if line and pick % 3:
            candidates = line.spellings()
            if pick % 3 == 2:  # often where it left what it is a fork of
                points = {start for _, start in line.lineage[1:]}
                candidates = [each for each in candidates if int(each[17:]) in points] or candidates
        offset = candidates[pick % len(candidates)]
        if shift and "_" in offset:
            generation, position = map(int, offset.split("_"))
            offset = f"{generation:016d}_{max(0, position + shift):016d}"
        return offset

    @rule(
        path=paths,
        pick=st.integers(0, 10**6),
        max_bytes=st.one_of(st.integers(1, 40), st.integers(40, 1500)),
        until=st.one_of(st.none(), st.integers(0, 10**6)),
        count=st.one_of(st.none(), st.integers(1, 9)),
    )
    def read_a_part(
        self, path: str, pick: int, max_bytes: int, until: int | None, count: int | None
    ) -> None:
        reference = self.trio.reference
        line = self.line(path)
        if line is None or line.expired(reference.now):
            return
        places = line.boundaries()
        start = places[pick % len(places)]
        stop = None if until is None else places[until % len(places)]
        if stop is not None and stop <= start:
            stop = None
        if line.config.content_type != JSON:
            count = None
        end = reference.end(line, start, max_bytes, stop, count)
        line.touched = reference.now

        async def actual(engine: Engine) -> object:
            stream = engine.find(path, touch=True)
            found = await engine.plan(stream, start, max_bytes=max_bytes, until=stop, count=count)
            return found, await engine.read(stream, start, found)

        self.trio.ask(actual, Outcome((end, line.data[start:end])))

    @rule(path=paths, pick=st.integers(0, 10**6), parts=st.integers(1, 6))
    def split_and_seek(self, path: str, pick: int, parts: int) -> None:
        line = self.line(path)
        if line is None or line.expired(self.trio.reference.now):
            return
        places, first, size = line.boundaries(), line.earliest, len(line.data)
        cuts = {
            next(p for p in places if p >= first + (size - first) * part // parts)
            for part in range(parts)
        }
        is_json = line.config.content_type == JSON
        ordinal = pick % (len(line.messages) + 2) if is_json else 0

        def seek() -> object:
            if not is_json:
                return 0
            if ordinal < min(line.earliest_ordinal, len(line.messages)):
                raise Refused("stream-trimmed", Stream_Earliest_Offset=line.token(line.earliest))
            return len(b"".join(line.messages[:ordinal]))

        async def split(engine: Engine) -> object:
            stream = engine.find(path, touch=False)
            return await engine.splits(stream, parts, stream.earliest, stream.tail)

        async def sought(engine: Engine) -> object:
            stream = engine.find(path, touch=False)
            return await engine.seek(stream, ordinal) if stream.is_json else 0

        self.trio.ask(split, Outcome(sorted(cuts | {size})))
        self.trio.ask(sought, attempt(seek))

    @rule(path=paths)
    def head(self, path: str) -> None:
        def expected() -> object:
            line = self.trio.reference.find(path, touch=False)
            return line.token(), line.config, line.closed

        async def actual(engine: Engine) -> object:
            stream = engine.find(path, touch=False)
            return engine.token(stream, stream.tail), stream.config, stream.closed

        self.trio.ask(actual, attempt(expected))

    @rule(
        prefix=st.sampled_from(["", "a", "a/", "b", "zz"]),
        after=st.one_of(st.just(""), paths),
        limit=st.integers(1, 3),
    )
    def page_through_the_list(self, prefix: str, after: str, limit: int) -> None:
        expected = self.trio.reference.list(prefix, after, limit)
        for engine in self.trio.engines():
            infos = self.trio.run(engine.list_streams(prefix, after, limit))
            assert [info.path for info in infos] == expected

    # -- time and trouble

    @rule(seconds=st.sampled_from([0.000001, 1, 49, 50, 100]))
    def time_passes(self, seconds: float) -> None:
        self.trio.advance(seconds)

    @rule()
    def reap(self) -> None:
        self.trio.reap()

    @rule()
    def let_idle_streams_go(self) -> None:
        for engine in self.trio.engines():
            engine._streams.evict()

    @rule()
    def checkpoint(self) -> None:
        self.trio.checkpoint()

    @rule(data=st.data())
    def checkpoint_while_writing(self, data: st.DataObject) -> None:
        self.trio.checkpoint_beside(self.draw_writes(data.draw))

    @rule()
    def checkpoint_fails(self) -> None:
        self.trio.checkpoint_fails()

    @rule(data=st.data())
    def writes_meet_a_full_disk(self, data: st.DataObject) -> None:
        self.trio.journal_is_full(self.draw_writes(data.draw))

    @rule()
    def restart(self) -> None:
        self.trio.restart()

    @rule()
    def crash(self) -> None:
        self.trio.crash()

    @precondition(lambda self: self.trio.reference.lines)
    @rule()
    def look_at_everything(self) -> None:
        self.trio.compare_all()

    @invariant()
    def lists_are_equal(self) -> None:
        self.trio.compare_lists()


class BusyScript(Script):
    """The same with checkpoints that start by themselves, whenever they like."""

    options: ClassVar[dict[str, Any]] = {"active_streams_max": 2, "checkpoint_bytes": 1500}


class ColdScript(Script):
    """The same with all segments in an object store that can be there."""

    options: ClassVar[dict[str, Any]] = {
        "active_streams_max": 2,
        "tier_url": "memory://",
        "tier_after_s": 0,
        "tier_interval_s": 3600,
        "tier_cache_bytes_max": 1500,
    }


SHORT = settings(
    max_examples=90,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    # Shrinking a script takes minutes, more than a test may take when nobody asked for it.
    phases=[Phase.generate, *([Phase.shrink] if "MODEL_SHRINK" in os.environ else [])],
    suppress_health_check=list(HealthCheck),
)


def test_disk_memory_and_reference_are_always_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """With MODEL_SHRINK=1 and `-o faulthandler_timeout=0` a failing script is made short."""
    shrink_blocks(monkeypatch)
    run_state_machine_as_test(Script, settings=SHORT)


def test_cold_memory_and_reference_are_always_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_blocks(monkeypatch)
    run_state_machine_as_test(ColdScript, settings=settings(SHORT, max_examples=6))


SHORT_LIVED = StreamConfig(JSON, 100, None)


def _forked() -> Trio:
    """A stream with an expired fork that somebody has just asked for."""
    trio = Trio()
    anything = ForkConfig(None, None, None)
    trio.write([Create("a", SHORT_LIVED, b"[]", False)])
    trio.write([Fork("b", "a", None, 0, anything, b"[]", False)])
    trio.advance(50)
    trio.write([Post("a", b"1", JSON, False, None, None, None)])
    trio.advance(50)

    async def head(engine: Engine) -> object:
        return engine.find("b", touch=False)

    trio.ask(head, attempt(lambda: trio.reference.find("b", touch=False)))
    return trio


def test_the_comparison_waits_for_the_end_of_what_has_expired() -> None:
    trio = _forked()
    trio.compare_all()
    trio.close()


def test_a_question_waits_for_the_end_of_what_an_earlier_one_found_expired() -> None:
    """With the fork goes the source, deleted before and held only for it."""
    trio = Trio()
    trio.write([Create("a", StreamConfig(JSON, None, None), b"[]", False)])
    trio.write([Fork("b", "a", None, 0, ForkConfig(JSON, 100, None), b"[]", False)])
    trio.write([Delete("a")])
    trio.advance(100)
    for path in ("b", "a"):

        async def head(engine: Engine, path: str = path) -> object:
            return engine.find(path, touch=False)

        expected = attempt(lambda path=path: trio.reference.find(path, touch=False))  # type: ignore[misc]
        assert expected.code == "stream-not-found"
        trio.ask(head, expected)
    trio.close()


def test_an_expiry_that_was_answered_is_durable_before_the_disk_is_full() -> None:
    trio = _forked()
    trio.journal_is_full([Delete("a"), Post("b", b"1", JSON, False, None, None, None)])
    trio.compare_all()
    trio.write([Delete("a"), Create("a", SHORT_LIVED, b"[]", False)])
    trio.compare_all()
    trio.close()


def test_an_expiry_that_a_refused_write_queues_is_the_same_for_all() -> None:
    trio = Trio()
    trio.write([Create("a", SHORT_LIVED, b"[]", False)])
    trio.write([Fork("b", "a", None, 0, ForkConfig(None, None, None), b"[]", False)])
    trio.advance(50)
    trio.write([Post("a", b"1", JSON, False, None, None, None)])
    trio.advance(50)
    trio.journal_is_full([Post("b", b"1", JSON, False, None, None, None)])
    trio.compare_all()
    trio.close()


LONG = settings(SHORT, max_examples=150, stateful_step_count=80, derandomize=False)
FIRST_SEED = int(os.environ.get("SOAK_SEED", "0"))


@pytest.mark.soak
@pytest.mark.parametrize("script", [Script, BusyScript, ColdScript])
@pytest.mark.parametrize("number", range(FIRST_SEED, FIRST_SEED + 20))
def test_they_are_equal_over_long_random_scripts(
    number: int, script: type[Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a failing test has its seed: run it again by that name, with the same SOAK_SEED
    if there was one. Checkpoints of BusyScript start by themselves, so that it may take some
    repeats. With another SOAK_SEED the scripts are others."""
    shrink_blocks(monkeypatch)
    run_state_machine_as_test(_seeded(script, number), settings=LONG)


def test_a_seed_always_gives_the_same_scripts() -> None:
    few = settings(LONG, max_examples=3, stateful_step_count=10)

    def steps(number: int) -> list[tuple[str, str]]:
        taken: list[tuple[str, str]] = []

        class Noted(Script):
            def write(self, writes: list[Write]) -> None:
                taken.append(("write", repr(writes)))
                super().write(writes)

            def offset(self, path: str, pick: int, shift: int) -> str:
                taken.append(("offset", repr((path, pick, shift))))
                return super().offset(path, pick, shift)

        run_state_machine_as_test(_seeded(Noted, number), settings=few)
        return taken

    first = steps(1)
    assert len(first) > 10
    assert steps(1) == first
    assert steps(2) != first


def _seeded(script: type[Script], number: int) -> type[Script]:
    """The same script, whose choices are those of a seed."""
    return seed(number)(type(script.__name__, (script,), {}))
