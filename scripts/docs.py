"""Writes the generated pages: settings, commands and errors here, HTTP and metrics in `reference`.

Run as `python -m scripts.docs [folder]` (`make docs`); a test fails when the files are stale.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Final

import click

from penstock.cli import COMMANDS, main
from penstock.cli.connection import ENV_TOKEN, ENV_URL, URL_DEFAULT
from penstock.cli.exits import MEANINGS
from penstock.cli.formats import FIELDS
from penstock.cli.options import SECTIONS
from penstock.config.load import ENV_CONFIG, TOML_NAME
from penstock.config.setting import Setting
from penstock.config.settings import SETTINGS
from penstock.error_guide import FIELDS as PROBLEM_FIELDS
from penstock.error_guide import GUIDE, every_error, fields_of, headers_of, is_sent
from penstock.errors import PenstockError
from scripts.reference import http_list, metric_list

_NOTE: Final = "<!-- Written by `make docs`; edit the source, not this file. -->\n"


def configuration() -> str:
    """Return the page of the settings: the common ones first, a table for each group."""
    parts = [
        f"# Configuration\n\n{_NOTE}",
        f"""
A setting is a flag of `penstock serve`, an environment variable or a key of a TOML file. A flag
wins over the environment, the environment over the file, the file over the default. The file is
`{TOML_NAME}` in the working directory, or the one named by `--config` or `{ENV_CONFIG}`.
`penstock config` shows the values in effect and where each comes from.

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

Most servers need the common settings only. The advanced settings are limits, sizes and intervals
whose defaults suit most loads.
""",
    ]
    for tier, title in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        settings = [setting for setting in SETTINGS if setting.tier == tier]
        for group, members in groupby(settings, key=lambda setting: setting.group):
            parts.append(f"\n### {group}\n\n{_table(members)}")
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
    """Return the page of the commands: the help of each, and what they have in common."""
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
    return "".join((_streams_and_servers(), _output(), _exit_codes(), _RESUMING, _COMPLETION))


def _streams_and_servers() -> str:
    return f"""
## Streams and servers

A STREAM is a path on the current server (`orders/eu`), a path on a named server (`prod:orders/eu`,
see `penstock context`), or the full URL of any server that speaks the protocol. If the first part
of a path is also the name of a context, write a slash before it: `/prod:orders`.

The current server is the first of these that is set: `--url`, `--context`, `{ENV_URL}`, the context
chosen with `penstock context use`, {URL_DEFAULT}.

The token is that of `--token`, else that of the context or of `{ENV_TOKEN}` (which is also the
token that `penstock serve` requires). `{ENV_TOKEN}` wins over the token of the current context; the
token of a context that the command names wins over `{ENV_TOKEN}`. The token of a context is sent to
the server of that context only. If `{ENV_URL}` is set, `{ENV_TOKEN}` is sent to that server only.

Contexts are stored in `penstock/contexts.json` below `$XDG_CONFIG_HOME` (or `~/.config`). Only its
owner can read the file.
"""


def _output() -> str:
    fields = "\n".join(f"| `%{field}` | {meaning} |" for field, (meaning, _) in FIELDS.items())
    return f"""
## Output

Results go to stdout, everything else goes to stderr. `--json` prints results for programs; `read`
and `ls` print one object per line. Colours and progress bars appear on a terminal only. `NO_COLOR`
switches colours off. On a terminal, control characters in the data of a stream are replaced.

`read --format` prints each message by a pattern and adds no line end. Besides the fields below, a
pattern can contain `\\n`, `\\r`, `\\t`, `\\0`, `\\\\` and `\\xNN`.

| field | |
|---|---|
{fields}

Offsets are exact for the messages of JSON streams on Penstock servers. Elsewhere, `%o` is the
offset of the batch that holds the message. `%O` is the same offset, and the next offset for the
last message of the batch.
"""


def _exit_codes() -> str:
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in MEANINGS.items())
    return f"""
## Exit codes

| code | |
|---|---|
{codes}
"""


_RESUMING: Final = """
## Resuming without local state

`append --producer`, `import` and `mirror` need no file to resume after a crash. They number their
requests by the position in the input (line, byte, source offset) and send it as the producer's
epoch, which the server stores together with the data, all or nothing. Each run starts by asking the
server for that epoch. If the destination is a Penstock server, a late request of a killed run
cannot be stored in between: it is fenced by the epoch or by `If-Match`, or it is the same request
byte for byte.

An export is FILE and `FILE.penstock`, a JSON object: `format` (1), `url`, `content_type`, `offset`
(where the next run continues), `bytes` (the length of FILE at that offset; the next run cuts off
anything longer) and `closed`.
"""

_COMPLETION: Final = """
## Shell completion

```bash
eval "$(penstock completion bash)"                                    # in ~/.bashrc
eval "$(penstock completion zsh)"                                     # in ~/.zshrc
penstock completion fish > ~/.config/fish/completions/penstock.fish
```
"""


def _help(command: click.Command, name: str, parent: click.Context | None = None) -> str:
    # A fixed width: the pages must not depend on the terminal of the person who runs this.
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=100,
        max_content_width=100,
        help_option_names=["-h", "--help"],
    )
    return command.get_help(context).rstrip()


def error_list() -> str:
    """Return the page of the errors: what each means, and what to do about it."""
    sent = [each for each in every_error().values() if is_sent(each)]
    others = [each for each in every_error().values() if not is_sent(each)]
    members = "\n".join(f"| `{name}` | {text} |" for name, text in PROBLEM_FIELDS.items())
    parts = [
        f"# Errors\n\n{_NOTE}",
        f"""
Every error of a server is a problem document (RFC 9457, `application/problem+json`). Its `code` is
stable: programs decide by it. Its `type`, such as `/problems/stream-closed`, leads to a page of the
server with the text below. The clients raise the classes of `penstock.errors` for these documents,
and `PenstockError` is the base of all of them.

| field | |
|---|---|
{members}

## Sent by servers
""",
    ]
    for status, group in groupby(sent, key=lambda error: error.status):
        parts.append(f"\n### {status}\n")
        parts += [_error(each) for each in group]
    parts.append("\n## Raised by clients and commands\n")
    parts += [_error(each) for each in others]
    return "".join(parts)


def _error(error: type[PenstockError]) -> str:
    advice = GUIDE[error.code]
    more = {"fields": fields_of(error), "headers": headers_of(error)}
    lines = [
        f"- More {kind}: " + " ".join(f"`{name}`: {text}" for name, text in texts.items())
        for kind, texts in more.items()
        if texts
    ]
    extra = "\n" + "\n".join(lines) + "\n" if lines else ""
    name = f"`{error.__name__}`"
    return f"\n#### {error.code}\n\n{error.title} ({name}). {advice.cause} {advice.remedy}\n{extra}"


PAGES: Final[dict[str, Callable[[], str]]] = {
    "configuration.md": configuration,
    "cli.md": commands,
    "errors.md": error_list,
    "http.md": http_list,
    "metrics.md": metric_list,
}


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
