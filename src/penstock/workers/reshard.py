"""`penstock reshard`: changes the number of workers of a stopped folder.

New folders are built beside the old ones, whose segments they share, and are checked. Then a mark
says that they count, and the rest is repeated after a crash until it is done: at every moment the
old folders or the new ones are whole.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from penstock.access import audit, tokens
from penstock.config.settings import Settings
from penstock.errors import StoreDamaged, StoreError, StreamNotFound
from penstock.http.forwarding import path_links
from penstock.http.forwarding.path_links import GUEST, LINK, PathLinks
from penstock.http.proxy import recordings
from penstock.log import open_engine
from penstock.log.disk.files import Files
from penstock.log.disk.recovery import FORMAT_FILE, RESHARDING_FILE
from penstock.log.disk.store import CATALOG_FILE
from penstock.log.disk.tiered.tier import CACHE_FOLDER
from penstock.log.disk.tiered.tiering import TIER_URL
from penstock.log.disk.worker_folders import (
    FOLDER,
    LOCK_FILE,
    worker_folders,
    workers_of,
    write_part,
    write_root,
)
from penstock.log.engine import Engine
from penstock.log.offline.folder import open_folder
from penstock.log.offline.moving import Moved, count_streams, is_clean, move
from penstock.log.offline.verify import verify
from penstock.log.system_stream import Event, SystemStream
from penstock.protocol.shards import shard_of
from penstock.stp.declaration import META as TABLES
from penstock.stp.declaration import Table, decode, table_locations
from penstock.stp.server import registry
from penstock.subscriptions import keys as webhook_keys
from penstock.subscriptions import store as subscriptions
from penstock.workers.owners import worker_name

BUILDING: Final = "resharded"
"""The folder of the new folders, until they count."""
OLD: Final = "workers.old"
ROWS_PER_APPEND: Final = 500
NEVER_S: Final = 365 * 86_400.0
"""No segment moves, and no object is removed, while a folder is laid out."""
BUILD: Final = "build"
SWITCH: Final = "switch"

# What a single data folder consists of. Caches are made again.
_SINGLE: Final = ("journal", "segments", CATALOG_FILE, "JOURNAL")
# Streams of the server itself that are divided, or made anew, rather than moved.
_DIVIDED: Final = (
    subscriptions.PATH,
    registry.PATH,
    registry.PART_PATH,
    path_links.PATH,
    recordings.PATH,
)
_FIRST: Final = (tokens.PATH, audit.PATH)

Progress = Callable[[str], None]


class Result(NamedTuple):
    """How many workers there were and are, and what was moved; nothing if that was done before."""

    before: int
    after: int
    streams: int
    bytes: int


class SystemRows(NamedTuple):
    """The server's own records of all old folders: the last event of each key, and meta values.
    `tables` has the stream of each table that a NURL listens to, as far as there are such."""

    events: dict[str, dict[tuple[str, str], Event]]
    meta: dict[str, dict[str, bytes]]
    tables: dict[str, str]


def reshard(root: Path, workers: int, *, progress: Progress = lambda step: None) -> Result:
    """Lay a folder out for another number of workers. StoreLocked while a server uses it."""
    files = Files()
    files.check_system()
    if not files.exists(root / FORMAT_FILE):
        raise StoreError(f"{root} is not a Penstock data folder: it has no {FORMAT_FILE} file.")
    plan = _read_plan(files, root)
    if plan is not None and plan["phase"] == SWITCH:
        if plan["to"] != workers:
            raise StoreError(
                f"{root} is being laid out for {plan['to']} workers. Finish that first: penstock "
                f"reshard {root} --workers {plan['to']}"
            )
        with closing(files.lock(root / LOCK_FILE)):
            progress("finishing")
            _switch(files, root, plan)
        return Result(plan["from"], workers, plan["streams"], plan["bytes"])
    before = workers_of(files, root) or 1
    if before == workers and plan is None:
        return Result(before, workers, 0, 0)
    return _reshard(files, root, before, workers, progress)


def _reshard(files: Files, root: Path, before: int, workers: int, progress: Progress) -> Result:
    files.remove(root / RESHARDING_FILE)  # of a build that was ended: nothing counts of it
    sources = worker_folders(files, root)
    progress("closing the old folders")
    rows = asyncio.run(_closed(sources))
    with closing(files.lock(root / LOCK_FILE)):
        if not all(is_clean(each) for each in sources):
            raise StoreError(f"{root} was used meanwhile. Stop the server and try again.")
        if before == workers:
            files.remove_all(root / BUILDING)
            return Result(before, workers, 0, 0)
        plan: dict[str, Any] = {"from": before, "to": workers, "phase": BUILD}
        _write_plan(files, root, plan)
        targets = _new_folders(files, root, workers)
        progress("moving streams")
        moved = move(
            files,
            sources,
            targets,
            lambda path: 0 if path in _FIRST else shard_of(path, workers),
            leaves=lambda path: path in _DIVIDED,
        )
        progress("dividing the server's own records")
        asyncio.run(_divide(targets, rows, moved, workers))
        progress("checking the new folders")
        _check(targets, moved)
        files.sync_everything(root)
        plan |= {"phase": SWITCH, "streams": moved.streams, "bytes": moved.bytes}
        _write_plan(files, root, plan)
        _switch(files, root, plan)
    return Result(before, workers, moved.streams, moved.bytes)


# -- the plan


def _read_plan(files: Files, root: Path) -> dict[str, Any] | None:
    path = root / RESHARDING_FILE
    if not files.exists(path):
        return None
    plan = json.loads(files.read_text(path))
    assert isinstance(plan, dict)
    return plan


def _write_plan(files: Files, root: Path, plan: dict[str, Any]) -> None:
    files.write_text(root / RESHARDING_FILE, json.dumps(plan) + "\n")


# -- the old folders


async def _closed(sources: list[Path]) -> SystemRows:
    """Open and close every folder, so that its catalog has everything; return its records."""
    rows = SystemRows({path: {} for path in _DIVIDED}, {path: {} for path in _DIVIDED}, {})
    for folder in sources:
        engine = open_engine(_settings(folder))
        await engine.start()
        try:
            for path in _DIVIDED:
                stream = SystemStream(engine, path)
                if not stream.exists:
                    continue
                _merge_meta(rows.meta[path], stream.find().meta)
                # Folder by folder: what one has removed may be in another.
                own: dict[tuple[str, str], Event] = {}
                async for events in stream.pieces():
                    for event in events:
                        _fold(own, event)
                for event in own.values():
                    if event["type"] != registry.LISTENER or _is_best(engine, rows, event):
                        _fold(rows.events[path], event)
        finally:
            await engine.stop()
    return rows


def _is_best(engine: Engine, rows: SystemRows, listener: Event) -> bool:
    """Whether a folder knows best about a listener: one with its table, or else any of them. One
    whose table is not there is kept wherever that may appear."""
    table = listener["value"]["table"]
    for path, name in table_locations(table):
        if name in _tables_of(engine, path):
            rows.tables[table] = path
            return True
    return table not in rows.tables


def _tables_of(engine: Engine, path: str) -> dict[str, Table]:
    try:
        value = engine.find(path, touch=False).meta.get(TABLES)
    except StreamNotFound:
        return {}
    return decode(value) if value is not None else {}


def _fold(events: dict[tuple[str, str], Event], event: Event) -> None:
    """Keep the last event of each key, in the order of the last ones."""
    key = (event["type"], event["key"])
    before = events.pop(key, None)
    if event["type"] == subscriptions.SUBSCRIPTION and event.get("value") is None:
        id = event["key"]
        for other in [each for each in events if _subscription_id(*each) == id]:
            del events[other]
        return
    if (
        event["type"] == subscriptions.DRAFT
        and before is not None
        and before["value"]["created_us"] == event["value"]["created_us"]
    ):
        links = {**before["value"]["links"], **event["value"]["links"]}
        event = {**event, "value": {**event["value"], "links": links}}
    if event.get("value") is not None:
        events[key] = event


def _merge_meta(meta: dict[str, bytes], values: dict[str, bytes]) -> None:
    for name, value in values.items():
        before = meta.get(name)
        if before is not None and name == registry.LAST_NOTIFIED:
            value = msgspec.json.encode(
                {**msgspec.json.decode(before), **msgspec.json.decode(value)}
            )
        elif before is not None and name == webhook_keys.META:
            both = [*msgspec.json.decode(before), *msgspec.json.decode(value)]
            value = msgspec.json.encode(both)
        elif before is not None:
            continue
        meta[name] = value


# -- the new folders


def _new_folders(files: Files, root: Path, workers: int) -> list[Path]:
    building = root / BUILDING
    files.remove_all(building)
    targets = [building / str(index) for index in range(workers)]
    for index, folder in enumerate(targets):
        files.make_folder(folder)
        write_part(files, folder, index, workers)
    return targets


async def _divide(targets: list[Path], rows: SystemRows, moved: Moved, workers: int) -> None:
    """Write the server's own records to the folders that own them, and links to forks."""
    for index, folder in enumerate(targets):
        engine = open_engine(_settings(folder))
        await engine.start()
        try:
            await _write_links(PathLinks(engine), index, moved, workers)
            for path, target in (
                (subscriptions.PATH, subscriptions.PATH),
                (registry.PATH, registry.PATH if workers == 1 else registry.PART_PATH),
                (recordings.PATH, recordings.PATH),
            ):
                events, meta = rows.events[path], rows.meta[path]
                if path == registry.PATH:
                    events = {**events, **rows.events[registry.PART_PATH]}
                    meta = meta or rows.meta[registry.PART_PATH]
                own = [
                    event
                    for event in events.values()
                    if _is_at(path, event, index, rows.tables, moved, workers)
                ]
                if own or (meta and path == subscriptions.PATH):
                    await _write(SystemStream(engine, target), own, meta)
        finally:
            await engine.stop()


def _is_at(
    path: str, event: Event, index: int, tables: dict[str, str], moved: Moved, workers: int
) -> bool:
    """Whether a worker keeps a record."""
    if path == subscriptions.PATH:
        id = _subscription_id(event["type"], event["key"])
        return shard_of(f"__ds/subscriptions/{id}", workers) == index
    if event["type"] == registry.WAITING:
        return True  # a NURL that waits for a table, which may appear anywhere
    streams = [event["key"]]
    if event["type"] == registry.LISTENER:
        table = event["value"]["table"]
        found = tables.get(table)
        streams = [found] if found else [stream for stream, _ in table_locations(table)]
    return any(moved.forks.get(each, shard_of(each, workers)) == index for each in streams)


def _subscription_id(kind: str, key: str) -> str:
    return key.partition(" ")[2] if kind == subscriptions.LINK else key


async def _write(stream: SystemStream, events: list[Event], meta: dict[str, bytes]) -> None:
    await stream.ensure()
    for name, value in meta.items():
        await stream.set_meta(name, value)
    for start in range(0, len(events), ROWS_PER_APPEND):
        await stream.write(events[start : start + ROWS_PER_APPEND])


async def _write_links(links: PathLinks, index: int, moved: Moved, workers: int) -> None:
    for path, at in moved.forks.items():
        home = shard_of(path, workers)
        if home != at and home == index:
            await links.set(LINK, path, worker_name(at))
        if home != at and at == index:
            await links.set(GUEST, path, worker_name(home))


def _check(targets: list[Path], moved: Moved) -> None:
    """Read every byte of the new folders; StoreDamaged, and the old ones count, if one is wrong."""
    count = 0
    for folder in targets:
        count += count_streams(folder, leaves=lambda path: path in _DIVIDED)
        report = verify(folder)
        if report.problem_count:
            raise StoreDamaged(
                f"A new folder has problems ({report.problems[0]}). The old ones are as they were; "
                "run `penstock verify` on them."
            )
    if count != moved.rows:
        raise StoreDamaged(f"The new folders have {count} of {moved.rows} streams.")


# -- the switch: every step may be repeated


def _switch(files: Files, root: Path, plan: dict[str, Any]) -> None:
    building, workers = root / BUILDING, root / FOLDER
    if plan["to"] == 1:
        for name in (*_SINGLE, FORMAT_FILE):
            if files.exists(building / "0" / name):
                files.rename(building / "0" / name, root / name)
        files.sync_folder(root)
        files.remove_all(workers)
    else:
        if files.exists(building):
            if files.exists(workers):
                files.rename(workers, root / OLD)
            files.rename(building, workers)
            files.sync_folder(root)
        write_root(files, root, plan["to"])
        for name in (*_SINGLE, OLD, CACHE_FOLDER):
            files.remove_all(root / name)
    files.remove_all(building)
    files.sync_folder(root)
    files.remove(root / RESHARDING_FILE)
    files.sync_folder(root)


def _settings(folder: Path) -> Settings:
    """Return the settings to open a folder with: what is cold stays where it is."""
    with open_folder(folder) as opened:
        tier_url = str(opened.catalog.meta().get(TIER_URL, ""))
    return replace(Settings(), data_dir=folder, tier_url=tier_url, tier_interval_s=NEVER_S)
