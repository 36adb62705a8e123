"""Our scenarios through the client adapter, for both clients, against the reference server."""

from __future__ import annotations

import importlib
import pkgutil
import queue
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.conformance import client_cases
from tests.conformance.client_suite import SCENARIOS, AdapterProcess, Stage
from tests.conformance.reference import Reference, reference_server

for module in pkgutil.iter_modules(client_cases.__path__, f"{client_cases.__name__}."):
    importlib.import_module(module.name)

SHELLS = ("sync", "async")
ADAPTERS_PER_SHELL = 3  # they mostly wait
Outcomes = Mapping[tuple[str, str], "Future[None]"]


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    with reference_server() as running:
        yield running


@pytest.fixture(scope="module")
def outcomes(reference: Reference) -> Iterator[Outcomes]:
    """Every scenario with each client, several at once, as each adapter becomes free."""
    with ExitStack() as stack:
        adapters: dict[str, queue.SimpleQueue[AdapterProcess]] = {}
        for shell in SHELLS:
            adapters[shell] = queue.SimpleQueue()
            for _ in range(ADAPTERS_PER_SHELL):
                adapter = AdapterProcess(reference.url, is_async=shell == "async")
                adapters[shell].put(stack.enter_context(adapter))

        def run(shell: str, name: str) -> None:
            adapter = adapters[shell].get()
            try:
                SCENARIOS[name](Stage(adapter, reference))
            finally:
                adapters[shell].put(adapter)

        pool = stack.enter_context(ThreadPoolExecutor(ADAPTERS_PER_SHELL * len(SHELLS)))
        yield {
            (shell, name): pool.submit(run, shell, name) for name in SCENARIOS for shell in SHELLS
        }


@pytest.mark.conformance
@pytest.mark.xdist_group("client-adapter")  # one worker, so that the fixture runs once
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("shell", SHELLS)
def test_scenario(outcomes: Outcomes, shell: str, name: str) -> None:
    outcomes[shell, name].result()


@pytest.mark.conformance
@pytest.mark.xdist_group("client-adapter")
@pytest.mark.parametrize("shell", SHELLS)
def test_every_feature_is_claimed_and_the_end_is_clean(reference: Reference, shell: str) -> None:
    adapter = AdapterProcess(reference.url, is_async=shell == "async")
    features = "batching sse longPoll auto streaming dynamicHeaders"
    features += " retryOptions batchItems strictZeroValidation"
    assert adapter.features == dict.fromkeys(features.split(), True)
    assert adapter.close() == 0
