"""Named servers: a small JSON file in the user's configuration folder, readable by them alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import click

from penstock.cli.system import config_folder, read_if_there, replace_private

FILE_NAME = "contexts.json"


class Context(NamedTuple):
    """A server by its URL, and the token it wants."""

    url: str
    token: str | None = None


class Contexts(NamedTuple):
    """All named contexts, and the name of the one in use."""

    named: dict[str, Context]
    current: str | None = None

    def get(self, name: str) -> Context:
        if name not in self.named:
            known = ", ".join(sorted(self.named)) or "none yet"
            raise click.ClickException(
                f"there is no context {name!r} (known: {known}); "
                f"make it with `penstock context add {name} URL`"
            )
        return self.named[name]


def path() -> Path:
    return config_folder() / FILE_NAME


def load() -> Contexts:
    content = read_if_there(path())
    if content is None:
        return Contexts({})
    try:
        found = json.loads(content)
        named = {
            str(name): Context(str(entry["url"]), entry.get("token"))
            for name, entry in found["contexts"].items()
        }
        return Contexts(named, found.get("current"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise click.ClickException(f"{path()} holds no contexts: repair or remove it") from None


def save(contexts: Contexts) -> None:
    entries = {
        name: {"url": context.url} | ({"token": context.token} if context.token else {})
        for name, context in sorted(contexts.named.items())
    }
    content = {"current": contexts.current, "contexts": entries}
    replace_private(path(), json.dumps(content, indent=2).encode() + b"\n")


def server_url(text: str) -> str:
    """The URL of a server, checked, without a slash at its end."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise click.BadParameter(f"{text!r} is not a URL such as http://127.0.0.1:4437")
    return text.rstrip("/")
