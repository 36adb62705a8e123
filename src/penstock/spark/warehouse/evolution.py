"""The evolution of a state table: what a new schema does to the stored columns. A fold adds and
widens columns in place; everything else needs a rebuild. Pure rules, no tables.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

_INTEGER_BITS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_INTEGER_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
_EXACT_IN_DOUBLE_BITS: Final = 32


class Evolution(NamedTuple):
    """The differences between stored and declared columns."""

    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    breaking: tuple[str, ...] = ()  # clauses, each about one column

    @property
    def is_in_place(self) -> bool:
        """Whether a fold can make the difference."""
        return not self.breaking

    def __str__(self) -> str:
        clauses = [f"the column {name} is new" for name in self.added]
        clauses += [f"the column {name} is wider" for name in self.widened]
        return "; ".join((*clauses, *self.breaking))


def evolution(stored: pa.Schema, declared: pa.Schema) -> Evolution:
    """What changes if a table with the columns `stored` gets those of `declared`."""
    before = {field.name: field.type for field in stored}
    after = {field.name: field.type for field in declared}
    widened, breaking = [], []
    for name, kind in before.items():
        if name not in after:
            breaking.append(f"the column {name} is in the table and not in the schema")
        elif is_same(kind, after[name]):
            continue
        elif is_wider(kind, after[name]):
            widened.append(name)
        else:
            breaking.append(f"the column {name} is {kind} in the table and {after[name]} in the "
                            "schema")  # fmt: skip
    added = [name for name in after if name not in before]
    return Evolution(tuple(added), tuple(widened), tuple(breaking))


def is_same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types are the same for Delta, which names items of lists and maps itself."""
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields, others = list(one), list(other)
        return [each.name for each in fields] == [each.name for each in others] and all(
            is_same(field.type, another.type) for field, another in zip(fields, others, strict=True)
        )
    if _is_list(one) and _is_list(other):
        return is_same(one.value_type, other.value_type)
    if pa.types.is_map(one) and pa.types.is_map(other):
        return is_same(one.item_type, other.item_type)
    return bool(_plain(one) == _plain(other))


def is_wider(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Whether every value of a type is one of the other, and JSON spells it the same way."""
    if is_same(stored, declared):
        return True
    if pa.types.is_struct(stored) and pa.types.is_struct(declared):
        after = {field.name: field.type for field in declared}
        return all(each.name in after and is_wider(each.type, after[each.name]) for each in stored)
    if _is_list(stored) and _is_list(declared):
        return is_wider(stored.value_type, declared.value_type)
    if pa.types.is_map(stored) and pa.types.is_map(declared):
        return is_wider(stored.item_type, declared.item_type)
    if pa.types.is_decimal(declared):
        whole, fraction = declared.precision - declared.scale, declared.scale
        if pa.types.is_decimal(stored):
            return bool(stored.precision - stored.scale <= whole and stored.scale <= fraction)
        return stored in _INTEGER_BITS and _INTEGER_DIGITS[_INTEGER_BITS[stored]] <= whole
    if stored in _INTEGER_BITS:
        bits = _INTEGER_BITS[stored]
        is_exact = declared == pa.float64() and bits <= _EXACT_IN_DOUBLE_BITS
        return is_exact or _INTEGER_BITS.get(declared, 0) > bits
    return bool(stored == pa.float32() and declared == pa.float64())


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Texts and bytes have several layouts in Arrow, and one in Delta."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    return kind
