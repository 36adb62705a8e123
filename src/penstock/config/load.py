"""The settings in effect: a flag wins over an environment variable, that over the TOML file, that
over the default. A name that is not a setting is refused, with the setting that it resembles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.config.setting import InvalidSetting, Setting
from penstock.config.settings import ENV_PREFIX, SETTINGS, Settings

TOML_NAME: Final = "penstock.toml"
ENV_CONFIG: Final = "PENSTOCK_CONFIG"

# Kubernetes sets these for a service called "penstock": they are not meant for the server.
_KUBERNETES = re.compile(r"PENSTOCK_(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP)\w*)", re.ASCII)

# Former names of settings, and their present ones.
_RENAMED = {"cors_origin": "cors_origins"}

_BY_NAME = {setting.name: setting for setting in SETTINGS}
_BY_ENV = {setting.env: setting for setting in SETTINGS}


class Resolved(NamedTuple):
    """Settings, and the origin of each value by name ("default" if nothing sets it)."""

    settings: Settings
    origins: dict[str, str]


class _Entry(NamedTuple):
    """A value as a person wrote it, and where."""

    setting: Setting
    raw: object
    origin: str


def load(
    flags: Mapping[str, object], environ: Mapping[str, str], toml_path: Path | None = None
) -> Settings:
    """Return the settings in effect. `flags` maps names of settings to text; None is not set."""
    return resolve(flags, environ, toml_path).settings


def resolve(
    flags: Mapping[str, object], environ: Mapping[str, str], toml_path: Path | None = None
) -> Resolved:
    """Return the settings in effect and the origin of each value."""
    values: dict[str, Any] = {}
    origins = {setting.name: "default" for setting in SETTINGS}
    for setting, raw, origin in (
        *_from_toml(environ, toml_path),
        *_from_environ(environ),
        *_from_flags(flags),
    ):
        if raw is not None:
            values[setting.name] = setting.parse(raw, origin)
            origins[setting.name] = origin
    settings = Settings(**values)
    _check_together(settings)
    return Resolved(settings, origins)


def _from_flags(flags: Mapping[str, object]) -> Iterator[_Entry]:
    for name, raw in flags.items():
        if name not in _BY_NAME:
            raise InvalidSetting(f"There is no setting {name!r}.{_hint(name, _BY_NAME)}")
        yield _Entry(_BY_NAME[name], raw, _BY_NAME[name].flag)


def _from_toml(environ: Mapping[str, str], toml_path: Path | None) -> Iterator[_Entry]:
    import tomllib  # here, so that `penstock --help` does not load it

    if toml_path is None and environ.get(ENV_CONFIG):
        toml_path = Path(environ[ENV_CONFIG])
    path = toml_path or Path(TOML_NAME)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if toml_path is None:
            return
        raise InvalidSetting(f"There is no settings file {path}.") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(f"The settings file {path} is not valid TOML: {error}.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidSetting(f"The settings file {path} cannot be read: {reason}.") from None
    for key, raw in table.items():
        if key not in _BY_NAME:
            hint = _hint(key, _BY_NAME)
            raise InvalidSetting(f"There is no setting {key!r} (from {path}).{hint}")
        yield _Entry(_BY_NAME[key], raw, str(path))


def _from_environ(environ: Mapping[str, str]) -> Iterator[_Entry]:
    for name, raw in environ.items():
        if not name.startswith(ENV_PREFIX) or name == ENV_CONFIG or _KUBERNETES.fullmatch(name):
            continue
        if name == "PENSTOCK_PORT" and raw.startswith(("tcp://", "udp://")):
            continue  # set by Kubernetes, too
        if name in _BY_ENV:
            yield _Entry(_BY_ENV[name], raw, name)
        elif hint := _hint(name, _BY_ENV):
            raise InvalidSetting(f"The variable {name} is not a setting.{hint}")


def _hint(name: str, names: Iterable[str]) -> str:
    """Return a sentence that names what is meant instead of `name`: what it was renamed to, or the
    most similar of `names`; or nothing."""
    from difflib import get_close_matches

    renamed = _RENAMED.get(name.removeprefix(ENV_PREFIX).lower())
    if renamed is not None:
        is_variable = name.startswith(ENV_PREFIX)
        return f" It is {ENV_PREFIX + renamed.upper() if is_variable else renamed} now."
    # Without the prefix: it would make every variable look like every other.
    bare = {each.removeprefix(ENV_PREFIX).lower(): each for each in names}
    matches = get_close_matches(name.removeprefix(ENV_PREFIX).lower(), bare, n=1)
    return f" Did you mean {bare[matches[0]]}?" if matches else ""


def _check_together(settings: Settings) -> None:
    """Refuse values that are valid alone but not together."""
    if settings.cors_credentials and (not settings.cors_origins or "*" in settings.cors_origins):
        raise InvalidSetting(
            "Setting cors_credentials needs origins by name: list them in cors_origins, without *."
        )
    has_tls = settings.tls_cert is not None or settings.tls_self_signed
    for name, needs, holds in (
        ("tls_key", "tls_cert", settings.tls_cert is not None),
        ("tls_client_ca", "tls_cert or tls_self_signed", has_tls),
        ("tls_client_required", "tls_client_ca", settings.tls_client_ca is not None),
        ("tls_principals", "tls_client_ca", settings.tls_client_ca is not None),
        ("proxy_protocol", "trusted_proxies", bool(settings.trusted_proxies)),
    ):
        if getattr(settings, name) and not holds:
            raise InvalidSetting(f"Setting {name} needs {needs}; set that, too.")
    if settings.tls_cert is not None and settings.tls_self_signed:
        raise InvalidSetting("Settings tls_cert and tls_self_signed exclude each other; set one.")
    for name in ("receive_bytes_max", "append_queue_bytes_max"):
        if getattr(settings, name) < settings.body_bytes_max:
            raise InvalidSetting(
                f"Setting {name} must be at least body_bytes_max "
                f"({_BY_NAME['body_bytes_max'].show(settings.body_bytes_max)})."
            )
