"""Interleaved rounds and their medians: the method every measurement shares."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from bench.load import LoadFailed

Contender = TypeVar("Contender")
Sample = Mapping[str, float]
Measure = Callable[[Contender, int], Sample]


def note(text: str) -> None:
    """Progress, kept apart from the table on standard output."""
    print(text, file=sys.stderr, flush=True)


def interleave(
    contenders: Sequence[tuple[str, Contender]],
    measure: Measure[Contender],
    *,
    rounds: int,
    warm_up: bool = True,
) -> dict[str, list[Sample]]:
    """Measure every contender once a round, one at a time.

    The machine's disk changes pace by the minute: neighbours in time are compared, and who goes
    first alternates. The warm-up round (number 0) is thrown away. A failed round is tried again
    once, so that one hiccup of the machine does not lose the run.
    """
    samples: dict[str, list[Sample]] = {name: [] for name, _ in contenders}
    for number in range(0 if warm_up else 1, rounds + 1):
        turn = contenders if number % 2 else contenders[::-1]
        for name, contender in turn:
            try:
                sample = measure(contender, number)
            except LoadFailed as failure:
                note(f"    {name}: {failure}; once more")
                sample = measure(contender, number)
            if number:
                samples[name].append(sample)
    return samples


def median(samples: Sequence[Sample], key: str) -> float:
    return statistics.median(sample[key] for sample in samples)


def ratios(ours: Sequence[Sample], reference: Sequence[Sample], key: str) -> list[float]:
    """The ratio in each round: how far they lie apart says how much the median is worth."""
    return [a[key] / b[key] for a, b in zip(ours, reference, strict=True) if b[key]]
