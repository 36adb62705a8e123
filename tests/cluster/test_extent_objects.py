"""Extents in an object store: moved when they are full, killed at every step, and removed late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from penstock.config.settings import Settings
from penstock.errors import ClusterRefused, ColdDataUnavailable, Damaged, StorageUnavailable
from penstock.log.cluster import extent_objects
from penstock.log.cluster.node import Node
from penstock.log.cluster.store import ClusterStore
from penstock.log.stream import Stream
from tests.cluster.workload import FEW, Cluster, Workload, until
from tests.contract.rig import BYTES, Recorder, Rig, on_stores
from tests.helpers import postgres
from tests.helpers.log import TINY, cluster_settings
from tests.helpers.postgres import ON_POSTGRES, shared
from tests.helpers.tiered import ColdClusterStore
from tests.spark.object_store import BUCKET, Store, missing, running_store

pytestmark = list(ON_POSTGRES)
on_cluster = on_stores(("cold-cluster",), cluster_garbage_s=3600)


@pytest.fixture(autouse=True)
def _moves_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extent_objects, "MOVE_S", 3600.0)


def store_of(rig: Rig) -> ColdClusterStore:
    assert isinstance(rig.store, ColdClusterStore)
    return rig.store


def query(rig: Rig, text: str) -> list[str]:
    return postgres.shared().query(text, str(rig._options["cluster"]).rpartition("/")[2])


async def settle(rig: Rig) -> None:
    """A checkpoint, after which nothing is moved."""
    assert await ClusterStore.checkpoint(store_of(rig))


async def fill(rig: Rig, path: str = "a") -> tuple[Stream, bytes]:
    """Make a stream with several full extents and an open one."""
    stream = await rig.create(path, config=BYTES)
    content = b""
    for number in range(25):
        piece = b"%06d," % number * 30
        await rig.append(stream, [piece])
        content += piece
    await settle(rig)
    return stream, content


def pointed_to(rig: Rig) -> list[str]:
    return sorted(query(rig, "SELECT object FROM penstock.extent WHERE object IS NOT NULL"))


@on_cluster
async def test_full_extents_become_objects_and_are_read_back(rig: Rig) -> None:
    _, content = await fill(rig)
    await store_of(rig).move()
    names = pointed_to(rig)
    assert len(names) >= 3
    assert sorted(store_of(rig).objects.names) == names
    assert query(rig, "SELECT count(*) FROM penstock.garbage") == ["0"]
    left = "SELECT sum(octet_length(body)) < 1300, sum(length) FROM penstock.extent"
    assert query(rig, left) == [f"True|{len(content)}"]
    await rig.reopen()
    stream = rig.find("a")
    assert await rig.content(stream) == content
    assert await rig.store.read(stream, 1500, 1700) == content[1500:1700]
    await rig.append(stream, [b"more"])
    await rig.settle()
    assert await rig.content(stream) == content + b"more"


def _fail(operation: str, *, after: bool) -> Callable[[ColdClusterStore], None]:
    def told(store: ColdClusterStore) -> None:
        def stop(name: str) -> None:
            if name == operation:
                raise StorageUnavailable("killed here")

        if after:
            store.objects.after = stop
        else:
            store.objects.before = stop

    return told


def _fail_switch(store: ColdClusterStore) -> None:
    async def die(each: object, name: str) -> int:
        raise StorageUnavailable("killed here")

    assert store.mover is not None
    store.mover._switch = die  # type: ignore[method-assign]  # a kill before its transaction


@pytest.mark.parametrize(
    "fault",
    [
        _fail("put", after=False),
        _fail("put", after=True),
        _fail("get", after=False),
        _fail_switch,
    ],
    ids=["before the object", "after the object", "before it is read back", "before the switch"],
)
def test_killed_at_any_step_nothing_is_lost_and_nothing_is_left(
    fault: Callable[[ColdClusterStore], None], tmp_path: Path
) -> None:
    async def run() -> None:
        rig = Rig("cold-cluster", tmp_path, cluster_garbage_s=3600)
        await rig.open()
        try:
            _, content = await fill(rig)
            fault(store_of(rig))
            with pytest.raises(StorageUnavailable):
                await store_of(rig).move()
            assert pointed_to(rig) == []
            await rig.crash()
            store_of(rig).objects.heal()
            assert await rig.content(rig.find("a")) == content
            await store_of(rig).move()
            await rig.reopen()
            assert await rig.content(rig.find("a")) == content
            query(rig, "UPDATE penstock.garbage SET not_before = now()")
            mover = store_of(rig).mover
            assert mover is not None
            await mover.collect()
            assert sorted(store_of(rig).objects.names) == pointed_to(rig) != []
            assert await rig.content(rig.find("a")) == content
        finally:
            await rig.store.close()

    asyncio.run(run())


@on_cluster
async def test_objects_of_deleted_streams_stay_until_no_backup_wants_them(rig: Rig) -> None:
    stream, _ = await fill(rig)
    await store_of(rig).move()
    names = pointed_to(rig)
    await rig.delete(stream)
    await settle(rig)
    assert sorted(query(rig, "SELECT object FROM penstock.garbage")) == names
    later = "SELECT bool_and(not_before > now() + interval '59 minutes') FROM penstock.garbage"
    assert query(rig, later) == ["True"]
    mover = store_of(rig).mover
    assert mover is not None
    assert await mover.collect() == 0
    assert sorted(store_of(rig).objects.names) == names
    query(rig, "UPDATE penstock.garbage SET not_before = now()")
    assert await mover.collect() == len(names)
    assert store_of(rig).objects.names == []
    assert query(rig, "SELECT count(*) FROM penstock.garbage") == ["0"]


@pytest.mark.parametrize("garbage_s", [3600, 0])
def test_a_restored_database_finds_its_objects(garbage_s: int, tmp_path: Path) -> None:
    """Unless they were removed earlier than a backup of it may be restored."""

    async def run() -> None:
        rig = Rig("cold-cluster", tmp_path / "a", cluster_garbage_s=garbage_s)
        await rig.open()
        stream, content = await fill(rig)
        await store_of(rig).move()
        backup = shared().dump(rig._options["cluster"])
        await rig.delete(stream)
        await settle(rig)
        mover, objects = store_of(rig).mover, store_of(rig).objects
        assert mover is not None
        await mover.collect()
        await rig.store.close()

        restored = Rig("cold-cluster", tmp_path / "b", cluster_garbage_s=garbage_s)
        shared().load(restored._options["cluster"], backup)
        options = {**TINY, **restored._options, "cluster_extents": objects.url}
        store = ColdClusterStore(cluster_settings(**options), clock=restored.clock)
        store.objects = objects
        active = await store.open(Recorder())
        try:
            found = {each.path: each for each in active}.get("a") or store.load("a")
            assert found is not None
            if garbage_s:
                assert await store.read(found, 0, found.tail) == content
            else:
                with pytest.raises(Damaged, match="has no extents/penstock"):
                    await store.read(found, 0, found.tail)
        finally:
            await store.close()

    asyncio.run(run())


@on_cluster
async def test_a_removal_that_fails_is_done_later(rig: Rig) -> None:
    stream, _ = await fill(rig)
    await store_of(rig).move()
    await rig.delete(stream)
    await settle(rig)
    query(rig, "UPDATE penstock.garbage SET not_before = now()")
    mover, objects = store_of(rig).mover, store_of(rig).objects
    assert mover is not None
    objects.fail("delete")
    with pytest.raises(StorageUnavailable):
        await mover.collect()
    objects.heal()
    assert await mover.collect() > 0
    assert objects.names == []


@on_cluster
async def test_an_object_that_is_to_go_is_never_pointed_to(rig: Rig) -> None:
    _, content = await fill(rig)

    def after(operation: str) -> None:
        if operation == "put":  # the collector comes before the switch
            query(rig, "UPDATE penstock.garbage SET is_leaving = true")

    store_of(rig).objects.after = after
    mover = store_of(rig).mover
    assert mover is not None
    assert await mover.move() == 0
    assert pointed_to(rig) == []
    store_of(rig).objects.heal()
    await rig.reopen()
    assert await rig.content(rig.find("a")) == content


@on_cluster
async def test_an_extent_that_grows_again_is_moved_again(rig: Rig) -> None:
    """As after `segment_bytes_max` was raised: what is full is decided anew."""
    stream = await rig.create("a", config=BYTES)
    await rig.append(stream, [b"x" * 1200])
    await rig.settle()
    (first,) = pointed_to(rig)
    await rig.reopen(segment_bytes_max=3000)
    stream = rig.find("a")
    await rig.append(stream, [b"y" * 500])
    await settle(rig)
    await rig.reopen()
    assert await rig.content(rig.find("a")) == b"x" * 1200 + b"y" * 500
    await rig.append(rig.find("a"), [b"z" * 2000])
    await rig.settle()
    (second,) = pointed_to(rig)
    assert second != first
    assert query(rig, "SELECT object FROM penstock.garbage") == [first]
    await rig.reopen()
    assert await rig.content(rig.find("a")) == b"x" * 1200 + b"y" * 500 + b"z" * 2000


@on_cluster
async def test_without_the_store_reads_wait_and_writes_go_on(rig: Rig) -> None:
    _, content = await fill(rig)
    await store_of(rig).move()
    await rig.reopen()
    store_of(rig).objects.fail("get", "put")
    stream = rig.find("a")
    with pytest.raises(ColdDataUnavailable):
        await rig.content(stream)
    await rig.append(stream, [b"more"])
    store_of(rig).objects.heal()
    assert await rig.content(stream) == content + b"more"


@on_cluster
async def test_other_bytes_than_were_written_are_not_trusted(rig: Rig) -> None:
    _, content = await fill(rig)
    objects = store_of(rig).objects
    put = objects.store.put
    objects.store.put = lambda key, data: put(key, bytes(len(bytes(data))))  # type: ignore[method-assign, arg-type]
    mover = store_of(rig).mover
    assert mover is not None
    with pytest.raises(Exception, match="other bytes"):
        await mover.move()
    objects.store.put = put  # type: ignore[method-assign]
    assert pointed_to(rig) == []
    assert await rig.content(rig.find("a")) == content


def test_extents_that_are_somewhere_else_are_refused(tmp_path: Path) -> None:
    async def run() -> None:
        rig = Rig("cold-cluster", tmp_path)
        await rig.open()
        await fill(rig)
        await store_of(rig).move()
        await rig.store.close()
        dsn = rig._options["cluster"]
        assert "Set cluster_extents" in await _refusal(dsn, "")
        assert "does not have extents/penstock" in await _refusal(dsn, "memory://other")
        assert "s3" in await _refusal(dsn, "ftp://nowhere/x")

    asyncio.run(run())


async def _refusal(dsn: str, url: str) -> str:
    node = Node(Settings(cluster=dsn, cluster_durability="single", cluster_extents=url))
    with pytest.raises(ClusterRefused) as caught:
        await node.join("1")
    await node.leave()
    assert "\n" not in caught.value.detail
    return caught.value.detail


@pytest.fixture
def s3() -> Iterator[Store]:
    if reason := missing():
        pytest.skip(reason)
    with running_store() as store:
        yield store


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.soak)])
def test_nodes_that_are_killed_while_extents_move_to_s3(s3: Store, kills: int) -> None:
    args = ["--cluster-durability", "single", "--cluster-extents", f"s3://{BUCKET}/cold"]
    args += ["--segment-bytes-max", "1KiB", "--checkpoint-bytes", "2KiB"]
    args += ["--inline-bytes-max", "256B", "--cluster-cache-bytes", "4KiB"]
    with ExitStack() as stack:
        cluster = Cluster(stack, shared().fresh_database(), *args, shards=1, env=s3.options)
        cluster.start(2)
        with Workload(cluster, writers=2, streams=1) as work:
            for _ in range(kills):
                work.goes_on(100)
                until(lambda: _metric(cluster, "tier_uploads_total") > 2, "extents move")
                cluster.owner().kill()
                cluster.add()
            work.goes_on(FEW)
        assert sum(map(len, work.check().values())) >= work.total
        assert _metric(cluster, "tier_fetches_total") > 0
    stored = s3.files.get_file_info(_selector(f"{BUCKET}/cold/extents"))
    assert len([each for each in stored if each.is_file]) > 2


def _selector(base: str) -> Any:
    from pyarrow import fs

    return fs.FileSelector(base, recursive=True)


def _metric(cluster: Cluster, name: str) -> float:
    with urlopen(f"{cluster.owner().url}/metrics") as response:
        lines = response.read().decode().splitlines()
    values = [line for line in lines if line.startswith(f"penstock_{name} ")]
    return float(json.loads(values[0].split()[1])) if values else 0.0
