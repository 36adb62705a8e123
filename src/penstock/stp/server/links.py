"""Follows the tables that the records of mirrors name, as deep as their operator allows.

Which tables are followed is always what the records say now: a link that is gone ends its
following. One process decides for the whole server; where the mirrors are is not known here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.backoff import Backoff
from penstock.errors import (
    ClusterUnavailable,
    EgressFailed,
    FollowNotFound,
    InvalidContentType,
    NotOwner,
    PenstockError,
)
from penstock.protocol.outbound import Target, parse_url, shown_url
from penstock.stp.content_type import MEDIA, parse_content_type
from penstock.stp.server.peers import mirror_path

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.stp.server.mirrors import Mirrors
    from penstock.stp.server.peers import Peers
    from penstock.stp.server.registry import Follow, Registry

_log = logging.getLogger("penstock.stp")
_again: Final = Backoff(base_s=0.1, cap_s=5.0, jitter=0.5)
"""How long to wait for mirrors that cannot be reached."""


class View(NamedTuple):
    """What is followed, by table, and the SURLs that each of these tables names."""

    follows: Mapping[str, Follow]
    named: Mapping[str, Iterable[str]]

    def links(self) -> Iterator[tuple[str, str]]:
        """Return every link, behind the mirror whose records have it."""
        for table, surls in self.named.items():
            if table in self.follows:
                yield from ((table, surl) for surl in surls)


class NewMirror(NamedTuple):
    """The mirror of a table that a record names."""

    table: str
    surl: str
    base: str
    links: int
    root: str


class AllMirrors(Protocol):
    """The mirrors of a server, wherever they are. NotOwner if some of them cannot be reached."""

    async def view(self) -> View:
        """Return what each of them follows and names, one asked after the other."""

    async def moment(self) -> View:
        """Return what all of them followed and named at one moment."""

    async def follow(self, mirror: NewMirror) -> str:
        """Follow a table, or return why it cannot be followed."""

    async def unfollow(self, follow: Follow) -> None:
        """End a following that is still the same."""


class Decider(Protocol):
    """Whoever decides which links are followed."""

    def wake(self) -> None:
        """Decide again: something may have changed."""

    async def status(self, tables: list[str]) -> dict[str, dict[str, Any]]:
        """Return what became of the links of mirrors: `followed` and `refused`."""

    def close(self) -> None: ...


class MirrorsHere:
    """The mirrors of this process."""

    def __init__(self, mirrors: Mirrors, registry: Registry) -> None:
        self._mirrors = mirrors
        self._registry = registry

    async def view(self) -> View:
        # All are read before any is let go, or a start would end what others still name.
        await self._mirrors.records.read_all()
        return View(self._registry.follows, self._mirrors.records.named)

    async def moment(self) -> View:
        return await self.view()

    async def follow(self, mirror: NewMirror) -> str:
        try:
            await self._mirrors.follow(
                mirror.table,
                parse_url(mirror.surl),
                base=mirror.base,
                links=mirror.links,
                root=mirror.root,
            )
        except (NotOwner, ClusterUnavailable):
            raise  # It says nothing of the table.
        except PenstockError as error:
            return error.detail
        return ""

    async def unfollow(self, follow: Follow) -> None:
        try:
            await self._mirrors.unfollow(follow.table, expected=follow)
        except FollowNotFound:
            pass  # Somebody else was faster.


class Links:
    """Decides for all mirrors of a server, in one task that acts on changes."""

    def __init__(
        self,
        mirrors: AllMirrors,
        egress: Egress,
        peers: Peers,
        settings: Settings,
        *,
        public_origin: str,
    ) -> None:
        self._mirrors = mirrors
        self._egress = egress
        self._peers = peers
        self._settings = settings
        self._public_origin = public_origin
        self._backoff = Backoff(
            base_s=settings.follow_retry_s, cap_s=settings.follow_retry_max_s, jitter=0.5
        )
        self._refused: dict[str, str] = {}
        self._attempts: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._has_news = False
        self._closed = False

    def wake(self) -> None:
        self._has_news = True
        is_running = self._task is not None and not self._task.done()
        if not self._closed and not is_running:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(_log_failure)

    def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    async def status(self, tables: list[str]) -> dict[str, dict[str, Any]]:
        view = await self._mirrors.view()
        result: dict[str, dict[str, Any]] = {}
        for table in tables:
            surls = set(view.named.get(table, ()))
            result[table] = {
                "followed": sorted(
                    each.table for each in view.follows.values() if each.surl in surls
                ),
                "refused": {surl: text for surl, text in self._refused.items() if surl in surls},
            }
        return result

    # -- the task

    async def _run(self) -> None:
        failures = 0
        while self._has_news:
            self._has_news = False
            try:
                await self._reconcile()
            except PenstockError as error:
                # Nothing is decided without all mirrors: what others name would be ended.
                failures += 1
                self._has_news = True
                _log.info("links are followed later: %s", error.detail)
                await asyncio.sleep(_again.wait_s(failures, random.random()))
            else:
                failures = 0

    async def _reconcile(self) -> None:
        """Follow what is linked and not followed yet; let go of what is linked no more."""
        for table, surl in self._missing(await self._mirrors.view()):
            # Each by what is followed and named then: it takes a while to try one.
            view = await self._mirrors.view()
            if (table, surl) in self._missing(view):
                await self._follow(view, view.follows[table], surl)
        view = await self._mirrors.moment()
        linked = {surl for _, surl in view.links()}
        self._refused = {surl: text for surl, text in self._refused.items() if surl in linked}
        self._attempts = {surl: n for surl, n in self._attempts.items() if surl in linked}
        for follow in list(view.follows.values()):
            if self._has_news:
                return  # What is linked may have changed meanwhile.
            if follow.root and follow.surl not in linked:
                await self._mirrors.unfollow(follow)

    def _missing(self, view: View) -> dict[tuple[str, str], None]:
        """Return the links that are to be followed, with the tables that name them."""
        followed = {each.surl for each in view.follows.values()}
        return {
            (table, surl): None
            for table, surl in view.links()
            if surl not in followed and surl not in self._refused
        }

    async def _follow(self, view: View, parent: Follow, surl: str) -> None:
        """Follow one link, if everything allows it."""
        root = parent.root or parent.table
        target = parse_url(surl)
        try:
            reason = self._refusal(view, parent, root, target)
            if not reason:
                reason = await self._probe(target)
            if not reason:
                reason = await self._mirrors.follow(
                    NewMirror(mirror_path(target), surl, parent.base, parent.links - 1, root)
                )
        except EgressFailed as error:
            reason = error.detail
            self._retry_later(surl)
        except (NotOwner, ClusterUnavailable):
            raise  # It may be followed or not, which the next look tells.
        except PenstockError as error:
            reason = error.detail
        if reason:
            self._refused[surl] = reason
            shown = shown_url(surl)
            _log.warning("%s names %s, which is not followed: %s", parent.table, shown, reason)

    def _refusal(self, view: View, parent: Follow, root: str, target: Target) -> str:
        own = parse_url(parent.base).origin if parent.base else ""
        if target.origin in (own, self._public_origin):
            return "It is a table of this server."
        if target.host != parent.host and not self._peers.trusts(target):
            return f"{target.host} is not among the peers of this server; add it to stp_peers."
        count = sum(each.root == root for each in view.follows.values())
        if count >= self._settings.follow_links_max:
            return f"{root} leads to as many tables as follow_links_max allows."
        self._egress.check(target.url)
        return ""

    async def _probe(self, target: Target) -> str:
        """Return why a URL is no table; records name other URLs as well."""
        joint = "&" if "?" in target.path else "?"
        headers = {"accept": f"{MEDIA}; charset=utf-8", **self._peers.headers(target)}
        url = f"{target.url}{joint}since_id=-1&timeout=0"
        async with self._egress.stream(url, headers=headers) as answer:
            if answer.status >= 500:
                raise EgressFailed(f"{target.origin} answered {answer.status}.")
            if answer.status != 200:
                return f"{target.origin} answered {answer.status}."
            try:
                parse_content_type(answer.headers.get("content-type", ""))
            except InvalidContentType as error:
                return f"It is no table: {error.detail}"
        return ""

    def _retry_later(self, surl: str) -> None:
        """Try a link again that failed for a reason that may pass."""
        attempts = self._attempts[surl] = self._attempts.get(surl, 0) + 1
        if attempts < self._settings.notify_attempts_max:
            wait_s = self._backoff.wait_s(attempts, random.random())
            asyncio.get_running_loop().call_later(wait_s, self._retry, surl)

    def _retry(self, surl: str) -> None:
        if self._refused.pop(surl, None) is not None:
            self.wake()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("following links ended", exc_info=task.exception())
