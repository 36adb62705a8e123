"""Every setting as a command-line flag. Values stay text here: config.py judges them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.config.setting import Setting
from penstock.config.settings import ENV_CONFIG, SETTINGS, TOML_NAME, Resolved, resolve
from penstock.units import SWITCH

F = TypeVar("F", bound=Callable[..., Any])


def setting_flags(function: F) -> F:
    """Give a command `--config` and a flag for every setting; read them with `resolved`."""
    for setting in reversed(SETTINGS):
        function = _flag(setting)(function)
    return click.option(
        "--config",
        "config_path",
        metavar="FILE",
        help=f"Settings file.  [env: {ENV_CONFIG}; default: ./{TOML_NAME} if there is one]",
    )(function)


def _flag(setting: Setting) -> Callable[[F], F]:
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
    """The settings in effect for a command's options."""
    flags = {setting.name: options[setting.name] for setting in SETTINGS}
    path = options["config_path"]
    return resolve(flags, os.environ, Path(path) if path else None)
