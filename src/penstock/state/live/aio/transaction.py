"""A transaction of the asyncio live state: appending it and waiting for its echo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from penstock.client.requests import JSON
from penstock.errors import StreamClosed
from penstock.state.live.transaction import TransactionBase

if TYPE_CHECKING:
    from penstock.state.live.aio.state import AsyncLiveState


class AsyncTransaction(TransactionBase):
    """See `AsyncLiveState.transaction`. The end of `async with` commits; an error there rolls
    back."""

    def __init__(self, state: AsyncLiveState, *, txid: str | None, conditional: bool) -> None:
        super().__init__(state._core, state._schema, txid=txid, conditional=conditional)
        self._state = state

    async def commit(self, timeout_s: float | None = None) -> None:
        """Append the changes, and wait until the stream has echoed them.

        An append that fails is rolled back, and its error raised; one with an unknown outcome is
        repeated with the same producer headers first. TimeoutError only means that the echo is
        late: the changes are stored.
        """
        state = self._state
        state._can_wait()
        messages = self._finish()
        if not messages:
            return self._settle()
        async with state._sending:
            try:
                await self._append(messages)
            except BaseException:
                if not self._ticket.seen:  # else the echo shows that it is stored
                    self._settle()
                    raise
        late = f"Transaction {self.txid} is stored, but its echo has not come yet."
        await state._wait(lambda: self._core.is_seen(self._ticket), timeout_s, late)
        self._settle()
        return None

    async def _append(self, messages: list[bytes]) -> None:
        """Append to the followed stream; if it is closed because of a redirect, to the next one."""
        state = self._state
        while True:
            stream, sequence, moves = state._outlet_now()
            self._ticket.moves = moves
            try:
                stored = await stream.append_many(
                    messages,
                    content_type=JSON,
                    if_match=self._if_match,
                    producer=sequence.headers,
                )
            except StreamClosed:
                if self._if_match is not None or not await state._has_moved(moves):
                    raise
                if self._ticket.seen:
                    return
            except BaseException as error:
                sequence.failed(error)
                raise
            else:
                sequence.stored()
                self._ticket.offset = stored.offset
                return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if not self._is_open:
            return
        if failure is None:
            await self.commit()
        else:
            self.rollback()
