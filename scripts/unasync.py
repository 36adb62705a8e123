"""Write the blocking clients from the asyncio ones, token by token.

`python scripts/unasync.py` writes the files of MODULES; `--check` writes nothing, shows what is
stale and ends with 1. What threads do differently from an event loop is in hand-written modules
that both sides import under the same name (`runtime`, `producer`, `state`).
"""

from __future__ import annotations

import argparse
import difflib
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from ruff import find_ruff_bin

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "src/penstock/"
MODULES = (
    "client/aio/client.py",
    "client/aio/many.py",
    "client/aio/stream.py",
    "client/aio/subscription.py",
    "client/aio/writing.py",
    "state/live/aio/transaction.py",
    "stp/client/aio/notifier.py",
    "stp/client/aio/table.py",
)

# Names of the asyncio side. `AsyncX` becomes `X` by rule: clients, typing and httpx2 agree on it.
NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "aclosing": "closing",
    "aio": "sync",
    "aiter_bytes": "iter_bytes",
    "anext": "next",
}
# Words of docstrings and comments.
WORDS = {
    "a callable, async or not, is": "a callable is",
    "async with": "with",
    "asyncio": "blocking",
    "many tasks": "many threads",
}
KEYWORDS = frozenset({"async", "await"})
TEXTS = frozenset(
    getattr(tokenize, name)
    for name in ("STRING", "COMMENT", "FSTRING_MIDDLE")
    if hasattr(tokenize, name)
)
OPENING, CLOSING = frozenset("([{"), frozenset(")]}")

_ASYNC_NAME = re.compile(r"\bAsync(?=[A-Z])")
_WORDS = re.compile("|".join(re.escape(words) for words in WORDS))


class Token(NamedTuple):
    """A token with the blanks before it."""

    kind: int
    text: str
    blanks: str


def tokens_of(source: str) -> list[Token]:
    """Return the tokens of a source; joined with their blanks they are the source."""
    starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
    tokens: list[Token] = []
    end = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.string:
            start = starts[token.start[0] - 1] + token.start[1]
            tokens.append(Token(token.type, token.string, source[end:start]))
            end = start + len(token.string)
    return tokens


def blocking(source: str) -> str:
    """Return the blocking form of an asyncio source, not formatted yet."""
    tokens = tokens_of(source)
    idle = _idle_parentheses(tokens)
    parts: list[str] = []
    blanks: str | None = None  # those of what was left out stand before the next token
    for index, token in enumerate(tokens):
        if index in idle or (token.kind == tokenize.NAME and token.text in KEYWORDS):
            if token.text not in CLOSING and blanks is None:
                blanks = token.blanks
            continue
        parts.append(token.blanks if blanks is None else blanks)
        parts.append(_substitute(token))
        blanks = None
    return "".join(parts)


def _substitute(token: Token) -> str:
    if token.kind in TEXTS:
        return _WORDS.sub(lambda match: WORDS[match[0]], _ASYNC_NAME.sub("", token.text))
    if token.kind == tokenize.NAME:
        return NAMES.get(token.text, _ASYNC_NAME.sub("", token.text))
    return token.text


def _idle_parentheses(tokens: Sequence[Token]) -> set[int]:
    """Return the indexes of the parentheses in `(await x.y(…)).z`: idle without `await`."""
    idle: set[int] = set()
    for index, token in enumerate(tokens[1:-1], start=1):
        before, after = tokens[index - 1], tokens[index + 1]
        is_call = not token.blanks and (before.kind == tokenize.NAME or before.text in CLOSING)
        if token.text == "(" and after.text == "await" and not is_call:
            end = _end_of_primary(tokens, index + 2)
            if tokens[end].text == ")":
                idle |= {index, end}
    return idle


def _end_of_primary(tokens: Sequence[Token], index: int) -> int:
    """Return the index after names, dots, calls and subscripts that begin at `index`."""
    depth = 0
    while depth or tokens[index].kind == tokenize.NAME or tokens[index].text in {".", "(", "["}:
        depth += (tokens[index].text in OPENING) - (tokens[index].text in CLOSING)
        index += 1
    return index


def target_of(module: str) -> str:
    return module.replace("/aio/", "/sync/")


def generated(module: str, source: str) -> str:
    """Return the whole generated file of a module, formatted."""
    header = f"# Generated from {module} by scripts/unasync.py; do not edit.\n"
    path = SOURCE + target_of(module)
    ordered = _ruff("check", "--select", "I", "--fix", path=path, text=header + blocking(source))
    return _ruff("format", path=path, text=ordered)


def _ruff(*arguments: str, path: str, text: str) -> str:
    command = [find_ruff_bin(), *arguments, "--quiet", "--stdin-filename", path, "-"]
    done = subprocess.run(  # noqa: S603 - a fixed command
        command, cwd=ROOT, input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"ruff cannot read what was generated for {path}:\n{done.stderr}{text}")
    return done.stdout


def main(
    arguments: Sequence[str] | None = None, *, root: Path = ROOT, modules: Iterable[str] = MODULES
) -> int:
    parser = argparse.ArgumentParser(
        description="Write the blocking clients from the asyncio ones."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; end with 1 if a file is stale"
    )
    check = parser.parse_args(arguments).check
    stale = 0
    for module in modules:
        text = generated(module, (root / SOURCE / module).read_text())
        path = root / SOURCE / target_of(module)
        current = path.read_text() if path.exists() else ""
        if text == current:
            continue
        stale += 1
        name = SOURCE + target_of(module)
        if check:
            lines = difflib.unified_diff(
                current.splitlines(keepends=True), text.splitlines(keepends=True), name, "generated"
            )
            sys.stderr.writelines(lines)
        else:
            path.write_text(text)
            sys.stderr.write(f"{name} written\n")
    if stale and check:
        sys.stderr.write(f"{stale} generated files are stale: run python scripts/unasync.py\n")
    return int(stale > 0 and check)


if __name__ == "__main__":
    sys.exit(main())
