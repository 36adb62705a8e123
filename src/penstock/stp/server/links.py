"""Follows the tables that the records of a mirror name, as deep as its operator allows.

A record names a table if it is a State URL, or a JSON object whose `surl` is one. Which tables are
followed is always what the records say now: a link that is gone ends its following. Knows mirrors;
nothing of how rows are read.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.backoff import Backoff
from penstock.errors import (
    EgressFailed,
    FollowNotFound,
    InvalidContentType,
    PenstockError,
    TableNotFound,
)
from penstock.protocol.outbound import Target, parse_url, shown_url
from penstock.stp.content_type import MEDIA, parse_content_type
from penstock.stp.notify import check_surl
from penstock.stp.rows import Row, RowDecoder
from penstock.stp.server.peers import mirror_path

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.stp.server.mirrors import Mirrors
    from penstock.stp.server.peers import Peers
    from penstock.stp.server.registry import Follow, Registry
    from penstock.stp.server.tables import TableDirectory

REMEMBERED: Final = 10
"""Links that are remembered of one table, for each that may be followed."""

_log = logging.getLogger("penstock.stp")


def link_of(record: str) -> str | None:
    """Return the State URL that a record names, if it names one."""
    text: object = record
    if record[:1] in ("{", '"'):
        try:
            value = msgspec.json.decode(record)
        except msgspec.DecodeError:
            return None
        text = value.get("surl") if isinstance(value, dict) else value
    if not isinstance(text, str) or not text.startswith(("http://", "https://")):
        return None
    try:
        return check_surl(text, parse_url).url
    except PenstockError:
        return None


class Links:
    """The links of all mirrors that follow them, and one task that acts on changes."""

    def __init__(
        self,
        mirrors: Mirrors,
        registry: Registry,
        tables: TableDirectory,
        egress: Egress,
        peers: Peers,
        settings: Settings,
    ) -> None:
        self._mirrors = mirrors
        self._registry = registry
        self._tables = tables
        self._egress = egress
        self._peers = peers
        self._settings = settings
        self._backoff = Backoff(
            base_s=settings.follow_retry_s, cap_s=settings.follow_retry_max_s, jitter=0.5
        )
        # By table: the link of each key.
        self._links: dict[str, dict[str, str]] = {}
        # By table that has still to be read: the keys that have changed since.
        self._unread: dict[str, set[str]] = {}
        self._refused: dict[str, str] = {}
        self._attempts: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._has_news = False
        self._is_paused = False
        self._closed = False

    def pause(self) -> None:
        """Act on nothing until `resume`: not all mirrors are there yet."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._wake()

    def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    def begin(self, follow: Follow) -> None:
        """Follow the links of a mirror: those of its rows, and of all that come."""
        if follow.links > 0 and follow.table not in self._links:
            self._links[follow.table] = {}
            self._unread[follow.table] = set()
            self._wake()

    def end(self, table: str) -> None:
        """Forget the links of a mirror that follows none any more."""
        self._unread.pop(table, None)
        if self._links.pop(table, None) is not None:
            self._wake()

    def changed(self, table: str, rows: Iterable[Row]) -> None:
        """Take in rows that were added to a mirror."""
        links = self._links.get(table)
        if links is None:
            return
        unread = self._unread.get(table)
        before = dict(links)
        for row in rows:
            if unread is not None:
                unread.add(row.key)
            self._set(links, row)
        if links != before:
            self._wake()

    def status(self, follow: Follow) -> dict[str, object]:
        """Return what became of the links of a mirror, for people."""
        surls = set(self._links.get(follow.table, {}).values())
        return {
            "depth": follow.links,
            "followed": sorted(
                each.table for each in self._registry.follows.values() if each.surl in surls
            ),
            "refused": {surl: text for surl, text in self._refused.items() if surl in surls},
        }

    def _set(self, links: dict[str, str], row: Row) -> None:
        link = link_of(row.record) if row.action == "+" else None
        if link is None:
            links.pop(row.key, None)
        elif row.key in links or len(links) < REMEMBERED * self._settings.follow_links_max:
            links[row.key] = link

    # -- the task

    def _wake(self) -> None:
        self._has_news = True
        is_running = self._task is not None and not self._task.done()
        if self._is_paused or self._closed or is_running:
            return
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(_log_failure)

    async def _run(self) -> None:
        while self._has_news:
            self._has_news = False
            # All are read before any is let go, or a start would end what others still name.
            for table in list(self._unread):
                await self._read(table)
            await self._reconcile()

    async def _read(self, table: str) -> None:
        """Read the links of the rows that a mirror has already, after a restart for example."""
        try:
            view = self._tables.find(table, touch=False)
        except TableNotFound:
            rows: list[Row] = []  # It has no row yet.
        else:
            decoder = RowDecoder(escape=view.table.escape)
            rows = []
            async for piece in view.active_rows(await view.active()):
                rows += [row for row in decoder.feed(piece) if link_of(row.record)]
        links, since = self._links.get(table), self._unread.pop(table, set())
        for row in rows:
            if links is not None and row.key not in since:
                self._set(links, row)

    async def _reconcile(self) -> None:
        """Follow what is linked and not followed yet; let go of what is linked no more."""
        linked: set[str] = set()
        for table, links in list(self._links.items()):
            for surl in dict.fromkeys(links.values()):
                parent = self._registry.follows.get(table)
                if parent is None:
                    break
                linked.add(surl)
                is_followed = any(each.surl == surl for each in self._registry.follows.values())
                if not is_followed and surl not in self._refused:
                    await self._follow(parent, surl)
        self._refused = {surl: text for surl, text in self._refused.items() if surl in linked}
        self._attempts = {surl: n for surl, n in self._attempts.items() if surl in linked}
        if self._has_news:
            return  # What is linked may have changed meanwhile.
        for follow in list(self._registry.follows.values()):
            if follow.root and follow.surl not in linked:
                try:
                    await self._mirrors.unfollow(follow.table)
                except FollowNotFound:
                    pass  # Somebody else was faster.

    async def _follow(self, parent: Follow, surl: str) -> None:
        """Follow one link, if everything allows it."""
        root = parent.root or parent.table
        target = parse_url(surl)
        try:
            reason = self._refusal(parent, root, target)
            if not reason:
                reason = await self._probe(target)
            if not reason:
                await self._mirrors.follow(
                    mirror_path(target), target, base=parent.base, links=parent.links - 1, root=root
                )
        except EgressFailed as error:
            reason = error.detail
            self._retry_later(surl)
        except PenstockError as error:
            reason = error.detail
        if reason:
            self._refused[surl] = reason
            shown = shown_url(surl)
            _log.warning("%s names %s, which is not followed: %s", parent.table, shown, reason)

    def _refusal(self, parent: Follow, root: str, target: Target) -> str:
        own = parse_url(parent.base).origin if parent.base else ""
        if target.origin in (own, self._mirrors.public_origin):
            return "It is a table of this server."
        if target.host != parent.host and not self._peers.trusts(target):
            return f"{target.host} is not among the peers of this server; add it to stp_peers."
        count = sum(each.root == root for each in self._registry.follows.values())
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
            self._wake()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("following links ended", exc_info=task.exception())
