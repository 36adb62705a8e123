"""An Airflow DAG: a pipeline that runs to the end of its streams every hour, and a check of what it
could not use. Put it into the folder of DAGs of an Airflow whose Python has Penstock.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, BaseOperator

PIPELINE = os.environ.get("SHOP_PIPELINE", "/srv/shop/pipeline.toml")


class PenstockPipelineOperator(BaseOperator):
    """Runs a command of `penstock pipeline`; `run --once` may be repeated at any time."""

    template_fields = ("file", "arguments")

    def __init__(
        self, *, file: str, command: str, arguments: list[str] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.file, self.command, self.arguments = file, command, arguments or []

    def execute(self, context: Any) -> str:
        words = ["penstock", "pipeline", self.command, self.file, *self.arguments]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class DeadLetterCheck(PenstockPipelineOperator):
    """Fails if the pipeline has more dead letters than allowed."""

    def __init__(self, *, allowed: int = 0, **options: Any) -> None:
        super().__init__(command="status", arguments=["--json"], **options)
        self.allowed = allowed

    def execute(self, context: Any) -> str:
        status = super().execute(context)
        letters = json.loads(status)["dead_letters"]
        if letters > self.allowed:
            raise ValueError(f"{letters} dead letters, {self.allowed} allowed")
        return status


with DAG(
    "shop_pipeline",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,  # one pipeline writes a warehouse
) as dag:
    run = PenstockPipelineOperator(
        task_id="run", file=PIPELINE, command="run", arguments=["--once"], retries=3
    )
    check = DeadLetterCheck(task_id="check", file=PIPELINE)
    run >> check
