"""Which transactions a live state remembers having seen."""

from __future__ import annotations

from penstock import limits
from penstock.state.live.backends import MemoryBackend
from penstock.state.live.core import LiveCore
from penstock.state.live.plan import Plan, Position
from penstock.state.live.rules import Rules


def is_remembered(core: LiveCore, txid: str) -> bool:
    ticket = core.await_txid(txid)
    core.forget(ticket)
    return ticket.seen


def see(core: LiveCore, *txids: str) -> None:
    core.commit(Plan(position=Position(), txids=dict.fromkeys(txids)))


def test_the_last_transactions_are_remembered_and_memory_is_bounded() -> None:
    core = LiveCore("http://127.0.0.1/v1/stream/s", MemoryBackend(), Rules(), {})
    total = 5 * limits.LIVE_TXIDS_MAX
    see(core, "again")
    for start in range(0, total, 1000):
        see(core, *(str(number) for number in range(start, start + 1000)))
        assert is_remembered(core, "again")  # seen just before these, as often as need be
        see(core, "again")
        assert len(core._seen) <= 2 * limits.LIVE_TXIDS_MAX + 1
    remembered = range(total - limits.LIVE_TXIDS_MAX + 1, total)
    assert all(is_remembered(core, str(number)) for number in remembered)
    assert not is_remembered(core, "0")
