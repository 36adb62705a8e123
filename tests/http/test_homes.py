"""The home of a path, and the process where its fork lives: neither gives the path up while the
other makes something of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from penstock.errors import NotOwner
from penstock.http.forwarding.control import PREFIX, Control
from penstock.http.forwarding.homes import Homes
from penstock.http.forwarding.owners import Address, Peer
from penstock.http.forwarding.path_links import LINK, PathLinks
from penstock.http.message import Request, Response
from tests.unit.log.bench import Bench, with_bench

HERE, THERE = "here", "there"


class Owners:
    """This process and one peer, which is the home of all paths that begin with its name."""

    name = HERE

    def owner(self, path: str) -> Peer | None:
        return self.peer(THERE if path.startswith(THERE) else HERE)

    def peer(self, name: str) -> Peer | None:
        return None if name == HERE else Peer(name, Address())

    def peers(self) -> list[Peer]:
        return [Peer(THERE, Address())]


class Place:
    """The homes of one process, whose peer answers as `on_ask` says."""

    owners = Owners()

    def __init__(self, bench: Bench, on_ask: Callable[[str, Any], Awaitable[Any]]) -> None:
        self._on_ask = on_ask
        self.links = PathLinks(bench.engine)
        self._control = Control()
        parts: Any = self
        self.homes = Homes(
            bench.engine, self.links, parts, parts, self._control, path_bytes_max=1000
        )

    async def ask(self, peer: Peer, name: str, question: Any) -> Any:
        return await self._on_ask(name, question)

    async def asked(self, name: str, question: Any) -> Any:
        """Return what the peer is answered."""
        answer = await self._control.answer(PREFIX + name.encode(), msgspec.json.encode(question))
        assert isinstance(answer.body, bytes)
        return msgspec.json.decode(answer.body)["answer"]


@with_bench()
async def test_a_path_is_not_given_up_while_a_fork_is_made_there(bench: Bench) -> None:
    async def says_yes(name: str, question: Any) -> bool:
        assert (name, question) == ("leads", ["there/fork", HERE])
        return True

    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def create(path: str, request: Request) -> Response:
        begun.set()
        await may_go_on.wait()
        await bench.create(path)
        return Response(201, [])

    place = Place(bench, says_yes)
    request = Request("PUT", b"/v1/stream/there/fork")
    making = asyncio.create_task(place.homes.as_guest(create, "there/fork", request))
    await begun.wait()
    making.cancel()  # the connection of the home is gone
    await asyncio.wait([making])
    released = asyncio.create_task(place.asked("release", "there/fork"))
    may_go_on.set()
    assert await released is False
    assert place.links.guests == {"there/fork": THERE}


@with_bench()
async def test_a_path_that_leads_elsewhere_leaves_nothing_behind(bench: Bench) -> None:
    async def says_no(name: str, question: Any) -> bool:
        return False

    async def create(path: str, request: Request) -> Response:
        raise AssertionError("it is created")

    place = Place(bench, says_no)
    request = Request("PUT", b"/v1/stream/there/fork")
    with pytest.raises(NotOwner):
        await place.homes.as_guest(create, "there/fork", request)
    assert place.links.guests == {}


@with_bench()
async def test_a_path_leads_nowhere_from_the_moment_its_link_may_go(bench: Bench) -> None:
    answers: list[bool] = []

    async def release(name: str, question: Any) -> bool:
        assert (name, question) == ("release", "fork")
        answers.append(await place.asked("leads", ["fork", THERE]))
        return is_free

    place = Place(bench, release)
    await place.links.set(LINK, "fork", THERE)
    assert await place.asked("leads", ["fork", THERE]) is True
    assert await place.asked("leads", ["fork", "another"]) is False
    for is_free in (False, True):
        assert await place.asked("unlink", "fork") is is_free
        assert await place.asked("leads", ["fork", THERE]) is not is_free
    assert answers == [False, False]
    assert place.links.links == {}
