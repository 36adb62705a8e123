"""Transactions of both live states: sending, waiting for the echo, and taking back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from penstock.client._requests import JSON
from penstock.state._transaction import TransactionBase

if TYPE_CHECKING:
    from penstock.state.live import LiveState
    from penstock.state.live_aio import AsyncLiveState


class Transaction(TransactionBase):
    """See `LiveState.transaction`. The end of `with` commits; an error there rolls back."""

    def __init__(self, state: LiveState, *, txid: str | None, conditional: bool) -> None:
        super().__init__(state._core, state._schema, txid=txid, conditional=conditional)
        self._state = state

    def commit(self, timeout_s: float | None = None) -> None:
        """Append the changes, and wait until the stream has echoed them.

        An append that fails is rolled back, and its error raised; one whose outcome is unknown
        has been repeated under the same producer headers before. TimeoutError only means that the
        echo is late: the changes are stored.
        """
        state = self._state
        state._can_wait()
        messages = self._finish()
        if not messages:
            return self._settle()
        with state._sending:
            try:
                stored = state._stream.append_many(
                    messages,
                    content_type=JSON,
                    if_match=self._if_match,
                    producer=state._sequence.headers,
                )
            except BaseException as error:
                state._sequence.failed(error)
                if not self._ticket.seen:  # else its echo has told the outcome
                    self._settle()
                    raise
            else:
                state._sequence.stored()
                self._ticket.offset = stored.offset
        late = f"transaction {self.txid} is stored, but has not come back yet"
        state._wait(lambda: self._core.is_seen(self._ticket), timeout_s, late)
        self._settle()
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if not self._is_open:
            return
        if failure is None:
            self.commit()
        else:
            self.rollback()


class AsyncTransaction(TransactionBase):
    """See `AsyncLiveState.transaction`. The end of `async with` commits; an error rolls back."""

    def __init__(self, state: AsyncLiveState, *, txid: str | None, conditional: bool) -> None:
        super().__init__(state._core, state._schema, txid=txid, conditional=conditional)
        self._state = state

    async def commit(self, timeout_s: float | None = None) -> None:
        """Append the changes, and wait for their echo: as `Transaction.commit`."""
        state = self._state
        state._can_wait()
        messages = self._finish()
        if not messages:
            return self._settle()
        async with state._sending:
            try:
                stored = await state._stream.append_many(
                    messages,
                    content_type=JSON,
                    if_match=self._if_match,
                    producer=state._sequence.headers,
                )
            except BaseException as error:
                state._sequence.failed(error)
                if not self._ticket.seen:  # else its echo has told the outcome
                    self._settle()
                    raise
            else:
                state._sequence.stored()
                self._ticket.offset = stored.offset
        late = f"transaction {self.txid} is stored, but has not come back yet"
        await state._wait(lambda: self._core.is_seen(self._ticket), timeout_s, late)
        self._settle()
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if not self._is_open:
            return
        if failure is None:
            await self.commit()
        else:
            self.rollback()
