"""A data folder of several workers: one folder for each below `workers`, and a format file above
them that says how many there are.

Each worker's folder is a data folder of its own, whose format file names its share of the paths.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Final

from penstock.errors import StoreDamaged, StoreTooNew, WorkersDiffer
from penstock.log.disk.files import Files, Lock
from penstock.log.disk.recovery import FORMAT, FORMAT_FILE, check_restored
from penstock.protocol.shards import HASH

FORMAT_WORKERS: Final = 4
"""The format of a folder above the folders of workers: no earlier Penstock opens it."""
FOLDER: Final = "workers"
LOCK_FILE: Final = "LOCK"


def worker_folder(root: Path, index: int) -> Path:
    return root / FOLDER / str(index)


def worker_folders(files: Files, root: Path) -> list[Path]:
    """Return the data folders that a folder consists of: itself, unless it has workers."""
    count = workers_of(files, root)
    return [root] if count is None else [worker_folder(root, index) for index in range(count)]


def workers_of(files: Files, root: Path) -> int | None:
    """Return how many workers a folder is laid out for; None if it is a single data folder, or is
    empty."""
    path = root / FORMAT_FILE
    if not files.exists(path):
        return None
    try:
        content = json.loads(files.read_text(path))
        if "workers" not in content or "worker" in content:
            return None
        version, count, name = int(content["format"]), int(content["workers"]), content["hash"]
    except (ValueError, KeyError, TypeError):
        raise StoreDamaged(
            f"{path} is not a Penstock format file. Restore it from a backup."
        ) from None
    if version > FORMAT_WORKERS or name != HASH:
        raise StoreTooNew(
            f"{root} has data format {version} with the hash {name!r}; this Penstock knows formats "
            f"up to {FORMAT_WORKERS} and {HASH!r}. Run the newer Penstock that wrote it."
        )
    return count


def is_worker_folder(files: Files, root: Path) -> bool:
    """Whether a folder belongs to one worker of several."""
    path = root / FORMAT_FILE
    try:
        return files.exists(path) and "worker" in json.loads(files.read_text(path))
    except (ValueError, TypeError):
        return False


def check_layout(files: Files, root: Path, workers: int) -> None:
    """Refuse a folder that is laid out for another number of workers, or is one worker's own."""
    check_restored(files, root)
    if is_worker_folder(files, root):
        raise WorkersDiffer(
            f"{root} belongs to one of several workers. Start the server with the folder above "
            f"`{FOLDER}`."
        )
    current = workers_of(files, root)
    if current is None:
        has_data = files.exists(root / FORMAT_FILE) or files.exists(root / "catalog.sqlite")
        current = 1 if has_data else workers
    if current != workers:
        raise WorkersDiffer(
            f"{root} is laid out for {current} workers, not {workers}. Start with --workers "
            f"{current}, or change it first: penstock reshard {root} --workers {workers}"
        )


def open_workers(files: Files, root: Path, workers: int) -> Lock:
    """Lock a folder of several workers, and lay it out if it is new."""
    files.check_system()
    files.make_folder(root)
    lock = files.lock(root / LOCK_FILE)
    try:
        check_layout(files, root, workers)
        if workers_of(files, root) is None:
            lay_out(files, root, workers)
            write_root(files, root, workers)
    except BaseException:
        lock.close()
        raise
    return lock


def lay_out(files: Files, root: Path, workers: int) -> None:
    """Make the folder of each worker, with its format file. Repeating it changes nothing."""
    for index in range(workers):
        folder = worker_folder(root, index)
        files.make_folder(folder)
        if not files.exists(folder / FORMAT_FILE):
            write_part(files, folder, index, workers)
    files.sync_folder(root / FOLDER)
    files.sync_above(root / FOLDER)


def write_part(files: Files, folder: Path, index: int, workers: int) -> None:
    """Write the format file of one worker's folder, or of a single one."""
    content: dict[str, object] = {"format": FORMAT, "store_id": secrets.token_hex(8)}
    if workers > 1:
        content |= {"worker": index, "workers": workers}
    files.write_text(folder / FORMAT_FILE, json.dumps(content) + "\n")


def write_root(files: Files, root: Path, workers: int) -> None:
    """Write the format file above the workers: from now on the folder has so many."""
    content = {"format": FORMAT_WORKERS, "workers": workers, "hash": HASH}
    files.write_text(root / FORMAT_FILE, json.dumps(content) + "\n")
