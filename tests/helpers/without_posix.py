"""A Python in which the names that Windows does not have are gone, as far as Penstock can see them.

`python -m tests.helpers.without_posix serve --memory` is the `penstock` command in it;
`import tests.helpers.without_posix` removes the names for the code behind it. The standard library
has what it needs by then: it is Penstock and its packages that have to do without.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import ssl  # noqa: F401 - loaded before the names are gone, as the next line
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
from typing import NoReturn

MODULES = ("uvloop", "fcntl", "grp", "pwd", "resource", "termios")
NAMES = {
    os: (
        *("fchmod", "fdatasync", "fork", "posix_fadvise", "posix_fallocate", "pread", "preadv"),
        *("pwrite", "pwritev", "sendfile", "statvfs", "sync", "O_CLOEXEC", "O_DIRECTORY"),
        *("RWF_DSYNC", "RWF_NOWAIT"),
    ),
    select: ("epoll", "poll"),
    signal: ("SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "pthread_kill"),
    socket: ("SO_REUSEPORT", "TCP_NOTSENT_LOWAT"),
}


def _no_signal_handler(*arguments: object) -> NoReturn:
    raise NotImplementedError


for module in MODULES:
    sys.modules[module] = None  # type: ignore[assignment] # what makes an import fail
for owner, names in NAMES.items():
    for name in names:
        if hasattr(owner, name):
            delattr(owner, name)
setattr(asyncio.SelectorEventLoop, "add_signal_handler", _no_signal_handler)  # noqa: B010 - mypy


if __name__ == "__main__":
    from penstock.cli import main

    main(prog_name="penstock")
