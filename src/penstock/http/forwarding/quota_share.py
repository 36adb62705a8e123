"""The quotas of an engine that shares them with others: it uses what their home has granted, and
asks for more when that is used.

A grant is used without a word to anybody. What is asked for meanwhile goes with the next question.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.backoff import Backoff
from penstock.errors import NotOwner, PenstockError, QuotaExceeded
from penstock.http.forwarding.owners import unowned
from penstock.http.forwarding.quota_home import (
    RECALL_S,
    Ask,
    Granted,
    Need,
    QuotaHome,
    Recall,
    Recalled,
)

if TYPE_CHECKING:
    from penstock.http.forwarding.control import Control
    from penstock.http.forwarding.owners import Owners, Peer
    from penstock.http.forwarding.peers import Peers
    from penstock.log.engine import Engine
    from penstock.log.quotas import Amount, Quotas, Usage

NEEDS_MAX: Final = 1000
"""Requests of clients that are asked for at a time."""

_backoff = Backoff(base_s=0.05, cap_s=2.0, jitter=0.5)


class _Waiter(NamedTuple):
    usages: Sequence[Usage]
    more: Amount
    future: asyncio.Future[None]

    @property
    def is_granted(self) -> bool:
        return all(usage.is_granted(*self.more) for usage in self.usages)


class QuotaShare:
    """One part's share of the quotas; `ask` asks their home. `quotas` is None if there are none."""

    def __init__(
        self, quotas: Quotas | None, name: str, ask: Callable[[Ask], Awaitable[Granted]]
    ) -> None:
        self._quotas = quotas
        self._name = name
        self._ask = ask
        self._life = secrets.token_hex(8)
        self._epoch = ""
        self._turn = 0
        """How often the home was another."""
        self._begins = False
        self._recalled = 0
        """The number of the last recall."""
        self._waiting: list[_Waiter] = []
        self._futures: set[asyncio.Future[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None
        if quotas is not None:
            quotas.share(self._room, self._counted)

    def close(self) -> None:
        """Refuse whatever waits: this part is stopping."""
        for task in (self._task, self._announcing):
            if task is not None:
                task.cancel()
        for future in list(self._futures):
            if not future.done():
                future.set_exception(unowned("The quotas cannot be checked any more."))

    def _counted(self) -> None:
        """What was granted for new streams is nothing now: all of them are known."""
        self._life = secrets.token_hex(8)
        for usage in self._usages():
            usage.granted = usage.used
        self.announce()

    def announce(self) -> asyncio.Task[None] | None:
        """Tell the home what is used here, until it has heard it."""
        if self._quotas is None:
            return None
        if self._announcing is not None:
            self._announcing.cancel()
        self._announcing = asyncio.get_running_loop().create_task(self._announce())
        return self._announcing

    async def _announce(self) -> None:
        for attempt in itertools.count(1):
            try:
                await self._granted([])
            except PenstockError:
                await asyncio.sleep(_backoff.wait_s(attempt, random.random()))
            else:
                return

    # -- asking

    async def _room(self, usages: Sequence[Usage], more: Amount) -> None:
        """Have more granted. Somebody else may use it first: then it is asked for again."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        self._waiting.append(_Waiter(usages, more, future))
        if self._task is None:
            self._task = loop.create_task(self._run())
        await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                waiters, self._waiting = self._waiting[:NEEDS_MAX], self._waiting[NEEDS_MAX:]
                await self._settle([each for each in waiters if not each.future.done()])
        finally:
            self._task = None

    async def _settle(self, waiters: list[_Waiter]) -> None:
        asking = [each for each in waiters if not each.is_granted]
        refused: dict[int, str] = {}
        failure: PenstockError | None = None
        if asking:
            try:
                refused = await self._granted(asking)
            except NotOwner as error:
                failure = unowned(f"The quotas cannot be checked now. {error.detail}")
            except PenstockError as error:
                failure = error
        for index, waiter in enumerate(asking):
            if waiter.future.done():
                continue
            if failure is not None:
                waiter.future.set_exception(failure)
            elif index in refused:
                waiter.future.set_exception(QuotaExceeded(refused[index]))
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_result(None)

    async def _granted(self, waiters: list[_Waiter]) -> dict[int, str]:
        """Ask for all that is waited for; return what is refused."""
        while True:
            life, turn = self._life, self._turn
            answer = await self._ask(self._question(waiters))
            if (life, turn) != (self._life, self._turn):
                continue  # It may be the answer of a home that is none any more.
            if answer.number == 0:
                self._enter(answer.epoch)
                self._begins = True
                continue
            self._begins = False
            if answer.number > self._recalled:
                for usage in self._usages():
                    usage.granted = answer.granted.get(usage.rule, usage.granted)
            return answer.refused

    def _question(self, waiters: list[_Waiter]) -> Ask:
        usages = self._usages()
        if self._begins:
            for usage in usages:
                usage.granted = usage.used
        return Ask(
            part=self._name,
            life=self._life,
            is_counted=self._is_counted,
            epoch=self._epoch,
            begins=self._begins,
            quotas={usage.rule: usage.quota for each in waiters for usage in each.usages},
            used={usage.rule: usage.used for usage in usages},
            needs=[Need([usage.rule for usage in each.usages], each.more) for each in waiters],
        )

    def _usages(self) -> list[Usage]:
        return [] if self._quotas is None else self._quotas.usages

    @property
    def _is_counted(self) -> bool:
        return self._quotas is None or self._quotas.is_ready

    def _enter(self, epoch: str) -> None:
        """Take what a home says from now on, and nothing that another one has said."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._turn += 1
            self._recalled = 0

    # -- being asked

    def recall(self, recall: Recall) -> Recalled:
        """Keep no more than is used."""
        is_new = recall.epoch != self._epoch
        self._enter(recall.epoch)
        self._recalled = max(self._recalled, recall.number)
        for usage in self._usages():
            if is_new or usage.rule in recall.rules:
                usage.granted = usage.used
        granted = {usage.rule: usage.granted for usage in self._usages()}
        return Recalled(self._life, self._is_counted, granted)


class SharedQuotas:
    """The share of this part, and the home of all shares if this is the part that keeps what there
    is once (`first` is None)."""

    def __init__(
        self,
        engine: Engine,
        owners: Owners,
        peers: Peers,
        control: Control,
        first: Peer | None,
    ) -> None:
        self._owners = owners
        self._peers = peers
        self._home: QuotaHome | None = None
        if first is None:
            names = [owners.name, *(peer.name for peer in owners.peers())]
            self._home = QuotaHome(names, self._recall, engine.is_current)
            control.add("quota", self._answer)
            ask: Callable[[Ask], Awaitable[Granted]] = self._home.ask
        else:
            ask = partial(self._ask_first, first)
        self._share = QuotaShare(engine.quotas, owners.name, ask)
        control.add("quota-recall", self._answer_recall)

    async def join(self) -> None:
        """Say what is used here, before clients are served; if the home can hear it."""
        if self._home is not None:
            self._home.start()
        announcing = self._share.announce()
        if announcing is not None:
            await asyncio.wait([announcing], timeout=RECALL_S)

    def close(self) -> None:
        self._share.close()
        if self._home is not None:
            self._home.close()

    async def _ask_first(self, first: Peer, ask: Ask) -> Granted:
        answer = await self._peers.ask(first, "quota", msgspec.to_builtins(ask))
        return msgspec.convert(answer, Granted, strict=False)

    async def _answer(self, question: Any) -> Any:
        assert self._home is not None
        return msgspec.to_builtins(await self._home.ask(msgspec.convert(question, Ask)))

    async def _recall(self, name: str, recall: Recall) -> Recalled:
        peer = self._owners.peer(name)
        if peer is None:
            return self._share.recall(recall)
        answer = await self._peers.ask(peer, "quota-recall", msgspec.to_builtins(recall))
        return msgspec.convert(answer, Recalled)

    async def _answer_recall(self, question: Any) -> Any:
        return msgspec.to_builtins(self._share.recall(msgspec.convert(question, Recall)))
