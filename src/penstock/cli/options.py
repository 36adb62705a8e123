"""Every setting as a command-line flag. Values stay text here; `penstock.config` checks them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from penstock.config.load import ENV_CONFIG, TOML_NAME, Resolved, resolve
from penstock.config.setting import Setting
from penstock.config.settings import SETTINGS
from penstock.units import SWITCH

F = TypeVar("F", bound=Callable[..., Any])

SECTIONS: Final = {"common": "Common settings", "advanced": "Advanced settings"}


class SettingsCommand(click.Command):
    """A command with a flag for every setting. Its help lists the common settings first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        titles = {setting.name: SECTIONS[setting.tier] for setting in SETTINGS}
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        sections |= {title: [] for title in SECTIONS.values()}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections[titles.get(parameter.name or "", "Options")].append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def setting_flags(function: F) -> F:
    """Add `--config` and a flag for every setting to a command; `resolved` reads them."""
    for setting in reversed(SETTINGS):
        function = _flag(setting)(function)
    return click.option(
        "--config",
        "config_path",
        metavar="FILE",
        help=f"Settings file.  [env: {ENV_CONFIG}; default: ./{TOML_NAME} if it exists]",
    )(function)


def _flag(setting: Setting) -> Callable[[F], F]:
    if setting.kind is SWITCH and setting.default:
        flags = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        return click.option(flags, setting.name, default=None, help=setting.help)
    if setting.kind is SWITCH:
        return click.option(
            setting.flag, setting.name, flag_value="true", default=None, help=setting.help
        )
    shown = setting.show(setting.default)
    return click.option(
        setting.flag,
        setting.name,
        metavar=setting.kind.metavar,
        help=f"{setting.help}  [default: {shown}]" if shown else setting.help,
    )


def resolved(options: dict[str, Any]) -> Resolved:
    """Return the settings in effect for the options of a command."""
    flags = {setting.name: options[setting.name] for setting in SETTINGS}
    path = options["config_path"]
    return resolve(flags, os.environ, Path(path) if path else None)
