"""Decides how a stream ends: at once, or only once the last fork that reads from it is gone.

One record ends a fork and every soft-deleted stream that it was the last fork of.
"""

from __future__ import annotations

import asyncio

from penstock.log import mutations
from penstock.log.decide.context import Decisions, gone, not_found
from penstock.log.stream import Stream


class Removing(Decisions):
    def delete(self, path: str) -> asyncio.Future[None]:
        self._check_running()
        now = self._clock.now_us()
        stream = self._living(path, now)
        if stream.deleting:
            return self._refuse(stream, gone(stream))
        return self._delete(stream, now, expired=False)

    def expire(self, stream: Stream) -> None:
        if stream.deleting or stream.deleted or self._stopping:
            return
        self.stats.expired += 1
        future = self._delete(stream, self._clock.now_us(), expired=True)
        future.add_done_callback(_ignore)

    def _living(self, path: str, now: int) -> Stream:
        """The stream that decisions are made on; it may be on its way out, but has not expired."""
        stream = self._streams.pending(path)
        if stream is None:
            raise not_found(path)
        if not stream.deleting and self._streams.is_expired(stream, now):
            self.expire(stream)
            raise gone(stream)
        return stream

    def _delete(self, stream: Stream, now: int, *, expired: bool) -> asyncio.Future[None]:
        stream.deleting = True
        if stream.pending_forks:
            stream.pending_soft_deleted = True
            return self._submit(
                mutations.Delete(stream, None, time_us=now, expired=expired, soft=True)
            )
        cascade: list[Stream] = []
        left = stream.source
        while left is not None:
            left.pending_forks -= 1
            if left.pending_forks or not left.pending_soft_deleted:
                break
            # Nobody may be told of its end before that is durable.
            left.pending_soft_deleted = False
            left.in_flight += 1
            cascade.append(left)
            left = left.source
        return self._submit(
            mutations.Delete(
                stream, None, time_us=now, expired=expired, cascade=cascade, released=left
            )
        )


def _ignore(future: asyncio.Future[None]) -> None:
    future.exception()
