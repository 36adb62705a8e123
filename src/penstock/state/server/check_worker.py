"""The process that `check_process` starts: reads jobs from stdin, writes answers to stdout.

Ends with its input. It ends itself when a job takes far too long, in case that nobody else does.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from typing import IO, Final

import msgspec

from penstock.errors import InvalidEvent
from penstock.state.declaration import Compiled, decode
from penstock.state.server.check_process import Answer, Job, receive, send

MEMORY_BYTES_MAX: Final = 2 * 1024**3
COMPILED_MAX: Final = 16


def main() -> None:
    # Ctrl-C in a terminal reaches every process of the group; the server decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    serve(sys.stdin.buffer, sys.stdout.buffer)


def serve(jobs: IO[bytes], answers: IO[bytes]) -> None:
    """Answer jobs until there are no more; the first answer says that this is ready."""
    compiled: dict[bytes, Compiled] = {}
    send(answers, Answer())
    while (data := receive(jobs)) is not None:
        job = msgspec.msgpack.decode(data, type=Job)
        # Needs no interpreter, so that it works while the library holds it.
        faulthandler.dump_traceback_later(2 * job.timeout_s + 1, exit=True)
        if job.declaration not in compiled:
            if len(compiled) >= COMPILED_MAX:
                compiled.clear()
            compiled[job.declaration] = Compiled(decode(job.declaration))
        answer = _checked(compiled[job.declaration], job.event)
        faulthandler.cancel_dump_traceback_later()
        send(answers, answer)


def _checked(compiled: Compiled, event: bytes) -> Answer:
    try:
        compiled.check(b"[" + event + b"]")
    except InvalidEvent as error:
        detail = error.detail.removeprefix("Event 0: ")
        return Answer(detail, error.field, error.rule, error.path)
    return Answer()


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES_MAX if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES_MAX, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main()
