"""Links of records are followed across workers as in one process: a link leads to the worker that
owns the mirror's path, and what several workers name ends when none of them names it any more."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx2
import pytest

from penstock.workers.reshard import reshard
from tests.cluster.workload import until
from tests.helpers.linked import Hub, Source
from tests.helpers.server import Server, running_server
from tests.workers.conftest import ARGS
from tests.workers.server import JSON, path_at, worker_pids

pytestmark = pytest.mark.xdist_group("workers")


@pytest.fixture(scope="module")
def source() -> Iterator[Source]:
    with (
        running_server(args=["--development"], memory=True) as server,
        httpx2.Client(base_url=server.url, timeout=20) as http,
    ):
        yield Source(server, http, parts=2)


@pytest.fixture
def hub(server: Server) -> Iterator[Hub]:
    """The shared server, whose mirrors all end with the test."""
    with ExitStack() as stack:
        hub = _hub(server, stack)
        yield hub
        for table, root in (hub.roots() or {}).items():
            if not root:
                hub.unfollow(table)
        until(hub.has(), "all followings have ended")


def _hub(server: Server, stack: ExitStack) -> Hub:
    """Requests take a new connection each: any worker may get them."""

    def client() -> httpx2.Client:
        return stack.enter_context(httpx2.Client(base_url=server.url, timeout=20))

    return Hub(client)


@pytest.mark.parametrize("first", [0, 1])
def test_links_lead_from_worker_to_worker_as_deep_as_is_asked_for(
    hub: Hub, source: Source, first: int
) -> None:
    end = source.table(1 - first, "+ k v")
    c = source.table(first, f"+ next @{end}")
    b = source.table(1 - first, f"+ next @{c}")
    a = source.table(first, f"+ next @{b}")
    root = path_at(first, "root")
    assert hub.follow(root, source.surl(a), links=2).status_code == 201
    mirrors = [source.mirror(each) for each in (b, c)]
    until(hub.has(root, *mirrors), "two levels are followed")
    until(lambda: hub.rows(mirrors[1]), "the rows are there")
    assert hub.roots() == {root: "", mirrors[0]: root, mirrors[1]: root}
    assert hub.links(root) == {"depth": 2, "followed": [mirrors[0]], "refused": {}}
    assert hub.links(mirrors[0]) == {"depth": 1, "followed": [mirrors[1]], "refused": {}}
    assert hub.links(mirrors[1]) is None
    assert hub.follow(root, source.surl(a), links=0).status_code == 200
    until(hub.has(root), "without links nothing is followed")


@pytest.mark.parametrize("home", [0, 1])
def test_a_link_ends_when_no_worker_names_it_any_more(hub: Hub, source: Source, home: int) -> None:
    shared, own = source.table(home, "+ k v"), source.table(1 - home, "+ k v")
    lists = [source.table(0, f"+ 1 @{shared}") for _ in (0, 1)]
    roots = [path_at(part, "root") for part in (0, 1)]
    for root, each in zip(roots, lists, strict=True):
        assert hub.follow(root, source.surl(each), links=1).status_code == 201
    mirror, other = source.mirror(shared), source.mirror(own)
    until(hub.has(*roots, mirror), "the table that both name is followed")
    until(lambda: hub.rows(mirror) == [["+", "k", "v"]], "its row is there")
    for root in roots:
        assert hub.links(root) == {"depth": 1, "followed": [mirror], "refused": {}}
    # What comes with the end of the first link shows that it has been decided about.
    source.write(lists[0], "- 1", f"+ 2 @{own}")
    until(hub.has(*roots, mirror, other), "the other still names it")
    source.write(lists[1], "- 1")
    until(hub.has(*roots, other), "nobody names it")
    assert hub.rows(mirror) == [["+", "k", "v"]]
    # Named again, it goes on where it ended.
    source.write(shared, "+ k w")
    source.write(lists[1], f"+ 1 @{shared}")
    until(lambda: ["+", "k", "w"] in hub.rows(mirror), "it is followed again")
    for root in roots:
        assert hub.unfollow(root).status_code == 204
    until(hub.has(), "without their roots all have ended")


def test_what_an_operator_follows_on_another_worker_is_not_followed_twice(
    hub: Hub, source: Source
) -> None:
    table, other = source.table(0, "+ k v"), source.table(1, "+ k v")
    own, root = path_at(1, "own"), path_at(0, "root")
    assert hub.follow(own, source.surl(table)).status_code == 201
    listing = source.table(0, f"+ 1 @{table}", f"+ 2 @{other}")
    assert hub.follow(root, source.surl(listing), links=1).status_code == 201
    until(hub.has(own, root, source.mirror(other)), "what nobody follows is followed")
    assert hub.links(root)["followed"] == sorted([own, source.mirror(other)])
    source.write(listing, "- 1", "- 2")
    until(hub.has(own, root), "what the operator follows stays")


def test_a_fork_of_another_worker_keeps_the_path_that_a_link_leads_to(
    hub: Hub, source: Source, http: httpx2.Client
) -> None:
    origin, table = path_at(1, "origin"), source.table(0, "+ k v")
    fork = f"/v1/stream/{source.mirror(table)}"
    assert http.put(f"/v1/stream/{origin}", headers=JSON, content=b'["o"]').status_code == 201
    from_origin = {"stream-forked-from": f"/v1/stream/{origin}"}
    assert http.put(fork, headers=from_origin).status_code == 201
    listing, root = source.table(0, f"+ 1 @{table}"), path_at(1, "root")
    assert hub.follow(root, source.surl(listing), links=1).status_code == 201
    until(lambda: (hub.links(root) or {"refused": ()})["refused"], "the link is refused")
    assert "is a fork" in hub.links(root)["refused"][source.surl(table)]
    assert hub.has(root)()
    assert http.get(fork, params={"offset": "-1"}).json() == ["o"]


def test_the_limit_counts_the_tables_of_all_workers() -> None:
    with ExitStack() as stack:
        there = stack.enter_context(running_server(args=["--development"], memory=True))
        http = stack.enter_context(httpx2.Client(base_url=there.url, timeout=20))
        source = Source(there, http, parts=2)
        here = stack.enter_context(running_server(args=[*ARGS, "--follow-links-max", "3"]))
        hub = _hub(here, stack)
        leaves = [source.table(part, "+ k v") for part in (0, 1, 0, 1)]
        middle = source.table(1, *(f"+ {each} @{each}" for each in leaves[2:]))
        first = source.table(0, *(f"+ {each} @{each}" for each in (*leaves[:2], middle)))
        root = path_at(0, "root")
        assert hub.follow(root, source.surl(first), links=2).status_code == 201
        mirror = source.mirror(middle)
        until(lambda: len((hub.links(mirror) or {"refused": ()})["refused"]) == 2, "the rest")
        refused = hub.links(mirror)["refused"]
        assert set(refused) == {source.surl(each) for each in leaves[2:]}
        assert all("follow_links_max" in reason for reason in refused.values())
        followed = [source.mirror(each) for each in (*leaves[:2], middle)]
        assert hub.has(root, *followed)()
        assert hub.links(root) == {"depth": 2, "followed": sorted(followed), "refused": {}}


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_ends_nothing_that_is_still_named(
    source: Source, victim: int, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        here = stack.enter_context(running_server(args=ARGS, data_dir=tmp_path / "data"))
        hub = _hub(here, stack)
        kept = [source.table(part, "+ k v") for part in (0, 1)]
        gone = [source.table(part, "+ k v") for part in (0, 1)]
        new = [source.table(part, "+ k v") for part in (0, 1)]
        roots = [path_at(part, "root") for part in (0, 1)]
        lists = []
        for part, root in enumerate(roots):
            # Each names the tables whose mirrors are with the other worker.
            names = (kept[1 - part], gone[1 - part])
            lists.append(source.table(0, *(f"+ {each} @{each}" for each in names)))
            assert hub.follow(root, source.surl(lists[part]), links=1).status_code == 201
        stays = [*roots, *map(source.mirror, kept)]
        until(hub.has(*stays, *map(source.mirror, gone)), "all are followed")
        for turn in range(3):
            os.kill(worker_pids(here)[victim], signal.SIGKILL)
            for part in (0, 1):
                off, on = (gone, new) if turn % 2 == 0 else (new, gone)
                source.write(lists[part], f"- {off[1 - part]}", f"+ {on[1 - part]} @{on[1 - part]}")
            after = {*stays, *map(source.mirror, on)}
            until(partial(_is_settled, hub, set(stays), after), f"it is true after kill {turn}")


def test_nothing_is_ended_before_a_missing_worker_is_heard(source: Source, tmp_path: Path) -> None:
    with ExitStack() as stack:
        here = stack.enter_context(running_server(args=ARGS, data_dir=tmp_path / "data"))
        hub = _hub(here, stack)
        # Worker 0 decides. It has both mirrors; the one that stays is named by worker 1 alone.
        kept, gone = source.table(0, "+ k v"), source.table(0, "+ k v")
        lists = [source.table(0, f"+ 1 @{gone}"), source.table(0, f"+ 1 @{kept}")]
        roots = [path_at(part, "root") for part in (0, 1)]
        for root, each in zip(roots, lists, strict=True):
            assert hub.follow(root, source.surl(each), links=1).status_code == 201
        stays = {*roots, source.mirror(kept)}
        until(hub.has(*stays, source.mirror(gone)), "both are followed")
        until(lambda: hub.status(source.mirror(kept))["appended"] == 1, "its row is there")
        os.kill(worker_pids(here)[1], signal.SIGKILL)
        source.write(lists[0], "- 1")
        until(partial(_is_settled, hub, stays, stays), "it is true when worker 1 is back")
        # A following that had ended and begun again would have added no row.
        assert hub.status(source.mirror(kept))["appended"] == 1


def _is_settled(hub: Hub, stays: set[str], after: set[str]) -> bool:
    """Whether what is followed is what is named; what was named all the time never ends."""
    roots = hub.roots()
    assert roots is None or stays <= set(roots), f"{stays - set(roots)} have ended"
    return roots is not None and set(roots) == after


def test_links_are_the_same_after_restarts_with_other_numbers_of_workers(
    source: Source, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    kept, *names = [source.table(part, "+ k v") for part in (1, 0, 1)]
    listing = source.table(0, f"+ kept @{kept}", f"+ other @{names[0]}")
    root = path_at(1, "root")
    stays = {root, source.mirror(kept)}
    with running_server(args=ARGS, data_dir=folder) as server, ExitStack() as stack:
        hub = _hub(server, stack)
        assert hub.follow(root, source.surl(listing), links=1).status_code == 201
        until(hub.has(*stays, source.mirror(names[0])), "both are followed")
    for turn, workers in enumerate((2, 3, 1), start=1):
        now = names[turn % 2]
        source.write(listing, f"+ other @{now}")
        if workers != 2:
            reshard(folder, workers)
        args = ["--development", "--workers", str(workers)]
        with running_server(args=args, data_dir=folder) as server, ExitStack() as stack:
            hub = _hub(server, stack)
            after = {*stays, source.mirror(now)}
            until(partial(_is_settled, hub, stays, after), f"it is true with {workers}")
