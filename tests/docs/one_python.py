"""Runs the Python blocks of a page one after another in one process, each in a module of its own.

Sessions of Spark that blocks start and stop share the Java of the first one, which takes seconds to
start. `python -m tests.docs.one_python`: a line of JSON for each block on standard input, and for
each block that is over a line with the error, or null, on the file descriptor in the arguments.
"""

from __future__ import annotations

import json
import os
import sys
import traceback


def main(reports: int) -> None:
    for line in sys.stdin:
        error = None
        try:
            exec(compile(json.loads(line), "<block>", "exec"), {"__name__": "__main__"})
        except BaseException:  # noqa: BLE001 - also a block that exits has failed
            error = traceback.format_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(reports, json.dumps(error).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
