"""Writes docs/configuration.md and docs/cli.md from the settings and commands themselves.

Run as `python -m penstock.cli.docs [folder]`; a test fails when the files are stale.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path

import click

from penstock.cli import COMMANDS, main
from penstock.config import ENV_CONFIG, SETTINGS, TOML_NAME
from penstock.setting import Setting

_NOTE = "<!-- Written by `make docs`; edit the source, not this file. -->\n"


def configuration() -> str:
    """Every setting in one table a group."""
    parts = [
        f"# Configuration\n\n{_NOTE}",
        f"""
Every setting can be given as a flag of `penstock serve`, as an environment variable or as a key of
a TOML file. A flag wins over the environment, the environment over the file, the file over the
default. The file is `{TOML_NAME}` in the working directory, or the one named by `--config` or
`{ENV_CONFIG}`. `penstock config` shows the values in effect and where each came from.

Sizes are bytes, or a number with `k`, `M` or `G` (the same as `KiB`, `MiB`, `GiB`: powers of 1024).
Durations are seconds. Switches are `true` or `false`; as a flag they take no value. An unknown key
in the file is an error, and so is a `PENSTOCK_` variable that is nearly the name of a setting.

```toml
# {TOML_NAME}
port = 4437
data_dir = "/var/lib/penstock"
body_bytes_max = "16MiB"
long_poll_timeout_s = 20
```
""",
    ]
    for group, members in groupby(SETTINGS, key=lambda setting: setting.group):
        parts.append(f"\n## {group}\n\n{_table(members)}")
    return "".join(parts)


def _table(settings: Iterable[Setting]) -> str:
    lines = ["| TOML key | flag | environment | default | |", "|---|---|---|---|---|"]
    for setting in settings:
        shown = setting.show(setting.default)
        default = f"`{shown}`" if shown else "none"
        words = setting.kind.metavar.split("|")
        help = f"{setting.help} (`{'`, `'.join(words)}`)" if len(words) > 1 else setting.help
        lines.append(
            f"| `{setting.name}` | `{setting.flag}` | `{setting.env}` | {default} | {help} |"
        )
    return "\n".join(lines) + "\n"


def commands() -> str:
    """The help of every command, as the terminal shows it."""
    parts = [f"# Command line\n\n{_NOTE}\n```text\n{_help(main, 'penstock')}\n```\n"]
    root = click.Context(main, info_name="penstock")
    for name in COMMANDS:
        command = main.get_command(root, name)
        assert command is not None
        parts.append(f"\n## penstock {name}\n\n```text\n{_help(command, name, root)}\n```\n")
    return "".join(parts)


def _help(command: click.Command, name: str, parent: click.Context | None = None) -> str:
    # A fixed width: the docs must not depend on the terminal of whoever makes them.
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=100,
        max_content_width=100,
        help_option_names=["-h", "--help"],
    )
    return command.get_help(context).rstrip()


PAGES: dict[str, Callable[[], str]] = {"configuration.md": configuration, "cli.md": commands}


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
