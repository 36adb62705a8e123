"""Idempotent producers: the epoch and sequence decision table, as one pure function.

Knows no stream and no storage; the caller keeps the state that is returned.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import EpochStart, SequenceGap, StaleEpoch
from penstock.protocol.headers import Producer


class ProducerState(NamedTuple):
    """What a stream remembers of a producer: its epoch and its highest accepted sequence."""

    epoch: int
    seq: int


class Accept(NamedTuple):
    """New data: append it and keep this state, both or neither."""

    state: ProducerState


class Duplicate(NamedTuple):
    """Data the stream already has; the state is unchanged and is what the answer reports."""

    state: ProducerState


def decide(state: ProducerState | None, p: Producer) -> Accept | Duplicate:
    """What to do with a producer's request.

    | known state          | request                | decision              |
    |----------------------|------------------------|-----------------------|
    | none                 | seq 0                  | accept                |
    | none                 | seq > 0                | 409, expected 0       |
    | epoch e              | epoch < e              | 403, current epoch e  |
    | epoch e              | epoch > e, seq 0       | accept                |
    | epoch e              | epoch > e, seq > 0     | 400                   |
    | epoch e, last seq s  | epoch e, seq <= s      | duplicate             |
    | epoch e, last seq s  | epoch e, seq = s + 1   | accept                |
    | epoch e, last seq s  | epoch e, seq > s + 1   | 409, expected s + 1   |
    """
    if state is None:
        if p.seq != 0:
            raise _gap(expected=0, received=p.seq)
    elif p.epoch < state.epoch:
        raise StaleEpoch(
            f"Producer epoch {p.epoch} was replaced by epoch {state.epoch}. Stop this producer, "
            f"or claim the id again with epoch {state.epoch + 1} and sequence 0.",
            Producer_Epoch=str(state.epoch),
        )
    elif p.epoch > state.epoch:
        if p.seq != 0:
            raise EpochStart(
                f"Epoch {p.epoch} is new for this producer (current: {state.epoch}), so its "
                f"first Producer-Seq must be 0, not {p.seq}."
            )
    elif p.seq <= state.seq:
        return Duplicate(state)
    elif p.seq != state.seq + 1:
        raise _gap(expected=state.seq + 1, received=p.seq)
    return Accept(ProducerState(p.epoch, p.seq))


def _gap(*, expected: int, received: int) -> SequenceGap:
    return SequenceGap(
        f"Producer-Seq {received} was received but {expected} is next. Send the requests in "
        f"between first, in order.",
        Producer_Expected_Seq=str(expected),
        Producer_Received_Seq=str(received),
    )
