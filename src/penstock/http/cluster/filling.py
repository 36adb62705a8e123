"""Bodies that their owner has only planned: this node reads them from extents and from the fresh
bytes that it has kept, and asks the owner for the rest.

What was durable never changes, so that nothing here can be stale. Bytes that are not there any more
are asked of the owner, who says why; a body without them is cut, never sent with a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import msgspec
from prometheus_client.core import CounterMetricFamily

from penstock.errors import (
    ClusterUnavailable,
    ColdDataUnavailable,
    Damaged,
    NotOwner,
    PenstockError,
)
from penstock.http.bodies import PIECE_BYTES, VIEWS_BYTES
from penstock.http.cluster.hold import held
from penstock.http.cluster.owners import NOWHERE, address_of, shard_number
from penstock.http.forwarding.control import PREFIX
from penstock.http.forwarding.owners import Peer, unowned
from penstock.http.forwarding.plans import (
    HEADER,
    Fresh,
    InExtent,
    Inline,
    Plan,
    blocks,
    decode_plan,
    is_planned,
    without_plan,
)
from penstock.http.forwarding.relay import CutOff
from penstock.http.forwarding.tails import BYTES
from penstock.http.message import RangeBody, Response

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.http.forwarding.forwarder import Forwarder
    from penstock.log.cluster.extents import ExtentCache
    from penstock.log.cluster.node import Node
    from penstock.log.disk.segment import SegmentInfo

RUN_BYTES: Final = 1024 * 1024
"""Fresh bytes that an owner is asked for at a time."""

_FAILED: Final = (ClusterUnavailable, ColdDataUnavailable, Damaged)


class Filler:
    """Reads what other nodes plan. Belongs to the event loop."""

    def __init__(
        self, node: Node, forwarder: Forwarder, extents: ExtentCache, *, hold_s: float
    ) -> None:
        self._node = node
        self._forwarder = forwarder
        self.extents = extents
        self._hold_s = hold_s
        self._asking: dict[tuple[int, int, int], asyncio.Task[bytes]] = {}
        self.read_bytes = 0
        self.fetched_bytes = 0

    def metrics(self) -> list[Metric]:
        return [
            CounterMetricFamily(
                "penstock_cluster_read_bytes",
                "Bytes of other nodes' streams that this node has read itself.",
                value=self.read_bytes,
            ),
            CounterMetricFamily(
                "penstock_cluster_fetched_bytes",
                "Bytes in these responses that came from the owner of the stream.",
                value=self.fetched_bytes,
            ),
        ]

    async def fill(self, response: Response) -> Response | None:
        """See `Fills`. The first bytes are here when this returns."""
        if not is_planned(response):
            return response
        assert isinstance(response.body, bytes)
        try:
            body = PlannedBody(self, response.body)
            await body.begin()
        except (ValueError, PenstockError):
            return None
        return Response(response.status, without_plan(response.headers), body)

    async def ask(self, plan: Plan, start: int, end: int) -> bytes:
        """Return bytes from the owner of a stream, whoever that is by now; those who ask at the
        same time share one question. NotOwner if it has them no more."""
        key = (plan.id, start, end)
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._ask(plan, start, end))
            task.add_done_callback(lambda done: self._asked(key, done))
        return await asyncio.shield(task)

    def _asked(self, key: tuple[int, int, int], task: asyncio.Task[bytes]) -> None:
        del self._asking[key]
        if not task.cancelled():
            task.exception()  # retrieved: whoever waited for it may have gone

    async def _ask(self, plan: Plan, start: int, end: int) -> bytes:
        question = {"path": plan.path, "id": plan.id, "start": start, "end": end}
        content = msgspec.json.encode(question)
        shard = shard_number(plan.shard)

        async def send() -> Response:
            address = address_of(self._node, shard)
            if address == NOWHERE:
                error = self._node.not_owner(shard)
                error.is_unsent = True
                raise error
            peer = Peer(plan.shard, address)
            try:
                answer = await self._forwarder.ask(peer, "POST", PREFIX + BYTES.encode(), content)
                return await _whole(answer)
            except NotOwner as error:
                error.is_unsent = True  # To read twice does no harm: the next owner is asked.
                raise

        response = await held(self._node, self._hold_s, send)
        data = response.body
        if response.status != 200 or not isinstance(data, bytes) or len(data) != end - start:
            raise unowned("The owner of the stream does not have these bytes any more.")
        return data


async def _whole(response: Response) -> Response:
    """Return a response when all of its body is here; NotOwner if the owner goes away before."""
    body = response.body
    if isinstance(body, RangeBody):
        try:
            data = b"".join([piece async for piece in body.pieces()])
        except CutOff:
            raise unowned("The owner of the stream went away.") from None
        response = Response(response.status, response.headers, data)
    return response


class Step:
    """A piece of a body that lies in one place; `data` are its bytes, once they are held."""

    __slots__ = ("data", "info", "start", "stop", "stream_id")

    def __init__(
        self,
        start: int,
        stop: int,
        stream_id: int = 0,
        info: SegmentInfo | None = None,
        data: memoryview | None = None,
    ) -> None:
        self.start = start
        """Its position in the stream; of bytes that came with the plan nobody asks for it."""
        self.stop = stop
        self.stream_id = stream_id
        self.info = info
        """The extent that it is in; None for a fresh block."""
        self.data = data


class PlannedBody(RangeBody):
    """A body by its plan, read piece by piece while it is sent."""

    __slots__ = ("_at", "_filler", "_index", "_plan", "_raw", "_steps")

    def __init__(self, filler: Filler, raw: bytes) -> None:
        self._filler = filler
        self._raw = raw
        self._plan, inline = decode_plan(raw)
        self.length = self._plan.length
        self._steps = _steps(self._plan, inline)
        self._index = 0
        self._at = 0  # in the step
        filler.fetched_bytes += len(inline)

    def replanned(self, response: Response) -> Response:
        """Return the response as the owner has sent it, for another node."""
        return Response(response.status, [*response.headers, (HEADER, b"1")], self._raw)

    async def begin(self) -> None:
        """Have the first bytes that do not come with the plan ready."""
        for index, step in enumerate(self._steps):
            if step.data is None:
                if self._now(step) is None:
                    await self._load(index)
                return

    def parts(self) -> list[bytes | memoryview] | None:
        views: list[bytes | memoryview] = []
        size = 0
        while size < VIEWS_BYTES and self._index < len(self._steps):
            view = self._now(self._steps[self._index])
            if view is None:
                break
            view = view[self._at :]
            views.append(view)
            size += len(view)
            self._step()
        return views or None

    async def pieces(self) -> AsyncIterator[bytes]:
        while self._index < len(self._steps):
            step = self._steps[self._index]
            view = self._now(step)
            if view is None:
                view = await self._load(self._index)
            piece = view[self._at : self._at + PIECE_BYTES]
            self._at += len(piece)
            if self._at == len(view):
                self._step()
            else:
                step.data = view  # the cache may let go of it
            yield bytes(piece)

    def _step(self) -> None:
        self._steps[self._index].data = None
        self._index += 1
        self._at = 0

    def _now(self, step: Step) -> memoryview | None:
        """Return the bytes of a step, if they are in memory."""
        if step.data is not None:
            return step.data
        extents, info = self._filler.extents, step.info
        if info is None:
            view = extents.fresh(step.stream_id, step.start, step.stop)
        else:
            low, high = step.start - info.base, step.stop - info.base
            view = extents.view_now(step.stream_id, info, low, high)
        if view is not None:
            self._filler.read_bytes += len(view)
            step.data = view
        return view

    async def _load(self, index: int) -> memoryview:
        """Return the bytes of a step that are not in memory."""
        step, filler = self._steps[index], self._filler
        info = step.info
        if info is None:
            return await self._load_fresh(index)
        try:
            body, _ = await filler.extents.load(step.stream_id, info)
        except _FAILED:
            # It was trimmed, or this node does not reach it: the owner knows.
            data = await filler.ask(self._plan, step.start, step.stop)
            filler.fetched_bytes += len(data)
            step.data = memoryview(data)
        else:
            step.data = memoryview(body)[step.start - info.base : step.stop - info.base]
            filler.read_bytes += len(step.data)
        return step.data

    async def _load_fresh(self, index: int) -> memoryview:
        """Ask the owner for a run of blocks that are not here, and keep them."""
        filler, steps = self._filler, self._steps
        first = steps[index]
        run = [first]
        for step in steps[index + 1 :]:
            is_next = step.info is None and step.start == run[-1].stop
            if not is_next or step.stop - first.start > RUN_BYTES or self._now(step) is not None:
                break
            run.append(step)
        data = await filler.ask(self._plan, first.start, run[-1].stop)
        filler.fetched_bytes += len(data)
        for step in run:
            block = data[step.start - first.start : step.stop - first.start]
            filler.extents.keep_fresh(step.stream_id, step.start, block)
            step.data = memoryview(block)
        assert first.data is not None
        return first.data


def _steps(plan: Plan, inline: memoryview) -> list[Step]:
    """Return a plan piece by piece; ValueError if they are not all of it."""
    steps: list[Step] = []
    at = 0
    for part in plan.parts:
        if isinstance(part, InExtent):
            info = part.info
            step = Step(info.base + part.low, info.base + part.high, part.stream_id, info)
            steps.append(step)
        elif isinstance(part, Fresh):
            steps += [Step(*block, part.stream_id) for block in blocks(part.start, part.end)]
        else:
            assert isinstance(part, Inline)
            steps.append(Step(0, part.size, data=inline[at : at + part.size]))
            at += part.size
    if sum(step.stop - step.start for step in steps) != plan.length:
        raise ValueError("no plan: its parts do not make its length")
    return steps
