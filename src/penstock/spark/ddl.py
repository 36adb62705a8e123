"""A parser for column lists as Spark writes them (`id STRING, tags ARRAY<STRING>`). It needs no
Spark, so that a pipeline can be checked, and its tables shown, without Java.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from penstock.errors import InvalidPipeline

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|(\w+)|([<>(),:]))")
_SIMPLE: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_DECIMAL_DIGITS_MAX: Final = 38


def parse_ddl(text: str) -> list[pa.Field]:
    """The columns of a DDL text; `NOT NULL` ones are not nullable."""
    parser = _Parser(text)
    fields = parser.fields(end=None)
    names = [field.name.lower() for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidPipeline(f"The schema {text!r} has the column {twice} twice.")
    return fields


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def fields(self, *, end: str | None) -> list[pa.Field]:
        fields = [self._field()]
        while self._accept(","):
            fields.append(self._field())
        if end is not None:
            self._expect(end)
        elif self._text[self._at :].strip():
            raise self._error("a comma or the end")
        return fields

    def _field(self) -> pa.Field:
        name = self._word("the name of a column")
        self._accept(":")
        kind = self._type()
        nullable = True
        while True:
            if self._accept("not"):
                self._expect("null")
                nullable = False
            elif self._accept("comment"):
                self._next()
            else:
                return pa.field(name, kind, nullable)

    def _type(self) -> pa.DataType:
        name = self._word("a type").lower()
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name in ("varchar", "char"):
            self._expect("(")
            self._number()
            self._expect(")")
            return pa.string()
        if name == "array":
            self._expect("<")
            item = self._type()
            self._expect(">")
            return pa.list_(item)
        if name == "map":
            self._expect("<")
            if self._type() != pa.string():
                raise InvalidPipeline(
                    f"The schema {self._text!r} has a MAP with other keys than STRING. The keys "
                    "of a JSON object are texts."
                )
            self._expect(",")
            item = self._type()
            self._expect(">")
            return pa.map_(pa.string(), item)
        if name == "struct":
            self._expect("<")
            return pa.struct(self.fields(end=">"))
        raise InvalidPipeline(
            f"The schema {self._text!r} has the type {name.upper()}, which JSON values cannot "
            f"have. Known are {', '.join(_SIMPLE).upper()}, DECIMAL(p, s), ARRAY<…>, "
            "MAP<STRING, …> and STRUCT<…>."
        )

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._accept("("):
            precision = self._number()
            if self._accept(","):
                scale = self._number()
            self._expect(")")
        if not 1 <= precision <= _DECIMAL_DIGITS_MAX or scale > precision:
            raise InvalidPipeline(
                f"The schema {self._text!r} has DECIMAL({precision}, {scale}): it takes 1 to "
                f"{_DECIMAL_DIGITS_MAX} digits, and no more of them after the point."
            )
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        word = self._word("a number")
        if not (word.isascii() and word.isdigit()):
            raise self._error("a number")
        return int(word)

    def _peek(self) -> tuple[str, int]:
        match = _TOKEN.match(self._text, self._at)
        return ("", self._at) if match is None else (match[0].strip(), match.end())

    def _next(self) -> str:
        token, self._at = self._peek()
        return token

    def _accept(self, expected: str) -> bool:
        token, after = self._peek()
        if token.lower() != expected:
            return False
        self._at = after
        return True

    def _expect(self, expected: str) -> None:
        if not self._accept(expected):
            raise self._error(expected.upper())

    def _word(self, what: str) -> str:
        token, after = self._peek()
        if token.startswith("`"):
            self._at = after
            return token[1:-1].replace("``", "`")
        if not token or not (token[0].isalnum() or token[0] == "_"):
            raise self._error(what)
        self._at = after
        return token

    def _error(self, expected: str) -> InvalidPipeline:
        actual = self._text[self._at :].strip()[:20] or "nothing more"
        return InvalidPipeline(
            f"The schema {self._text!r} is no list of columns, as id STRING, total DOUBLE: there "
            f"should be {expected} where it has {actual!r}."
        )
