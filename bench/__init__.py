"""Benchmarks: Penstock next to the reference server and next to the machine's own limits."""

import os

# Images often forbid compiled modules. A start is then mostly that of Python's compiler.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
