"""`penstock config`: every setting, its value, and who set it."""

from __future__ import annotations

import json
from typing import Any

import click

from penstock.cli.options import resolved, setting_flags
from penstock.cli.text import aligned
from penstock.config.settings import SETTINGS, Resolved
from penstock.units import SECRET


@click.command("config")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@setting_flags
def command(as_json: bool, **options: Any) -> None:
    """Show every setting, its value and where the value came from."""
    found = resolved(options)
    if as_json:
        click.echo(json.dumps(_rows(found), indent=2))
        return
    lines = [("SETTING (TOML KEY)", "VALUE", "FROM", "FLAG", "ENVIRONMENT VARIABLE")]
    lines += [
        (row["name"], row["shown"], row["origin"], row["flag"], row["env"]) for row in _rows(found)
    ]
    click.echo("\n".join(aligned(lines)))


def _rows(found: Resolved) -> list[dict[str, Any]]:
    """One row a setting. The name is also the TOML key; a secret's value is never shown."""
    rows = []
    for setting in SETTINGS:
        value = getattr(found.settings, setting.name)
        shown = setting.show(value)
        plain = isinstance(value, bool | int | float | None)
        rows.append(
            {
                "name": setting.name,
                "value": value if plain and setting.kind is not SECRET else shown,
                "shown": shown,
                "origin": found.origins[setting.name],
                "flag": setting.flag,
                "env": setting.env,
                "toml": setting.name,
                "help": setting.help,
            }
        )
    return rows
