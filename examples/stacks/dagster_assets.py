"""Dagster assets: the state tables of a pipeline, brought up to date by a run, and checks of its
expectations and dead letters.

    dagster dev -f dagster_assets.py
"""

import json
import os
import subprocess

from dagster import (
    AssetCheckResult,
    AssetExecutionContext,
    Definitions,
    MaterializeResult,
    asset,
    asset_check,
)

PIPELINE = os.environ.get("SHOP_PIPELINE", "/srv/shop/pipeline.toml")


def status() -> dict:
    words = ["penstock", "pipeline", "status", PIPELINE, "--json"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@asset(group_name="lakehouse")
def warehouse(context: AssetExecutionContext) -> MaterializeResult:
    """The tables of the pipeline; a run that was killed is continued by the next."""
    if os.environ.get("SHOP_DRY_RUN") is None:
        subprocess.run(["penstock", "pipeline", "run", PIPELINE, "--once"], check=True)
    current = status()
    return MaterializeResult(metadata={"batch": current["batch"], "events": current["events"]})


@asset_check(asset=warehouse)
def expectations() -> AssetCheckResult:
    violated = {each["name"]: each["violated"] for each in status()["expectations"]}
    return AssetCheckResult(passed=not any(violated.values()), metadata=violated)


@asset_check(asset=warehouse)
def dead_letters() -> AssetCheckResult:
    letters = status()["dead_letters"]
    return AssetCheckResult(passed=letters == 0, metadata={"dead_letters": letters})


definitions = Definitions(assets=[warehouse], asset_checks=[expectations, dead_letters])
