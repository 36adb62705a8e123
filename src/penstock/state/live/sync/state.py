"""The blocking live state: a thread follows the stream; the caller's threads read and write."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Self

from penstock.client.batches import Batch
from penstock.client.endurance import OnOutage
from penstock.client.flow import Done, Emit, Pause, advance
from penstock.client.follow import Follower, FollowOptions
from penstock.client.sync.client import Shell
from penstock.client.sync.stream import Stream
from penstock.errors import Gone, StreamClosed
from penstock.protocol.offsets import START
from penstock.state.live.backends import Backend, MemoryBackend
from penstock.state.live.bootstrap import Bootstrap, check, load_state
from penstock.state.live.core import LiveCore
from penstock.state.live.plan import Plan
from penstock.state.live.questions import answered
from penstock.state.live.rules import OnReset, Rules
from penstock.state.live.selection import Selection
from penstock.state.live.sync.transaction import Transaction
from penstock.state.live.transaction import Outlet, Sequence
from penstock.state.live.views import LiveReader, check_names, indexes_of
from penstock.state.materialized import OnInvalid
from penstock.state.schema import StateSchema

CLOSE_TIMEOUT_S: Final = 2.0  # a follower that cannot be interrupted ends by itself later
_WAKE_S: Final = 0.02


class LiveState(LiveReader):
    """A local database that follows a stream: `with LiveState(stream) as state: …`

    `backend` stores the entities: by default in memory, or for example `SqliteBackend(path)`.
    Events that are invalid, by their form or by the `schema`, are left out and counted;
    `on_invalid` may also be `"raise"`, or a function that gets each error. `on_reset` is
    `"clear"`, `"raise"` or a function. `indexes` names the fields of each collection that `where`
    looks up. `bootstrap="state"` starts from the state that a Penstock server has, if it has one,
    instead of from all events. `type`, and with it `key` or `prefix`, selects the entities that the
    state loads and holds. `at` starts from the state at that offset, as the server has it: `"now"`
    is the current one. `on_outage` is called with the error when the connection is lost, and with
    None when it is back. May be used by many threads.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        schema: StateSchema | None = None,
        backend: Backend | None = None,
        indexes: Mapping[str, Iterable[str]] | None = None,
        on_invalid: OnInvalid = "skip",
        on_reset: OnReset = "clear",
        bootstrap: Bootstrap = "stream",
        producer_id: str | None = None,
        type: str | None = None,
        key: str | None = None,
        prefix: str | None = None,
        at: str | None = None,
        on_outage: OnOutage | None = None,
    ) -> None:
        check_names(self.__class__, schema)
        check(bootstrap, on_reset, at)
        selection = self._selection = Selection.checked(type, key, prefix)
        rules = Rules(schema=schema, on_invalid=on_invalid, on_reset=on_reset, selection=selection)
        self._stream = stream
        self._schema = schema
        self._bootstrap = bootstrap
        self._at = at
        self._on_outage = on_outage
        self._core = LiveCore(
            stream.url,
            backend or MemoryBackend(),
            rules,
            indexes_of(schema, indexes),
            selection=selection,
        )
        self._changed = threading.Condition(self._core.lock)
        self._stopping = threading.Event()
        self._sending = threading.Lock()
        self._outlet = Outlet(stream, Sequence(producer_id))
        self._shell: Shell | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Begin to follow. The entities of the backend can be read before and after."""
        if self._thread is not None:
            raise RuntimeError("The live state is started already.")
        self._thread = threading.Thread(
            target=self._follow_on, name="penstock-live-state", daemon=True
        )
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop following. Closing again does nothing."""
        with self._changed:
            self._core.close()
            self._stopping.set()
            self._changed.notify_all()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while thread.is_alive() and time.monotonic() < deadline:
            self._interrupt()
            thread.join(_WAKE_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_up_to_date(self, timeout_s: float | None = None) -> None:
        """Wait until everything that is in the stream now has been applied."""
        stream, _, moves = self._outlet_now()
        tail = stream.head().offset
        late = f"The state has not reached {tail} yet."
        self._wait(lambda: self._core.is_at(tail, moves), timeout_s, late)

    def wait_txid(self, txid: str, timeout_s: float | None = None) -> None:
        """Wait until all events of a transaction have been applied."""
        ticket = self._core.await_txid(txid)
        try:
            self._wait(lambda: ticket.seen, timeout_s, f"Transaction {txid} has not come yet.")
        finally:
            self._core.forget(ticket)

    def wait_end(self, timeout_s: float | None = None) -> None:
        """Wait until the stream is closed and all of it is applied; raise the error that ends the
        state earlier."""
        late = "The stream is not closed yet."
        self._wait(lambda: isinstance(self._core.ended, StreamClosed), timeout_s, late)

    def transaction(self, *, txid: str | None = None, conditional: bool = False) -> Transaction:
        """Return a transaction: changes that readers of this state see at once, appended together.

        The last write wins. A `conditional` transaction raises TailMoved if the stream has grown
        beyond the state at the begin of the transaction.
        """
        return Transaction(self, txid=txid, conditional=conditional)

    def _outlet_now(self) -> Outlet[Stream]:
        """Return the outlet to the followed stream, which a reset may change."""
        with self._changed:
            core, outlet = self._core, self._outlet
            if outlet.stream.url != core.url:
                stream = self._stream.client.stream(core.url)
                outlet = self._outlet = Outlet(stream, outlet.sequence.restarted(), core.moves)
            return outlet

    def _can_wait(self) -> None:
        if self._thread is None:
            raise RuntimeError("The live state is not started: call start first.")
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "A callback cannot wait for changes: they are applied only after it returns."
            )

    def _wait(self, is_over: Callable[[], bool], timeout_s: float | None, late: str) -> None:
        self._can_wait()
        core = self._core
        with self._changed:
            self._changed.wait_for(lambda: is_over() or core.ended is not None, timeout_s)
            if is_over():
                return
            if core.ended is not None:
                raise core.ended
        raise TimeoutError(late)

    def _has_moved(self, moves: int) -> bool:
        """Wait for a redirect or the end; return whether the state follows another stream."""
        core = self._core
        with self._changed:
            self._changed.wait_for(lambda: core.moves > moves or core.ended is not None)
            return core.moves > moves

    # -- the follower's thread

    def _follow_on(self) -> None:
        cause: BaseException | None = None
        try:
            self._load()
            while self._follow() and not self._stopping.is_set():
                pass
        except BaseException as error:  # noqa: BLE001 - raised by the methods that wait
            cause = error
        with self._changed:
            self._core.end(cause)
            self._changed.notify_all()

    def _load(self) -> None:
        """Load the state from the server, if that is requested and the backend is empty."""
        if (self._bootstrap != "state" and self._at is None) or self._at == START:
            return
        if self._core.position.offset != START:
            return
        client = self._stream.client
        flow = load_state(self._core.url, client.retry, selection=self._selection, at=self._at)
        loaded = client.run(flow)
        if loaded is not None:
            self._commit(self._core.loaded(*loaded))

    def _follow(self) -> bool:
        """Follow the stream; return false if it is closed, true to read from another position."""
        try:
            for batch in self._batches():
                plan = self._planned(batch)
                self._commit(plan)
                if plan.skips:
                    return True
        except Gone as error:
            self._commit(self._core.gone(error))
            return True
        return False

    def _planned(self, batch: Batch) -> Plan:
        client = self._stream.client
        planning = self._core.plan(batch)
        return client.run(answered(planning, self._core.source, client.retry))

    def _commit(self, plan: Plan) -> None:
        with self._changed:
            committed = self._core.commit(plan)
            self._changed.notify_all()
        self._core.notify(committed, plan.controls)

    def _batches(self) -> Iterator[Batch]:
        """Yield the batches of `Stream.follow`, which `close` can end from another thread."""
        offset = self._core.next.offset
        options = FollowOptions(offset=offset, decode=False, on_outage=self._on_outage)
        client = self._stream.client
        flow = Follower(self._core.source, options, client.retry).flow()
        shell = self._shell = Shell(client)
        try:
            effect = advance(flow)
            while not (isinstance(effect, Done) or self._stopping.is_set()):
                if isinstance(effect, Emit):
                    yield effect.value
                    effect = advance(flow)
                elif isinstance(effect, Pause):
                    self._stopping.wait(effect.seconds)
                    effect = advance(flow)
                else:
                    effect = shell.step(flow, effect)
        finally:
            self._shell = None
            flow.close()
            shell.close()

    def _interrupt(self) -> None:
        """Wake the thread up if it waits for events; closing the socket would not."""
        shell = self._shell
        response = None if shell is None else shell.response
        if response is None or response.http_version == "HTTP/2":  # others may use that socket
            return
        network = response.extensions.get("network_stream")
        connection = None if network is None else network.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
