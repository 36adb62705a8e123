"""A server on a disk that is full for as long as the file exists that FULL_DISK names:
`python -m tests.helpers.full_disk serve …` is the `penstock` command there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from penstock.cli import main
from penstock.log.disk.journal import JournalWriter

VARIABLE = "FULL_DISK"


def install(flag: Path) -> None:
    """Let the journal of this process meet a full disk while `flag` exists."""
    write = JournalWriter.write

    def refuse(self: JournalWriter, first_lsn: int, parts: Sequence[bytes]) -> None:
        if flag.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, first_lsn, parts)

    stage = JournalWriter.stage

    def leave_to_the_thread(self: JournalWriter, first_lsn: int, parts: Sequence[bytes]) -> bool:
        return not flag.exists() and stage(self, first_lsn, parts)

    JournalWriter.write = refuse  # type: ignore[method-assign] # a full disk
    JournalWriter.stage = leave_to_the_thread  # type: ignore[method-assign] # its queue, too


if __name__ == "__main__":
    install(Path(os.environ[VARIABLE]))
    main(prog_name="penstock")
