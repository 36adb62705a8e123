"""The same user, described by every library that a schema may come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, TypedDict

import attrs
import msgspec
import pydantic


class PydanticUser(pydantic.BaseModel):
    id: str
    age: int = pydantic.Field(ge=0, alias="years")


@pydantic.dataclasses.dataclass
class PydanticDataclassUser:
    id: str
    years: int = pydantic.Field(ge=0)


class StructUser(msgspec.Struct):
    id: str
    years: Annotated[int, msgspec.Meta(ge=0)]


@dataclass
class DataclassUser:
    id: str
    years: int

    def __post_init__(self) -> None:
        if self.years < 0:
            raise ValueError("years must not be negative")


@attrs.define
class AttrsUser:
    id: str
    years: int = attrs.field(validator=attrs.validators.ge(0))


class TypedDictUser(TypedDict):
    id: str
    years: Annotated[int, msgspec.Meta(ge=0)]


JSON_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["id", "years"],
    "properties": {"id": {"type": "string"}, "years": {"type": "integer", "minimum": 0}},
}


def function(value: Any) -> Any:
    """Returns another kind of value, as a converting check may."""
    if not isinstance(value["years"], int) or value["years"] < 0:
        raise ValueError("years must not be negative")
    return (value["id"], value["years"])


def silent(value: Any) -> None:
    assert isinstance(value["id"], str)
    assert isinstance(value["years"], int)
    assert value["years"] >= 0


def predicate(value: Any) -> bool:
    return isinstance(value.get("years"), int) and value["years"] >= 0


class OwnValidator:
    """The protocol itself."""

    def load(self, raw: bytes) -> StructUser:
        return msgspec.json.decode(raw, type=StructUser)

    def dump(self, value: Any) -> bytes:
        return msgspec.json.encode(value)


ADA: Final = {"id": "ada", "years": 36}
# schema, and the checked value that it makes of ADA
SCHEMAS: Final[dict[str, tuple[Any, Any]]] = {
    "pydantic": (PydanticUser, PydanticUser(id="ada", years=36)),
    "pydantic dataclass": (PydanticDataclassUser, PydanticDataclassUser("ada", 36)),
    "pydantic adapter": (
        pydantic.TypeAdapter(PydanticUser), PydanticUser(id="ada", years=36)
    ),
    "msgspec": (StructUser, StructUser("ada", 36)),
    "dataclass": (DataclassUser, DataclassUser("ada", 36)),
    "attrs": (AttrsUser, AttrsUser("ada", 36)),
    "typed dict": (TypedDictUser, ADA),
    "json schema": (JSON_SCHEMA, ADA),
    "function": (function, ("ada", 36)),
    "silent function": (silent, ADA),
    "predicate": (predicate, ADA),
    "own": (OwnValidator(), StructUser("ada", 36)),
}  # fmt: skip
