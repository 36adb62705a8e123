"""How much an open console costs an append: the same load with the overview open and without.

Chromium runs on the same machine, so what counts is the server's own processor time for one append.

python -m bench.console [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ThreadPoolExecutor

from bench.access import CONNECTIONS, Sample, Side, measure, prepare
from tests.browser.chromium import running_browser
from tests.helpers.server import running_server

SETTLE_MS = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with (
        running_server(memory=True) as server,
        running_browser() as browser,
        ThreadPoolExecutor(1) as pool,
    ):
        prepare(server, None)
        side = Side("server", server, "")
        page = browser.new_page()
        for connections in CONNECTIONS:
            samples: dict[str, list[Sample]] = {"about:blank": [], f"{server.url}/console": []}
            for number in range(rounds + 1):
                for url in samples if number % 2 else reversed(samples):
                    page.goto(url)
                    page.wait_for_timeout(SETTLE_MS)
                    # Playwright has an event loop on this thread.
                    sample = pool.submit(measure, side, connections).result()
                    if number:  # the first round warms up
                        samples[url].append(sample)
            closed, opened = (
                statistics.median(each.cpu_us for each in of_url) for of_url in samples.values()
            )
            ratios = [
                after.cpu_us / before.cpu_us
                for before, after in zip(*samples.values(), strict=True)
            ]
            print(
                f"{connections} connections: server {closed:.1f} µs an append, {opened:.1f} µs "
                f"with the console open ({opened / closed:.2f}; rounds {min(ratios):.2f} to "
                f"{max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
