"""The command that a person meant: the nearest name, or what other tools call it."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

# Words of other tools (kafka, nats, redis, git, docker, coreutils), and what does the same here.
OTHER_WORDS: Final = {
    "add": "create",
    "benchmark": "bench",
    "check": "verify",
    "consume": "read -f",
    "copy": "mirror",
    "cp": "mirror",
    "del": "rm",
    "delete": "rm",
    "describe": "head",
    "dump": "export",
    "follow": "read -f",
    "get": "read",
    "help": "--help",
    "history": "state history",
    "info": "head",
    "load": "import",
    "login": "context add",
    "monitor": "top",
    "new": "create",
    "post": "append",
    "produce": "append",
    "ps": "ls -l",
    "pub": "append",
    "publish": "append",
    "push": "append",
    "put": "append",
    "remove": "rm",
    "replay": "read",
    "run": "serve",
    "server": "serve",
    "settings": "config",
    "show": "head",
    "spark": "pipeline",
    "sql": "pipeline sql",
    "start": "serve",
    "stat": "head",
    "status": "head",
    "streams": "ls",
    "sub": "read -f",
    "subscribe": "read -f",
    "sync": "mirror",
    "touch": "create",
    "up": "serve",
    "use": "context use",
    "view": "read",
    "watch": "ls -w",
    "write": "append",
}


def unknown_command(name: str, commands: Sequence[str]) -> str:
    """Return the message for a command that does not exist, with the one that was meant."""
    word = name.lower()
    near = OTHER_WORDS.get(word)
    if near is None:
        matches = get_close_matches(word, [*commands, *OTHER_WORDS], n=1)
        near = OTHER_WORDS.get(matches[0], matches[0]) if matches else None
    if near is None:
        return f"There is no command {name!r}."
    return f"There is no command {name!r}. Did you mean `penstock {near}`?"
