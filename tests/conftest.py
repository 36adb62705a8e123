"""Set-up for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from functools import cache

import pytest
from hypothesis import settings

from tests.helpers.java_classes import java_options

# Read when the log is imported, here and in every server that a test starts: the invariants of a
# stream are checked after each batch that concerns it.
os.environ["CHECK_PENSTOCK_INVARIANTS"] = "1"

# Images often forbid compiled modules: every process that a test starts would compile the server
# again, and every worker all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A run in the background (`&`, nohup, some CI) inherits SIGINT as ignored, and so would every
# program that a test sends Ctrl-C to: it would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests run side by side on few cores: how long one example takes says nothing.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Make `--dist loadgroup` work: xdist 3.8 writes the group where pytest 9.2 no longer looks.

    Without it every process that has a test of a group starts what the group shares.
    """
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")})
        if groups and not item.nodeid.endswith(f"@{'_'.join(groups)}"):
            item._id = item.id.parse(f"{item.nodeid}@{'_'.join(groups)}")


def pytest_collection_finish() -> None:
    """Take the modules and items of all tests out of every garbage collection to come.

    There are millions of objects, and a test that collects to see what is left of its own would
    have all of them searched.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # modules of C++ complain at the end of what was not collected


def pytest_runtest_setup(item: pytest.Item) -> None:
    if any(mark.args[0].startswith("spark") for mark in item.iter_markers("xdist_group")):
        _quicken_spark()


@cache
def _quicken_spark() -> None:
    """Every Spark that tests start inherits this. For a handful of rows it takes longer to compile
    code for a query than to run it."""
    settings = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{java_options()} {settings}")
