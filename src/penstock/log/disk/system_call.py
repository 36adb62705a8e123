"""System calls by their number, for those that the C library has no functions for."""

from __future__ import annotations

import ctypes
from typing import TypeAlias

SystemCall: TypeAlias = "ctypes._NamedFuncPointer"


def system_call(*, waits: bool) -> SystemCall:
    """Return what makes a call of a number and up to five arguments; -1 is an error, and
    `ctypes.get_errno()` says which. One that waits lets go of the interpreter lock."""
    library = ctypes.CDLL if waits else ctypes.PyDLL
    call = library(None, use_errno=True).syscall
    call.argtypes = [ctypes.c_long] * 6
    call.restype = ctypes.c_long
    return call
