"""The options that the benches with groups have in common."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def parse(
    module: str, about: str | None, groups: Sequence[str], *, rounds: int
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds for each measurement")
    parser.add_argument("--only", default="", help=f"comma-separated of {', '.join(groups)}")
    parser.add_argument("--quick", action="store_true", help="a try-out: 1 round, a tenth of all")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a target is missed")
    options = parser.parse_args()
    unknown = [name for name in options.only.split(",") if name and name not in groups]
    if unknown:
        parser.error(f"unknown group {', '.join(unknown)}; there are {', '.join(groups)}")
    return options
