"""A selection of the tests again without the compiled modules: mypyc and Python must agree."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock import plain_modules
from tests.helpers.server import ROOT

# A cluster has a database to start, which is no part of what is compiled.
OPTIONS = ["-q", "-n", "0", "-p", "no:cacheprovider", "-k", "not cluster"]
SELECTION = {
    "units": [
        "tests/unit/log/test_committer.py",
        "tests/unit/log/test_decide.py",
        "tests/unit/log/test_memory_tail.py",
        "tests/unit/log/test_receipt.py",
    ],
    "contract": ["tests/contract/test_mutations.py", "tests/contract/test_reading.py"],
    "crash": ["tests/crash/test_torn_tail.py", "tests/crash/test_journal_reuse.py"],
    "model": ["tests/model/test_compaction.py"],
    "security": ["tests/security/test_smuggling.py", "tests/security/test_header_injection.py"],
    "http": ["tests/http/test_connection.py", "tests/http/test_head_cache.py"],
}


@pytest.mark.skipif(plain_modules.form() == plain_modules.PLAIN, reason="all tests run so")
@pytest.mark.parametrize("tests", SELECTION.values(), ids=SELECTION)
def test_plain_python_passes(tests: list[str]) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, *tests],
        env={**os.environ, plain_modules.PURE: "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-4000:]
