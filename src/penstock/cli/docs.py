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
from penstock.cli.connection import ENV_TOKEN, ENV_URL, URL_DEFAULT
from penstock.cli.exits import MEANINGS
from penstock.cli.formats import FIELDS
from penstock.config.setting import Setting
from penstock.config.settings import ENV_CONFIG, SETTINGS, TOML_NAME

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
    """The help of every command, as the terminal shows it, and what they have in common."""
    parts = [f"# Command line\n\n{_NOTE}\n```text\n{_help(main, 'penstock')}\n```\n", _common()]
    root = click.Context(main, info_name="penstock")
    for name in COMMANDS:
        command = main.get_command(root, name)
        assert command is not None
        parts.append(f"\n## penstock {name}\n\n```text\n{_help(command, name, root)}\n```\n")
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=name, parent=root)
            for child_name, child in command.commands.items():
                text = _help(child, child_name, context)
                parts.append(f"\n### penstock {name} {child_name}\n\n```text\n{text}\n```\n")
    return "".join(parts)


def _common() -> str:
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in MEANINGS.items())
    fields = "\n".join(f"| `%{field}` | {meaning} |" for field, (meaning, _) in FIELDS.items())
    return f"""
## Streams and servers

A STREAM is a path on the server in use (`orders/eu`), a path on a named server (`prod:orders/eu`,
see `penstock context`), or a full URL of any server that speaks the protocol. A path whose first
part is also the name of a context is written with a slash before it: `/prod:orders`.

The server in use is the one of `--url`, else of `--context`, else of `{ENV_URL}`, else of the
context that was chosen with `penstock context use`, else {URL_DEFAULT}. A token comes from
`--token`, else from the context or from `{ENV_TOKEN}` (which is also the token that
`penstock serve` asks for). The token of a context goes to that context's server alone, and
`{ENV_TOKEN}` only to the server of `{ENV_URL}` if that is set.

Contexts are kept in `penstock/contexts.json` below `$XDG_CONFIG_HOME` (or `~/.config`), in a file
that its owner alone can read.

## Output

Results go to stdout, everything else to stderr. `--json` prints results for machines; for `read`
and `ls` one object a line. Colours and progress bars appear on a terminal only; `NO_COLOR` switches
colours off. On a terminal, control characters in what a stream holds are replaced.

`read --format` fills in a pattern for each message, without a line end of its own. Besides the
fields it knows `\\n`, `\\r`, `\\t`, `\\0`, `\\\\` and `\\xNN`.

| field | |
|---|---|
{fields}

Offsets are exact for the messages of JSON streams on Penstock servers. Elsewhere, `%o` is where the
batch with the message begins, and `%O` goes on from there until the last message of the batch.

## Exit codes

| code | |
|---|---|
{codes}

## Resuming without state

`append --producer`, `import` and `mirror` need no file to go on after a crash. They number their
requests by position in the input (line, byte, source offset), sent as the producer's epoch, which a
server keeps together with the data, all or nothing. A run begins by asking the server for it. With
a Penstock server as the destination, a request of a killed run that is still on its way cannot slip
in between either: it is fenced by the epoch, by `If-Match`, or is the same request byte for byte.

An export is FILE and `FILE.penstock`, a JSON object: `format` (1), `url`, `content_type`, `offset`
(where to go on), `bytes` (how much of FILE is before that offset; a longer rest is cut off) and
`closed`.

## Shell completion

```bash
eval "$(penstock completion bash)"                                    # in ~/.bashrc
eval "$(penstock completion zsh)"                                     # in ~/.zshrc
penstock completion fish > ~/.config/fish/completions/penstock.fish
```
"""


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
