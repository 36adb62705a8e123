"""The home of the quotas that several processes, or shards, share: it grants each its part of the
room, so that all of them together are never granted more than a quota.

It keeps nothing: what was granted before it started is what the parts say. Knows no streams.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from penstock.backoff import Backoff
from penstock.errors import PenstockError
from penstock.http.forwarding.owners import unowned
from penstock.log.quotas import Amount, refusal_of
from penstock.protocol.quotas import Quota

RECALL_S: Final = 2.0
"""How long a part may take to say what it uses."""
ROUNDS: Final = 5
"""How often parts are asked again whose answer was overtaken by a grant."""
_NOTHING: Final = Amount(0, 0)

_backoff = Backoff(base_s=0.1, cap_s=5.0, jitter=0.5)


class Need(msgspec.Struct, frozen=True):
    """What one request of a client needs of every rule that it falls under, in their order."""

    rules: list[str]
    more: Amount


class Ask(msgspec.Struct, frozen=True):
    """A part asks for room. `epoch` is the home whose grants it has; with `begins` it has none but
    what it uses. `life` is another after each start of the part, and when it has counted its
    streams: until then it uses what is new since the start."""

    part: str
    life: str
    is_counted: bool
    epoch: str
    begins: bool
    quotas: dict[str, Quota]
    used: dict[str, Amount]
    needs: list[Need]


class Granted(msgspec.Struct, frozen=True):
    """What a part may use from now on, by rules. `refused` are the needs without room, by index. It
    means nothing after a recall of a later `number`; 0 asks the part to begin anew."""

    epoch: str
    number: int
    granted: dict[str, Amount] = {}
    refused: dict[int, str] = {}


class Recall(msgspec.Struct, frozen=True):
    """A part is to keep no more of some rules than it uses; of all rules, if `epoch` is new."""

    epoch: str
    number: int
    rules: list[str]


class Recalled(msgspec.Struct, frozen=True):
    """What a part has left."""

    life: str
    is_counted: bool
    granted: dict[str, Amount]


class _Part:
    """What a part may use at most. `before` is that of its earlier life, while it is not known what
    of that there is: it comes on top of what the part itself says."""

    __slots__ = ("before", "granted", "is_counted", "life", "number")

    def __init__(
        self, life: str, *, is_counted: bool, granted: dict[str, Amount], earlier: _Part | None
    ) -> None:
        self.life = life
        self.is_counted = is_counted
        self.number = 0
        """The number of the last message to it that counts."""
        self.before: dict[str, Amount] = {}
        if earlier is not None and not is_counted:
            self.before = earlier.before if earlier.life == life else earlier.granted
        self.granted: dict[str, Amount] = {
            rule: _sum(self.before.get(rule, _NOTHING), granted.get(rule, _NOTHING))
            for rule in self.before.keys() | granted.keys()
        }


class QuotaHome:
    """`recall` asks the part of a name to return what it does not use; `names` are all parts. It
    grants nothing unless `is_current`: another home may be there already."""

    def __init__(
        self,
        names: Iterable[str],
        recall: Callable[[str, Recall], Awaitable[Recalled]],
        is_current: Callable[[], bool],
    ) -> None:
        self._names = list(names)
        self._recall = recall
        self._is_current = is_current
        self._is_closed = False
        self._epoch = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._parts: dict[str, _Part] = {}
        self._recalling = asyncio.Lock()
        self._has_asked = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._learn())

    def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        if not self._has_asked.done():
            self._has_asked.set_exception(unowned("The quotas have no home any more."))
            self._has_asked.exception()

    async def _learn(self) -> None:
        """Ask all parts what they use, until all have counted it."""
        for attempt in itertools.count(1):
            await self._recall_all(self._uncounted(), [])
            if not self._has_asked.done():
                self._has_asked.set_result(None)
            if not self._uncounted():
                return
            await asyncio.sleep(_backoff.wait_s(attempt, random.random()))

    def _uncounted(self) -> list[str]:
        parts = self._parts
        return [each for each in self._names if each not in parts or not parts[each].is_counted]

    # -- granting

    async def ask(self, ask: Ask) -> Granted:
        """Grant what there is room for. NotOwner if that depends on a part that does not answer."""
        if ask.needs:
            # Not before everybody was asked who could say what is used already.
            await asyncio.shield(self._has_asked)
        if not self._is_known(ask):
            return Granted(self._epoch, 0)
        if not self._lacking(ask):
            return self._decided(ask)
        others = [name for name in self._names if name != ask.part]
        for _ in range(ROUNDS):
            # One round at a time: they would only overtake each other.
            async with self._recalling:
                lacking = self._lacking(ask)
                doubtful, is_overtaken = await self._recall_all(others, lacking)
            if not self._is_known(ask):
                return Granted(self._epoch, 0)  # it has been started again meanwhile
            lacking = self._lacking(ask)
            if not lacking or not (
                is_overtaken or any(self._holds(name, lacking) for name in doubtful)
            ):
                return self._decided(ask)
            if not is_overtaken:
                break
        raise unowned("Not all parts of the server say what they have of a quota.")

    def _is_known(self, ask: Ask) -> bool:
        """Whether what the part of an ask has was granted here; it is to begin else."""
        if self._is_closed or not self._is_current():
            raise unowned("The quotas have another home now.")
        if ask.epoch != self._epoch:
            return False
        part = self._parts.get(ask.part)
        if part is None or part.life != ask.life:
            if not ask.begins:
                return False
            self._parts[ask.part] = _Part(
                ask.life, is_counted=ask.is_counted, granted=ask.used, earlier=part
            )
        return True

    def _lacking(self, ask: Ask) -> list[str]:
        """Return the rules that have no room for all that is asked for."""
        total = {rule: _NOTHING for need in ask.needs for rule in need.rules}
        for need in ask.needs:
            for rule in need.rules:
                total[rule] = _sum(total[rule], need.more)
        return [rule for rule, more in total.items() if self._refusal(ask, rule, _NOTHING, more)]

    def _refusal(self, ask: Ask, rule: str, before: Amount, more: Amount) -> str | None:
        """Return why a rule has no room for more, beside what was granted `before` by this ask."""
        used = _sum(self._used(ask, rule), before)
        for name, part in self._parts.items():
            if name != ask.part:
                used = _sum(used, part.granted.get(rule, _NOTHING))
        return refusal_of(rule, ask.quotas[rule], used, more)

    def _used(self, ask: Ask, rule: str) -> Amount:
        """Return what a part that asks uses of a rule."""
        return _sum(ask.used[rule], self._parts[ask.part].before.get(rule, _NOTHING))

    def _decided(self, ask: Ask) -> Granted:
        """Grant one need after the other, and to each rule some room for later."""
        accepted: dict[str, Amount] = {}
        refused: dict[int, str] = {}
        for index, need in enumerate(ask.needs):
            refusals = (
                self._refusal(ask, rule, accepted.get(rule, _NOTHING), need.more)
                for rule in need.rules
            )
            refusal = next((each for each in refusals if each is not None), None)
            if refusal is not None:
                refused[index] = refusal
                continue
            for rule in need.rules:
                accepted[rule] = _sum(accepted.get(rule, _NOTHING), need.more)
        part = self._parts[ask.part]
        for rule, more in accepted.items():
            wanted = _sum(self._used(ask, rule), more)
            had = part.granted.get(rule, _NOTHING)
            # It may have used more of an earlier grant meanwhile.
            part.granted[rule] = Amount(
                max(had.streams, wanted.streams), max(had.bytes, wanted.bytes)
            )
            part.granted[rule] = self._with_reserve(rule, ask.quotas[rule], part.granted[rule])
        part.number = next(self._numbers)
        granted = {
            rule: _less(part.granted[rule], part.before.get(rule, _NOTHING)) for rule in accepted
        }
        return Granted(self._epoch, part.number, granted, refused)

    def _with_reserve(self, rule: str, quota: Quota, granted: Amount) -> Amount:
        """Return a grant with half of a fair share of what is left."""
        shares = 2 * len(self._names)
        total = _NOTHING
        for part in self._parts.values():
            total = _sum(total, part.granted.get(rule, _NOTHING))
        return Amount(
            granted.streams + max((quota.streams or 0) - total.streams, 0) // shares,
            granted.bytes + max((quota.bytes or 0) - total.bytes, 0) // shares,
        )

    def _holds(self, name: str, rules: list[str]) -> bool:
        part = self._parts.get(name)
        return part is not None and any(rule in part.granted for rule in rules)

    # -- recalling

    async def _recall_all(self, names: list[str], rules: list[str]) -> tuple[set[str], bool]:
        """Have parts return what they do not use; return those that have not, and whether a grant
        has overtaken one."""
        number = next(self._numbers)
        before = {name: self._state(name) for name in names}
        answers = await asyncio.gather(*(self._recalled(name, number, rules) for name in names))
        doubtful: set[str] = set()
        is_overtaken = False
        for name, answer in zip(names, answers, strict=True):
            if answer is None:
                doubtful.add(name)
            elif self._state(name) == before[name]:
                part = self._parts[name] = _Part(
                    answer.life,
                    is_counted=answer.is_counted,
                    granted=answer.granted,
                    earlier=self._parts.get(name),
                )
                part.number = number
            else:
                # It may have got the grant after its answer: what is noted here is safe.
                is_overtaken = True
        return doubtful, is_overtaken

    def _state(self, name: str) -> tuple[str, int]:
        """Return what is another after each grant to a part."""
        part = self._parts.get(name)
        return ("", 0) if part is None else (part.life, part.number)

    async def _recalled(self, name: str, number: int, rules: list[str]) -> Recalled | None:
        try:
            async with asyncio.timeout(RECALL_S):
                return await self._recall(name, Recall(self._epoch, number, rules))
        except (PenstockError, TimeoutError):
            return None


def _less(one: Amount, other: Amount) -> Amount:
    return Amount(one.streams - other.streams, one.bytes - other.bytes)


def _sum(one: Amount, other: Amount) -> Amount:
    return Amount(one.streams + other.streams, one.bytes + other.bytes)
