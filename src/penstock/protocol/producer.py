"""Idempotent producers: the epoch and sequence decision table, as one pure function.

Knows no stream and no storage; the caller keeps the state that is returned.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import EpochStart, SequenceGap, StaleEpoch
from penstock.protocol.headers import Producer


class ProducerState(NamedTuple):
    """The state of a producer on a stream: its epoch and its highest accepted sequence."""

    epoch: int
    seq: int


class Accept(NamedTuple):
    """New data: append it and store this state, both or neither."""

    state: ProducerState


class Duplicate(NamedTuple):
    """Data that the stream already has; the answer reports the state, which is unchanged."""

    state: ProducerState


def decide(state: ProducerState | None, producer: Producer) -> Accept | Duplicate:
    """Decide about the request of a producer.

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
        if producer.seq != 0:
            raise _gap(expected=0, received=producer.seq)
    elif producer.epoch < state.epoch:
        raise StaleEpoch(
            f"Producer epoch {producer.epoch} was replaced by epoch {state.epoch}. Stop this "
            f"producer, or claim the id again with epoch {state.epoch + 1} and sequence 0.",
            Producer_Epoch=str(state.epoch),
        )
    elif producer.epoch > state.epoch:
        if producer.seq != 0:
            raise EpochStart(
                f"Epoch {producer.epoch} is new for this producer (current: {state.epoch}), so its "
                f"first Producer-Seq must be 0, not {producer.seq}."
            )
    elif producer.seq <= state.seq:
        return Duplicate(state)
    elif producer.seq != state.seq + 1:
        raise _gap(expected=state.seq + 1, received=producer.seq)
    return Accept(ProducerState(producer.epoch, producer.seq))


def _gap(*, expected: int, received: int) -> SequenceGap:
    return SequenceGap(
        f"Producer-Seq {received} was received but {expected} is next. Send the requests in "
        f"between first, in order.",
        Producer_Expected_Seq=str(expected),
        Producer_Received_Seq=str(received),
    )
