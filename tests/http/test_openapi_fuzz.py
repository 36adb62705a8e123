"""Whatever requests are made up from the OpenAPI document, the server answers as it says there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.http.openapi_cases import Api, fuzz, fuzz_sequences, prepare, running_api, until

SOAK_S = 600.0

REACHED = {
    ("createStream", 201),
    ("appendToStream", 204),
    ("readStream", 200),
    ("trimStream", 200),
    ("declareSchema", 201),
    ("readState", 200),
    ("putTableOrRow", 201),
    ("writeRows", 204),
    ("readTable", 200),
    ("putSubscription", 201),
    ("claimWake", 200),
    ("ackWake", 200),
}
"""What sequences have to come to: a server that refuses everything answers as documented, too."""

pytestmark = pytest.mark.xdist_group("openapi")


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with running_api() as api:
        yield api


def test_every_operation_answers_as_documented(api: Api) -> None:
    operations = [each for each in api.operations if each.method != "head"]
    for operation in operations:
        prepare(api.server.url)
        fuzz(api, operation, seed_of=16, examples=1)
    _check_log(api)


def test_sequences_of_operations_are_answered_as_documented(api: Api) -> None:
    # What a seed leads to changes with the source: Hypothesis also draws the constants in it.
    statuses: set[tuple[str, int]] = set()
    for seed in range(16, 24):
        statuses |= fuzz_sequences(api, seed_of=seed, examples=8)
        if statuses >= REACHED:
            break
    assert statuses >= REACHED
    _check_log(api)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [16])
def test_every_operation_answers_as_documented_for_ten_minutes(seed: int) -> None:
    with running_api(memory=False) as api:
        has_time, finished = until(SOAK_S), 0
        for round_of in itertools.count(seed):
            fuzz_sequences(api, seed_of=round_of, examples=10, steps=15)
            for operation in api.operations:
                if not has_time():
                    break
                prepare(api.server.url)
                fuzz(api, operation, seed_of=round_of, examples=10)
            else:
                finished += 1
                continue
            break
        assert finished > 0, "there was no time for every operation"
        _check_log(api)


def _check_log(api: Api) -> None:
    """The server ran into no bug that a response might hide."""
    assert api.server.running
    assert "Traceback" not in api.server.stderr
    assert '"level": "error"' not in api.server.stderr
