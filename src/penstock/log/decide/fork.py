"""Decides about forks: where they leave their source, and what they take from it.

What is before the fork point stays where it is, in the source; the fork refers to it, and the
source counts who does.
"""

from __future__ import annotations

import asyncio

from penstock.errors import (
    ForkSourceDeleted,
    ForkTooDeep,
    InvalidForkOffset,
    OffsetBeyondTail,
    PathBlocked,
    PenstockError,
    StreamExists,
)
from penstock.log import mutations
from penstock.log.decide.context import gone, not_found
from penstock.log.decide.delete import Removing
from penstock.log.lineage import ancestors, source_of, token, trimmed
from penstock.log.ranges import check_generation
from penstock.log.requests import Created, Fork, Place
from penstock.log.stream import ForkPoint, Stream
from penstock.protocol.lifecycle import ForkConfig, create_matches, fork_config
from penstock.protocol.offsets import NOW, Offset, parse_offset


class Forking(Removing):
    def fork(
        self, path: str, fork: Fork, wanted: ForkConfig, body: bytes, *, closed: bool
    ) -> asyncio.Future[Created]:
        """Create a stream that begins with what another has, up to an offset of that."""
        now = self._clock.now_us()
        existing = self._target(path, now)
        if existing is not None and existing.pending_soft_deleted:
            return self._refuse(existing, path_blocked(path))
        if existing is not None and not existing.deleting:
            if existing.fork is None or existing.fork.source_path != fork.source:
                return self._refuse(existing, _is_other(existing, fork))
            source = source_of(existing)
        else:
            found = self._source(fork.source, now)
            if isinstance(found, asyncio.Future):
                return found
            source = found
        try:
            place = self._known_place(source, fork)
        except PenstockError as error:
            return self._refuse(source, error)
        if place is not None:
            return self._fork_at(path, source, place, wanted, body, closed)
        task = self._loop.create_task(self._fork_later(path, source, fork, wanted, body, closed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _fork_later(
        self, path: str, source: Stream, fork: Fork, wanted: ForkConfig, body: bytes, closed: bool
    ) -> Created:
        """The same where the log has to be looked into. What is found there never changes."""
        assert fork.offset is not None
        position = await self._ranges.position(source, fork.offset)
        ordinal = await self._ranges.ordinal(source, position)
        if fork.sub_offset:
            ordinal += fork.sub_offset
            if ordinal > source.count:
                raise _overshoot(fork)
            position = await self._ranges.seek(source, ordinal)
        place = Place(fork.source, position, ordinal, is_default=False)
        return await self._fork_at(path, source, place, wanted, body, closed)

    def _known_place(self, source: Stream, fork: Fork) -> Place | None:
        """Where the fork begins, if that can be said without looking into the log."""
        if fork.offset is None:
            if fork.sub_offset:
                raise _overshoot(fork)
            return Place(fork.source, source.pending_tail, source.pending_count, is_default=True)
        parsed = parse_offset(fork.offset)
        if parsed == NOW:
            position = source.pending_tail
        elif not isinstance(parsed, Offset) or parsed == (0, 0):
            position = source.pending_earliest
        else:
            check_generation(source, parsed)
            position = parsed.position
        if position > source.pending_tail:
            raise OffsetBeyondTail(
                f"{fork.offset} is beyond the tail of {fork.source!r}, "
                f"{token(source, source.pending_tail)}; fork at an offset that it has"
            )
        if position < source.pending_earliest:
            raise trimmed(source, fork.offset)
        if not source.is_json:
            if position + fork.sub_offset > source.pending_tail:
                raise _overshoot(fork)
            return Place(fork.source, position + fork.sub_offset, 0, is_default=False)
        if fork.sub_offset:
            return None
        if position == source.pending_tail:
            return Place(fork.source, position, source.pending_count, is_default=False)
        if position == source.pending_earliest:
            ordinal = source.pending_earliest_ordinal
            return Place(fork.source, position, ordinal, is_default=False)
        return None

    def _fork_at(
        self,
        path: str,
        source: Stream,
        place: Place,
        wanted: ForkConfig,
        body: bytes,
        closed: bool,
    ) -> asyncio.Future[Created]:
        now = self._clock.now_us()
        existing = self._target(path, now)
        if existing is not None and existing.pending_soft_deleted:
            return self._refuse(existing, path_blocked(path))
        if existing is not None and not existing.deleting:
            return self._fork_again(existing, place, wanted, closed, now)
        found = self._source(place.source, now)
        if isinstance(found, asyncio.Future):
            return found
        if found is not source:
            raise not_found(place.source)
        try:
            return self._new_fork(path, existing, source, place, wanted, body, closed, now)
        except PenstockError as error:
            return self._refuse(source, error)

    def _new_fork(
        self,
        path: str,
        existing: Stream | None,
        source: Stream,
        place: Place,
        wanted: ForkConfig,
        body: bytes,
        closed: bool,
        now: int,
    ) -> asyncio.Future[Created]:
        config = fork_config(source.config, wanted)
        if place.position < source.pending_earliest:
            raise trimmed(source)
        depth = sum(1 for _ in ancestors(source))
        if depth > self._settings.fork_depth_max:
            raise ForkTooDeep(
                f"{place.source!r} is the end of a chain of {depth - 1} forks, as long as "
                "fork_depth_max allows; fork one that is nearer to the first, or raise the setting"
            )
        self._admit(len(body))
        payload, count = self._frame(body, in_messages=source.is_json, allow_empty=True)
        ordinal = place.ordinal if source.is_json else 0
        point = ForkPoint(source.id, source.path, place.position, ordinal)
        stream = Stream(self.store.next_id(), path, config, now, fork=point)
        stream.source = source
        stream.pending_earliest = source.pending_earliest
        stream.pending_earliest_ordinal = source.pending_earliest_ordinal
        stream.pending_tail += len(payload)
        stream.pending_count += count
        stream.pending_closed = closed
        stream.previous = existing
        source.pending_forks += 1
        self._streams.add(stream)
        offset = token(stream, stream.pending_tail)
        return self._submit(
            mutations.Create(
                stream,
                Created(offset, True, closed, config.content_type),
                payload=payload,
                count=count,
                closed=closed,
                replaces=None,
                source=source,
            )
        )

    def _fork_again(
        self, existing: Stream, place: Place, wanted: ForkConfig, closed: bool, now: int
    ) -> asyncio.Future[Created]:
        """The same fork once more: 200. Without an offset any fork of that source is meant."""
        point = existing.fork
        try:
            if point is None or point.source_path != place.source:
                raise _is_other(existing, place)
            if not place.is_default and place.position != point.position:
                raise StreamExists(
                    f"The fork at {existing.path!r} leaves its source at "
                    f"{token(existing, point.position)}, not where the request says. Send its "
                    "Stream-Fork-Offset, use another path, or delete the fork first."
                )
            config = fork_config(source_of(existing).config, wanted)
            create_matches(existing.config, existing.pending_closed, config, closed)
        except PenstockError as error:
            return self._refuse(existing, error)
        self._streams.touch(existing, now)
        offset = token(existing, existing.pending_tail)
        content_type = existing.config.content_type
        return self._answer(existing, Created(offset, False, existing.pending_closed, content_type))

    def _target(self, path: str, now: int) -> Stream | None:
        """What is at the path that the fork is to have. An expired stream is on its way out."""
        existing = self._streams.pending(path)
        if (
            existing is not None
            and not existing.deleting
            and self._streams.is_expired(existing, now)
        ):
            self._check_running()
            self.expire(existing)
        return existing

    def _source(self, path: str, now: int) -> Stream | asyncio.Future[Created]:
        source = self._target(path, now)
        if source is None:
            raise not_found(path)
        if source.pending_soft_deleted:
            return self._refuse(
                source,
                ForkSourceDeleted(
                    f"{path!r} was deleted and is kept only for its forks: fork one of those"
                ),
            )
        if source.deleting:
            return self._refuse(source, gone(source))
        return source


def path_blocked(path: str) -> PathBlocked:
    return PathBlocked(
        f"the stream at {path!r} was deleted, but forks still read from it: delete those first, or "
        "use another path"
    )


def _is_other(existing: Stream, wanted: Fork | Place) -> StreamExists:
    point = existing.fork
    what = "no fork" if point is None else f"a fork of {point.source_path!r}"
    return StreamExists(
        f"The stream at {existing.path!r} is {what}; the request wants a fork of "
        f"{wanted.source!r}. Use another path, or delete the stream first."
    )


def _overshoot(fork: Fork) -> InvalidForkOffset:
    return InvalidForkOffset(
        f"Stream-Fork-Sub-Offset {fork.sub_offset} goes beyond the end of {fork.source!r}: it "
        "counts messages of a JSON stream, bytes of any other, from Stream-Fork-Offset on."
    )
