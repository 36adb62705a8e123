"""What is known about one setting besides its value, and how a dataclass field carries it.

The settings themselves are in config.py; how values are written is in units.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from penstock.errors import PenstockError
from penstock.protocol.retention import RULES
from penstock.units import (
    COUNT,
    FOLDER,
    LIST,
    NETWORKS,
    NUMBER_MAX,
    RATE,
    SECONDS,
    SECRET,
    SECRETS,
    SIZE,
    SWITCH,
    TEXT,
    Kind,
    choice,
)

T = TypeVar("T")
_TICK_S = 0.001  # the shortest time that a timer can keep


class InvalidSetting(PenstockError):
    """A setting that cannot be used; the message is one line and says which and why."""

    code, title = "invalid-setting", "Invalid setting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Name, default, unit, bounds and help of one setting."""

    name: str
    default: Any
    help: str
    kind: Kind
    group: str
    minimum: float
    maximum: float
    flag: str
    env: str

    def parse(self, raw: object, origin: str) -> Any:
        """The value of what a person wrote at `origin`, or InvalidSetting."""
        # TOML has lists of its own; everywhere else they are written with commas.
        text = (
            ",".join(map(str, raw))
            if isinstance(raw, list) and self.kind.type is tuple
            else str(raw)
        )
        try:
            value = self.kind.parse(text)
        except ValueError:
            shown = "this" if self.kind in (SECRET, SECRETS) else repr(raw)
            raise InvalidSetting(
                f"{origin}: {shown} is not valid for {self.name}: expected {self.kind.expects}"
            ) from None
        self.check(value, origin)
        return value

    def check(self, value: Any, origin: str) -> None:
        """Refuse a value of the wrong type or out of bounds."""
        if value is None and self.default is None:
            return
        if not _is_a(value, self.kind.type):
            raise InvalidSetting(
                f"{origin}: {self.name} must be {self.kind.expects}, not {type(value).__name__}"
            )
        if self.kind.type not in (int, float):
            return
        if not value >= self.minimum:  # also refuses NaN
            raise InvalidSetting(
                f"{origin}: {self.name} must be at least {self.kind.show(self.minimum)}"
            )
        if value > self.maximum:
            raise InvalidSetting(
                f"{origin}: {self.name} must be at most {self.kind.show(self.maximum)}"
            )

    def show(self, value: Any) -> str:
        return "" if value is None else self.kind.show(value)


def _is_a(value: object, wanted: type) -> bool:
    if isinstance(value, bool):
        return wanted is bool
    return isinstance(value, int | float if wanted is float else wanted)


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
        least: float = 0,
        most: float = NUMBER_MAX,
        flag: str = "",
        env: str = "",
    ) -> T:
        details = {"default": default, "help": help, "kind": kind, "group": self.title}
        details |= {"minimum": least, "maximum": most, "flag": flag, "env": env}
        return field(default=default, metadata=details)

    def size(self, default: int, help: str, *, least: int = 1, flag: str = "") -> int:
        return self._field(default, help, SIZE, least=least, flag=flag)

    def count(self, default: int, help: str, *, least: int = 1, most: int = NUMBER_MAX) -> int:
        return self._field(default, help, COUNT, least=least, most=most)

    def seconds(self, default: float, help: str, *, least: float = _TICK_S) -> float:
        return self._field(float(default), help, SECONDS, least=least)

    def rate(self, default: float, help: str, *, flag: str) -> float:
        return self._field(float(default), help, RATE, flag=flag)

    def switch(self, default: bool, help: str) -> bool:
        return self._field(default, help, SWITCH)

    def text(self, default: str, help: str) -> str:
        return self._field(default, help, TEXT)

    def rules(self, default: str, help: str) -> str:
        return self._field(default, help, RULES)

    def secret(self, help: str, *, flag: str = "", env: str = "") -> str | None:
        return self._field(cast(str | None, None), help, SECRET, flag=flag, env=env)

    def texts(self, help: str) -> tuple[str, ...]:
        return self._field((), help, LIST)

    def secrets(self, help: str) -> tuple[str, ...]:
        return self._field((), help, SECRETS)

    def networks(self, help: str) -> tuple[str, ...]:
        return self._field((), help, NETWORKS)

    def folder(self, default: str, help: str) -> Path:
        return self._field(Path(default), help, FOLDER)

    def choice(self, default: str, help: str, *, among: tuple[str, ...]) -> str:
        return self._field(default, help, choice(*among))
