"""The contexts: servers by name, in a JSON file that only its owner can read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import click

from penstock.cli.system import config_folder, read_if_present, replace_private

FILE_NAME = "contexts.json"


class Context(NamedTuple):
    """The URL of a server and the token it requires."""

    url: str
    token: str | None = None


class Contexts(NamedTuple):
    """All contexts by name, and the name of the current one."""

    named: dict[str, Context]
    current: str | None = None

    def get(self, name: str) -> Context:
        if name not in self.named:
            names = ", ".join(sorted(self.named)) or "none"
            raise click.ClickException(
                f"There is no context {name!r} (contexts: {names}). "
                f"Add it with `penstock context add {name} URL`."
            )
        return self.named[name]


def path() -> Path:
    return config_folder() / FILE_NAME


def load() -> Contexts:
    content = read_if_present(path())
    if content is None:
        return Contexts({})
    try:
        document = json.loads(content)
        named = {
            str(name): Context(str(entry["url"]), entry.get("token"))
            for name, entry in document["contexts"].items()
        }
        return Contexts(named, document.get("current"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise click.ClickException(
            f"{path()} is not a valid contexts file. Repair or remove it."
        ) from None


def save(contexts: Contexts) -> None:
    entries = {
        name: {"url": context.url} | ({"token": context.token} if context.token else {})
        for name, context in sorted(contexts.named.items())
    }
    content = {"current": contexts.current, "contexts": entries}
    replace_private(path(), json.dumps(content, indent=2).encode() + b"\n")


def server_url(text: str, source: str = "--url") -> str:
    """Return the checked URL of a server, without a slash at its end."""
    from penstock.client.http import checked_url
    from penstock.errors import InvalidUrl

    try:
        url = checked_url(text)
    except InvalidUrl as error:
        raise click.UsageError(f"{source}: {error.detail}") from None
    server, prefix, name = url.partition("/v1/")
    if prefix:
        stream = name.partition("/")[2]
        example = f" and {stream} as the name" if name.startswith("stream/") and stream else ""
        raise click.UsageError(
            f"{source} is the URL of a server, and {url} is a path on one: use {server}{example}."
        )
    return url
