"""How the server's state grows: bootstraps per key, and look-ups of one key among many."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from bench import state_live
from bench.client import Client
from bench.rounds import Sample, interleave, median
from bench.state_events import STREAM, Filled, key_of
from bench.table import Row, microseconds, per_second
from penstock import limits
from penstock.state.server.index import StateIndex, StateQuery
from penstock.state.server.indexer import FILE

LOOKUPS = 2_000
LOG_GROWTH_MAX = 2.0
"""A hundred times the keys: a search that halves takes 1.5 times as many steps, a scan 100."""


def bootstrap_rows(filled: Sequence[Filled], folder: Path, rounds: int) -> list[Row]:
    """Seconds and microseconds a key of a bootstrap, by number of keys."""
    way = state_live.Way("state", sqlite=False)
    samples = interleave(
        [(str(each.keys), each) for each in filled],
        lambda each, _: state_live.load(each, way, folder),
        rounds=rounds,
    )
    rows: list[Row] = []
    for each in filled:
        found, few = samples[str(each.keys)], samples[str(filled[0].keys)]
        processor_s = median(found, "client_cpu_s") + median(found, "server_cpu_s")
        a_key, a_key_of_few = median(found, "s") / each.keys, median(few, "s") / filled[0].keys
        rows.append(
            Row(
                metric=f"growth: bootstrap of {each.keys:,} keys (vs {filled[0].keys:,}), a key",
                ours=f"{a_key * 1e6:.2f} µs ({processor_s / each.keys * 1e6:.2f} µs of processors)",
                reference=f"{a_key_of_few * 1e6:.2f} µs",
                ratio=a_key / a_key_of_few,
                samples={str(each.keys): found},
            )
        )
    return rows


def past_rows(filled: Sequence[Filled], rounds: int) -> list[Row]:
    """The whole state at the middle of the log, where most values have changed since."""

    def read(each: Filled, _: int) -> Sample:
        found, query = 0, f"limit={limits.STATE_LIMIT_MAX}&offset={each.middle}"
        started = time.perf_counter()
        after: str | None = ""
        with Client(each.server.port) as client:
            while after is not None:
                answer = client.request("GET", f"/v1/state/{STREAM}?{query}{after}")
                page = msgspec.json.decode(answer.body)
                found += sum(map(len, page["types"].values()))
                after = None if page["next"] is None else f"&after={page['next']}"
        return {"us": (time.perf_counter() - started) / found * 1e6, "keys": found}

    samples = interleave([(str(each.keys), each) for each in filled], read, rounds=rounds)
    return [
        Row(
            metric=f"whole state at an earlier offset, {each.keys:,} keys by now, time a key",
            ours=f"{median(found, 'us'):.2f} µs ({median(found, 'keys'):,.0f} keys)",
            samples={str(each.keys): found},
        )
        for each in filled
        for found in (samples[str(each.keys)],)
    ]


def index_rows(filled: Sequence[Filled]) -> list[Row]:
    """What keeping the index costs."""
    return [
        Row(
            metric=f"index: {each.events:,} events of {each.keys:,} keys, taken in",
            ours=f"{per_second(each.events / each.indexed_s)}, "
            f"{each.index_bytes / each.events:.0f} B an event",
        )
        for each in filled
    ]


def lookup_rows(filled: Sequence[Filled], rounds: int) -> list[Row]:
    """One key among few and among many: over HTTP, and in the index alone."""
    few, many = filled[0], filled[-1]
    rows: list[Row] = []
    for name in _QUESTIONS:
        contenders = [(str(each.keys), each) for each in (few, many)]
        samples = interleave(contenders, _asker(name), rounds=rounds)
        rows.append(_lookup_row(f"{name}, over HTTP", few, many, samples))
    for name in _QUESTIONS:
        contenders = [(str(each.keys), each) for each in (few, many)]
        samples = interleave(contenders, _searcher(name), rounds=rounds)
        rows.append(_lookup_row(f"{name}, in the index", few, many, samples))
    return rows


_QUESTIONS = ("current value", "value at an offset", "history")


def _asker(name: str) -> Callable[[Filled, int], Sample]:
    def ask(filled: Filled, number: int) -> Sample:
        extra = {
            "current value": "",
            "value at an offset": f"&offset={filled.middle}",
            "history": "&history=true",
        }[name]
        random_ = random.Random(number)
        keys = [key_of(random_.randrange(filled.keys)) for _ in range(LOOKUPS)]
        with Client(filled.server.port) as client:
            started = time.perf_counter()
            for type_, key in keys:
                query = f"type={type_}&key={quote(key)}{extra}"
                client.request("GET", f"/v1/state/{STREAM}?{query}")
            return {"us": (time.perf_counter() - started) / LOOKUPS * 1e6}

    return ask


def _searcher(name: str) -> Callable[[Filled, int], Sample]:
    def search(filled: Filled, number: int) -> Sample:
        # Beside the server, which only reads at this moment.
        index = StateIndex(filled.server.data / FILE)
        try:
            ((stream, _),) = index.streams()
            progress = index.progress(stream)
            assert progress is not None
            tail = progress.position
            at = tail // 2 if name == "value at an offset" else tail
            random_ = random.Random(number)
            keys = [key_of(random_.randrange(filled.keys)) for _ in range(LOOKUPS)]
            started = time.perf_counter()
            for type_, key in keys:
                wanted = StateQuery(stream, at, type=type_, key=key)
                if name == "history":
                    index.history(wanted, -1)
                else:
                    index.page(wanted)
            return {"us": (time.perf_counter() - started) / LOOKUPS * 1e6}
        finally:
            index.close()

    return search


def _lookup_row(what: str, few: Filled, many: Filled, samples: dict[str, list[Sample]]) -> Row:
    small, grown = median(samples[str(few.keys)], "us"), median(samples[str(many.keys)], "us")
    return Row(
        metric=f"growth: {what}, one of {many.keys:,} keys (vs one of {few.keys:,})",
        ours=microseconds(grown),
        reference=microseconds(small),
        ratio=grown / small,
        target=f"≤ {LOG_GROWTH_MAX:g}×",
        met=grown / small <= LOG_GROWTH_MAX,
        samples=samples,
    )
