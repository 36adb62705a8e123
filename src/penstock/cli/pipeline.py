"""`penstock pipeline`: run a pipeline, and look at what it keeps without starting Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import Failure
from penstock.cli.exits import FAILURE

if TYPE_CHECKING:
    from penstock.spark.pipeline_config import Pipeline

file_argument: Callable[[Any], Any] = click.argument(
    "file", metavar="FILE", type=click.Path(path_type=Path), default=Path("pipeline.toml")
)


@click.group("pipeline")
def command() -> None:
    """Streams into tables and back: run, look at and check a pipeline.

    FILE is the pipeline's settings, ./pipeline.toml unless it is named; docs/pipeline.md has them
    all. Only `run` starts Spark.

    \b
    Examples:
      penstock pipeline validate pipeline.toml
      penstock pipeline run pipeline.toml --once
      penstock pipeline show pipeline.toml user
      penstock pipeline sql pipeline.toml 'SELECT city, count(*) FROM state_user GROUP BY city'
    """


@command.command("validate")
@file_argument
def validate(file: Path) -> None:
    """Check a pipeline's settings and schemas; nothing is started or asked."""
    pipeline = load(file)
    streams = ", ".join(pipeline.source.streams)
    click.echo(f"{file}: in order")
    click.echo(f"  reads      {streams} of {pipeline.source.url}")
    click.echo(f"  keeps      {pipeline.warehouse.path}")
    for name, schema in pipeline.types.items():
        columns = ", ".join(f"{field.name} {field.type}" for field in schema.fields)
        click.echo(f"  type       {name}: {columns}")
    for name, publish in pipeline.publish.items():
        click.echo(f"  publishes  {name} to {publish.to}")


def load(file: Path) -> Pipeline:
    """The pipeline of a file, or one line about the packages that it needs."""
    try:
        from penstock.spark.pipeline_config import load_pipeline
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return load_pipeline(file)


def _missing(error: ModuleNotFoundError) -> Failure:
    return Failure(
        f"a pipeline needs the package {error.name}: pip install 'penstock[spark]'", FAILURE
    )
