"""The reader of the pages: it sees what a page says of its blocks, and when that is not so."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks
from tests.docs.reader import reading

PAGE = """
```python title="app.py"
x = 1
```

<!-- not run: it needs Docker -->
```sh
docker ps
```

```sh
echo hello
```
<!-- prints: hello -->
<!-- opens: http://127.0.0.1:8000/ -->
<!-- shows: welcome -->

```text
not code
```
"""


def script(code: str, *checks: tuple[str, str]) -> Block:
    return Block("sh", None, code, list(checks), None)


def test_blocks_come_with_what_is_said_of_them() -> None:
    file, skipped, run = blocks(PAGE)
    assert (file.file, file.code) == ("app.py", "x = 1\n")
    assert (skipped.reason, skipped.checks) == ("it needs Docker", [])
    assert run.checks == [
        ("prints", "hello"),
        ("opens", "http://127.0.0.1:8000/"),
        ("shows", "welcome"),
    ]
    assert run.needs_browser
    assert not file.needs_browser


def test_a_page_that_is_not_true_fails() -> None:
    with reading([]) as reader:
        with pytest.raises(AssertionError, match="printed"):
            reader.follow(script("echo one", ("prints", "two")))
        with pytest.raises(AssertionError, match="false"):
            reader.follow(script("false"))
        with pytest.raises(AssertionError, match="no check 'print'"):
            reader.follow(script("true", ("print", "a mistake in the word")))
        with pytest.raises(AssertionError, match="no page is open"):
            reader.follow(script("true", ("shows", "anything")))


def test_files_ports_and_the_server_are_those_of_the_page() -> None:
    with reading([]) as reader:
        reader.follow(Block("python", "app.py", "print('from the file')\n", [], None))
        said = reader.follow(script("python app.py; curl -s http://127.0.0.1:4437/healthz"))
        assert said.startswith("from the file\n")
        assert '"status"' in said
        assert reader.follow(script("echo localhost:4438 4438")).endswith(" 4438\n")
        assert "localhost:4438" not in reader.follow(script("echo localhost:4438"))


def test_what_runs_in_the_background_ends_with_the_page() -> None:
    with reading([]) as reader:
        pid = int(reader.follow(script("sleep 600 & echo $!")))
        os.kill(pid, 0)
    deadline = time.monotonic() + 30
    while is_running(pid):
        assert time.monotonic() < deadline


def is_running(pid: int) -> bool:
    """Whether a process is there and not a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def python(code: str, *checks: tuple[str, str]) -> Block:
    return Block("python", None, code, list(checks), None)


def test_blocks_in_one_python_share_the_process_and_no_names() -> None:
    blocks = [
        python("import os\nname = 1\nprint('first', os.getpid())"),
        python("import os\nprint('name' in globals(), os.getpid())", ("prints", "False")),
    ]
    with reading(blocks, one_python=True) as reader:
        first, second = (reader.follow(block).split() for block in blocks)
        assert first[1] == second[1]
        with pytest.raises(AssertionError, match="ZeroDivisionError"):
            reader.follow(python("1 / 0"))
        with pytest.raises(AssertionError, match="SystemExit"):
            reader.follow(python("raise SystemExit(0)"))
        assert reader.follow(python("print('goes on')")) == "goes on\n"
