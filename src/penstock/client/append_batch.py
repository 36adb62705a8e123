"""A batch of a producer, and what a refusal says about it."""

from __future__ import annotations

from typing import NamedTuple

from penstock.client.retry import REFUSED_STATUSES
from penstock.errors import ConnectionFailed, PenstockError, SequenceGap, StaleEpoch


class AppendBatch:
    """Messages that are stored together, under one sequence number."""

    __slots__ = (
        "attempts", "close", "doomed", "epoch", "head_seq", "in_flight",
        "messages", "seq", "settled", "uncertain", "waits_for", "weight",
    )  # fmt: skip

    def __init__(self, messages: list[bytes], weight: int, seq: int, *, close: bool) -> None:
        self.messages = messages
        self.weight = weight
        self.seq = seq
        self.epoch = 0  # of the last sending
        self.close = close
        self.attempts = 0
        self.in_flight = False
        self.settled = False
        self.doomed = False  # an earlier batch has failed: this one is not sent again
        self.uncertain = False  # it may be stored although no answer says so
        self.head_seq = seq  # the oldest unsettled sequence number when it was sent
        self.waits_for: int | None = None  # it came too early: not again before this is settled


class Failed(NamedTuple):
    """Messages that are given up, for the error callback."""

    error: Exception
    messages: list[bytes]


def may_be_stored(error: PenstockError) -> bool:
    """Whether a failure leaves open what the server has done."""
    if isinstance(error, ConnectionFailed):
        return error.sent
    return error.status >= 500 and error.status not in REFUSED_STATUSES


def used_epoch(batch: AppendBatch) -> StaleEpoch:
    return StaleEpoch(
        f"Epoch {batch.epoch} of this producer id was used before, by an earlier run: the server "
        f"took the messages for ones that it has, and did not store them. Use a higher epoch, or "
        f"auto_claim=True.",
        Producer_Epoch=str(batch.epoch),
    )


def came_too_early(batch: AppendBatch, gap: SequenceGap) -> bool:
    """Whether a batch was only faster than an earlier one, which was on its way too.

    Otherwise the server misses what it has confirmed before: repeating cannot help.
    """
    expected = batch.head_seq if gap.expected is None else gap.expected
    return batch.head_seq <= expected < batch.seq
