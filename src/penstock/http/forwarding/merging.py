"""How the answers of all processes become one: counters are summed, the worst of a state counts.

Pure: documents in, a document out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock.http.metrics import render

Document = dict[str, Any]
_Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample by its name and its labels."""

# Gauges that are no amounts: of these the smallest or the largest counts.
_SMALLEST: Final = frozenset(
    {
        "penstock_ready",
        "penstock_disk_free_bytes",
        "penstock_backup_last_success_timestamp_seconds",
        "penstock_scrub_last_finished_timestamp_seconds",
        "process_start_time_seconds",
        "process_max_fds",
    }
)
_LARGEST: Final = frozenset({"penstock_build_info", "penstock_loop_lag_max_seconds"})
_OF_PROCESS: Final = ("process_", "penstock_loop_")
"""How metrics begin that all parts of one process report alike."""
_COUNTERS: Final = frozenset(("counter", "histogram"))

_SUMMED: Final = (
    "appends_per_s",
    "messages_per_s",
    "reads_per_s",
    "bytes_in_per_s",
    "bytes_out_per_s",
    "live_readers",
    "connections",
    "streams",
    "stored_bytes",
)
_STATES: Final = ("running", "failed", "canceled", "done", "idle")


def metrics(texts: Iterable[str]) -> bytes:
    """Return the metrics of all processes in Prometheus' text format."""
    return render(families(map(text_string_to_metric_families, texts)))


def families(
    parts: Iterable[Iterable[Metric]],
    *,
    of_one_process: bool = False,
    types: frozenset[str] | None = None,
) -> list[Metric]:
    """Return the metrics of all processes, or of all parts of one; only those of some types if
    that is asked for."""
    merged: dict[str, Metric] = {}
    values: dict[str, dict[_Series, float]] = {}
    for metric in chain.from_iterable(parts):
        if types is not None and metric.type not in types:
            continue
        merged.setdefault(metric.name, metric)
        of_name = values.setdefault(metric.name, {})
        combine = _combine(metric.name, of_one_process=of_one_process)
        for sample in metric.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            before = of_name.get(key)
            of_name[key] = sample.value if before is None else combine(before, sample.value)
    return [_family(metric, values[name]) for name, metric in merged.items()]


def counters(parts: Iterable[Iterable[Metric]]) -> list[Metric]:
    """Return what parts of one process have counted, without what there is at the moment."""
    return families(parts, of_one_process=True, types=_COUNTERS)


def _family(like: Metric, values: dict[_Series, float]) -> Metric:
    family = Metric(like.name, like.documentation, like.type)
    for (name, labels), value in values.items():
        family.add_sample(name, dict(labels), value)
    return family


def _combine(name: str, *, of_one_process: bool) -> Callable[[float, float], float]:
    if name in _SMALLEST:
        return min
    is_same = of_one_process and name.startswith(_OF_PROCESS)
    return max if is_same or name in _LARGEST else _sum


def _sum(one: float, other: float) -> float:
    return one + other


def activity(parts: list[Document], sort: str, limit: int) -> Document:
    """Return what all processes did. Samples of the same interval are one."""
    first = parts[0]
    interval_s = first["interval_s"]
    by_time: dict[str, list[Document]] = {}
    # Every process counts its intervals from its own start: the n-th last ones belong together.
    longest = max((part["samples"] for part in parts), key=len)
    for part in parts:
        for age, sample in enumerate(reversed(part["samples"]), 1):
            by_time.setdefault(longest[-age]["time"], []).append(sample)
    streams = [each for part in parts for each in part["streams"]]
    key = f"{sort}_per_s"
    streams.sort(key=lambda each: (-each[key], each["path"]))
    current = [part["current"] for part in parts if part["current"] is not None]
    return {
        **first,
        "started_at": min(part["started_at"] for part in parts),
        "interval_s": interval_s,
        "samples": [
            {**_sample(some), "time": longest_time}
            for longest_time, some in sorted(by_time.items())
        ],
        "current": _sample(current) if current else None,
        "streams": streams[:limit],
    }


def _sample(some: list[Document]) -> Document:
    merged: Document = {"time": max(each["time"] for each in some)}
    for name, value in some[0].items():
        values = [each[name] for each in some if each[name] is not None]
        if name == "time":
            continue
        if not values:
            merged[name] = value
        elif name in _SUMMED:
            merged[name] = sum(values)
        else:
            merged[name] = min(values) if name == "disk_free_bytes" else max(values)
    return merged


def job(parts: dict[str, Document]) -> Document:
    """Return the backup or scrub of all processes: it is as far as the last of them."""
    documents = list(parts.values())
    state = min((part["state"] for part in documents), key=_STATES.index)
    merged = {**next(each for each in documents if each["state"] == state)}
    merged["state"] = state
    for name, value in merged.items():
        if isinstance(value, int) and not isinstance(value, bool):
            merged[name] = sum(part[name] for part in documents)
    for name, pick in (("began_at", min), ("ended_at", max)):
        times = [part[name] for part in documents if part[name] is not None]
        merged[name] = pick(times, default=None)
    if state == "running":
        merged["ended_at"] = None
    backups = [part["backup"] for part in documents if part.get("backup") is not None]
    if backups:
        merged["backup"] = {
            **backups[0],
            **{
                name: sum(each[name] for each in backups)
                for name in ("streams", "segments", "bytes", "new_bytes")
            },
            "damaged": [line for each in backups for line in each["damaged"]],
        }
    if "problems" in merged:
        merged["problems"] = [each for part in documents for each in part["problems"]]
    merged["workers"] = parts
    return merged


def outcome(parts: list[Document]) -> Document:
    """Return what became of a Notify: what one process has done, the others did not ignore."""
    merged: Document = {}
    ignored: Document = {}
    for part in parts:
        ignored |= part["ignored"]
    for name in ("followed_by", "told_of", "waiting"):
        values = [part[name] for part in parts if name in part]
        if not values:
            continue
        if isinstance(values[0], list):
            merged[name] = [item for value in values for item in value]
        else:
            merged[name] = {key: item for value in values for key, item in value.items()}
    done = set(merged.get("told_of", {}))
    if "waiting" in merged:
        merged["waiting"] = {
            name: value for name, value in merged["waiting"].items() if name not in done
        }
        if not merged["waiting"]:
            del merged["waiting"]
    is_followed = "followed_by" in merged
    handled = done | set(merged.get("waiting", {})) | ({"surl"} if is_followed else set())
    is_here = any("surl" not in part["ignored"] for part in parts)
    return {
        "ignored": {
            name: why
            for name, why in ignored.items()
            if name not in handled and not (name == "surl" and is_here)
        },
        **merged,
    }
