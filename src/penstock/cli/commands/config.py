"""`penstock config`: every setting, its value, and where the value comes from."""

from __future__ import annotations

import json
from typing import Any

import click

from penstock.cli.options import SECTIONS, SettingsCommand, resolved, setting_flags
from penstock.cli.text import aligned
from penstock.config.load import Resolved
from penstock.config.settings import SETTINGS
from penstock.units import SECRET

_HEAD = ("SETTING (TOML KEY)", "VALUE", "FROM", "FLAG", "ENVIRONMENT VARIABLE")


@click.command("config", cls=SettingsCommand)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@setting_flags
def command(as_json: bool, **options: Any) -> None:
    """Show every setting, its value and where the value comes from.

    The common settings come first, then the advanced ones. A secret is never shown.
    """
    rows = _rows(resolved(options))
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    lines = list(
        aligned(
            [_HEAD]
            + [(row["name"], row["shown"], row["origin"], row["flag"], row["env"]) for row in rows]
        )
    )
    click.echo(lines[0])
    for tier, title in SECTIONS.items():
        click.echo(f"\n{title}:")
        for row, line in zip(rows, lines[1:], strict=True):
            if row["tier"] == tier:
                click.echo(line)


def _rows(resolved: Resolved) -> list[dict[str, Any]]:
    """Return one row per setting. The name is also the TOML key; a secret has no value."""
    rows = []
    for setting in SETTINGS:
        value = getattr(resolved.settings, setting.name)
        shown = setting.show(value)
        is_plain = isinstance(value, bool | int | float | None)
        rows.append(
            {
                "name": setting.name,
                "value": value if is_plain and setting.kind is not SECRET else shown,
                "shown": shown,
                "origin": resolved.origins[setting.name],
                "flag": setting.flag,
                "env": setting.env,
                "toml": setting.name,
                "tier": setting.tier,
                "help": setting.help,
            }
        )
    return rows
