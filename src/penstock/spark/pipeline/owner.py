"""Which pipeline a warehouse belongs to: two settings files that name one warehouse are told apart,
by their ids or as files of this machine, and the second one is refused.
"""

from __future__ import annotations

import socket
from pathlib import Path

from penstock.errors import PenstockError, WarehouseInUse
from penstock.spark.config import Pipeline, load_pipeline
from penstock.spark.warehouse.events import PipelineOwner
from penstock.spark.warehouse.storage import canonical


def owner_of(pipeline: Pipeline) -> PipelineOwner:
    """The owner that a run of the pipeline notes."""
    return PipelineOwner(pipeline.run.id, pipeline.file, socket.gethostname())


def check_owner(pipeline: Pipeline, owner: PipelineOwner) -> None:
    """Raise an error if the warehouse belongs to another pipeline. A file without an id may be
    moved, copied to another machine or replaced; not so one that is still there and names the same
    warehouse."""
    warehouse, own = pipeline.warehouse.path, pipeline.run.id
    if owner.id is not None and owner.id != own:
        raise WarehouseInUse(
            f"The warehouse {warehouse} belongs to the pipeline {owner.id!r}"
            f"{_place(owner)}. Name another warehouse.path here; or set pipeline.id to "
            f"{owner.id!r} if this is the same pipeline."
        )
    if owner.id is None and own is None and _is_another_file(pipeline, owner):
        raise WarehouseInUse(
            f"The warehouse {warehouse} belongs to the pipeline in {owner.file}, which still names "
            "it. Name another warehouse.path here, or another one there; one pipeline writes a "
            "warehouse."
        )


def _place(owner: PipelineOwner) -> str:
    return "" if owner.file is None else f" ({owner.file} on {owner.host})"


def _is_another_file(pipeline: Pipeline, owner: PipelineOwner) -> bool:
    if owner.file is None or pipeline.file is None or owner.host != socket.gethostname():
        return False
    try:
        if Path(owner.file).samefile(pipeline.file):
            return False
        other = load_pipeline(Path(owner.file))
    except (OSError, PenstockError):
        return False  # it is gone, or is no pipeline any more
    return canonical(other.warehouse.path) == canonical(pipeline.warehouse.path)
