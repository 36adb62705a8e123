"""One setting apart from its value: its name, default, unit, bounds and help text, and how a
dataclass field carries them. The settings themselves are in settings.py, units in units.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from penstock.errors import PenstockError
from penstock.protocol.quotas import QUOTAS
from penstock.protocol.retention import RULES
from penstock.units import (
    COUNT,
    FILE,
    FOLDER,
    HOSTS,
    LIST,
    NETWORKS,
    NUMBER_MAX,
    ORIGINS,
    RATE,
    SECONDS,
    SECRET,
    SECRETS,
    SIZE,
    SWITCH,
    TEXT,
    WORKERS,
    Kind,
    choice,
)

T = TypeVar("T")
_TICK_S: Final = 0.001  # the shortest time that a timer can measure


class InvalidSetting(PenstockError):
    """A setting that cannot be used. The message is one line and names the setting."""

    code, title = "invalid-setting", "Invalid setting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Name, default, unit, bounds and help text of one setting."""

    name: str
    default: Any
    help: str
    kind: Kind
    group: str
    minimum: float
    maximum: float
    flag: str
    env: str
    common: bool  # an operator is likely to need it; the others are advanced

    @property
    def tier(self) -> str:
        return "common" if self.common else "advanced"

    def parse(self, raw: object, origin: str) -> Any:
        """Return the value of the text that a person wrote at `origin`, or raise InvalidSetting."""
        # TOML and Python have lists of their own; everywhere else they are written with commas.
        text = (
            ",".join(map(str, raw))
            if isinstance(raw, list | tuple) and self.kind.type is tuple
            else str(raw)
        )
        try:
            value = self.kind.parse(text)
        except ValueError:
            shown = "" if self.kind in (SECRET, SECRETS) else f", not {raw!r}"
            raise self._invalid(f"must be {self.kind.expects}{shown}", origin) from None
        except PenstockError as error:  # It says itself what is wrong, and what to do.
            raise InvalidSetting(f"Setting {self.name} (from {origin}): {error.detail}") from None
        self.check(value, origin)
        return value

    def check(self, value: Any, origin: str) -> None:
        """Raise InvalidSetting for a value of the wrong type or out of bounds."""
        if value is None and self.default is None:
            return
        if not _is_a(value, self.kind.type):
            raise self._invalid(f"must be {self.kind.expects}, not {type(value).__name__}", origin)
        if self.kind.type not in (int, float):
            return
        if not value >= self.minimum:  # also refuses NaN
            raise self._invalid(f"must be at least {self.kind.show(self.minimum)}", origin)
        if value > self.maximum:
            raise self._invalid(f"must be at most {self.kind.show(self.maximum)}", origin)

    def show(self, value: Any) -> str:
        return "" if value is None else self.kind.show(value)

    def _invalid(self, reason: str, origin: str) -> InvalidSetting:
        return InvalidSetting(f"Setting {self.name} {reason} (from {origin}).")


def _is_a(value: object, expected: type) -> bool:
    if isinstance(value, bool):
        return expected is bool
    return isinstance(value, int | float if expected is float else expected)


class Group:
    """Makes dataclass fields for settings that belong together, typed as their defaults."""

    def __init__(self, title: str) -> None:
        self.title = title

    def _field(
        self,
        default: T,
        help: str,
        kind: Kind,
        *,
        common: bool,
        minimum: float = 0,
        maximum: float = NUMBER_MAX,
        flag: str = "",
        env: str = "",
    ) -> T:
        details = {"default": default, "help": help, "kind": kind, "group": self.title}
        details |= {"minimum": minimum, "maximum": maximum, "flag": flag, "env": env}
        # A setting that is a secret is not part of the repr, which errors and logs may quote.
        is_shown = kind not in (SECRET, SECRETS)
        return field(default=default, metadata={**details, "common": common}, repr=is_shown)

    def size(
        self, default: int, help: str, *, minimum: int = 1, flag: str = "", common: bool = False
    ) -> int:
        return self._field(default, help, SIZE, minimum=minimum, flag=flag, common=common)

    def count(
        self,
        default: int,
        help: str,
        *,
        minimum: int = 1,
        maximum: int = NUMBER_MAX,
        common: bool = False,
    ) -> int:
        return self._field(default, help, COUNT, minimum=minimum, maximum=maximum, common=common)

    def workers(self, default: int, help: str, *, maximum: int, common: bool = False) -> int:
        return self._field(default, help, WORKERS, minimum=1, maximum=maximum, common=common)

    def seconds(
        self, default: float, help: str, *, minimum: float = _TICK_S, common: bool = False
    ) -> float:
        return self._field(float(default), help, SECONDS, minimum=minimum, common=common)

    def rate(self, default: float, help: str, *, flag: str, common: bool = False) -> float:
        return self._field(float(default), help, RATE, flag=flag, common=common)

    def switch(self, default: bool, help: str, *, common: bool = False) -> bool:
        return self._field(default, help, SWITCH, common=common)

    def text(self, default: str, help: str, *, common: bool = False) -> str:
        return self._field(default, help, TEXT, common=common)

    def rules(self, default: str, help: str, *, common: bool = False) -> str:
        return self._field(default, help, RULES, common=common)

    def quotas(self, default: str, help: str, *, common: bool = False) -> str:
        return self._field(default, help, QUOTAS, common=common)

    def secret(
        self, help: str, *, flag: str = "", env: str = "", common: bool = False
    ) -> str | None:
        return self._field(cast(str | None, None), help, SECRET, flag=flag, env=env, common=common)

    def texts(self, help: str, *, common: bool = False) -> tuple[str, ...]:
        return self._field((), help, LIST, common=common)

    def origins(self, help: str, *, flag: str, common: bool = False) -> tuple[str, ...]:
        return self._field((), help, ORIGINS, flag=flag, common=common)

    def hosts(self, help: str, *, common: bool = False) -> tuple[str, ...]:
        return self._field((), help, HOSTS, common=common)

    def secrets(self, help: str, *, common: bool = False) -> tuple[str, ...]:
        return self._field((), help, SECRETS, common=common)

    def networks(self, help: str, *, common: bool = False) -> tuple[str, ...]:
        return self._field((), help, NETWORKS, common=common)

    def folder(self, default: str, help: str, *, common: bool = False) -> Path:
        return self._field(Path(default), help, FOLDER, common=common)

    def file(self, help: str, *, common: bool = False) -> Path | None:
        return self._field(cast(Path | None, None), help, FILE, common=common)

    def choice(
        self, default: str, help: str, *, choices: tuple[str, ...], common: bool = False
    ) -> str:
        return self._field(default, help, choice(*choices), common=common)
