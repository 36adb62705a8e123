"""The relations of a warehouse that queries may name: events, dead_letters, collisions, and
state_…, by_key_…, history_… and collisions_… for each type. A subclass defines them in its engine.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from penstock.spark.type_schema import TypeSchema
from penstock.spark.warehouse import sql
from penstock.spark.warehouse.delta import TableFile
from penstock.spark.warehouse.events import EVENTS
from penstock.spark.warehouse.state import StateTable
from penstock.spark.warehouse.warehouse import Warehouse

_WORD: Final = re.compile(r"\w+")


class Relations(ABC):
    """A warehouse as of one moment: later commits are not seen before `refresh`."""

    def __init__(
        self, warehouse: Warehouse, types: Mapping[str, TypeSchema], *, replaces: bool = False
    ) -> None:
        self._warehouse = warehouse
        self._types = types
        self._replaces = replaces
        self._defined: set[str] = set()
        self._states: dict[str, StateTable] = {}

    @abstractmethod
    def files(self, files: Sequence[TableFile], schema: pa.Schema) -> str:
        """The rows of files, as something to select from."""

    @abstractmethod
    def typed(self, query: str, schema: TypeSchema | None) -> str:
        """The rows of a query with a column `_value`, with the user's columns after the key, as
        something to select from."""

    @abstractmethod
    def define(self, name: str, query: str) -> None:
        """Define a query as a view."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Drop the view."""

    def refresh(self) -> None:
        for name in self._defined:
            self.drop(name)
        self._defined.clear()
        self._warehouse.events.refresh()
        for state in self._states.values():
            state.refresh()

    def prepare(self, query: str) -> None:
        """Define the relations that a query names."""
        named = {word.lower() for word in _WORD.findall(query)}
        names = self.view_names()
        for entity, name in names.items():
            if named & {f"state_{name}", f"collisions_{name}", f"by_key_{name}", "collisions"}:
                self._define(f"state_{name}", self.state(entity))
            if f"collisions_{name}" in named:
                self._define(f"collisions_{name}", sql.collisions(f"state_{name}"))
            if f"by_key_{name}" in named:
                self._define(f"by_key_{name}", sql.by_key(f"state_{name}"))
            if f"history_{name}" in named:
                self._define_history(entity, name, former=not named.isdisjoint(sql.FORMER_NAMES))
        if "collisions" in named:
            states = [(entity, f"state_{name}") for entity, name in names.items()]
            self._define("collisions", sql.all_collisions(states))
        if named & {"events", "dead_letters"}:
            self._define("events", sql.everything(self.events()))
            self._define("dead_letters", self.dead_letters())

    def _define(self, name: str, query: str) -> None:
        if name not in self._defined:
            self.define(name, query)
            self._defined.add(name)

    def _define_history(self, entity: str, name: str, *, former: bool) -> None:
        """Define the history of a type; with former names of columns only for queries that use one,
        so that `SELECT *` does not have each column twice."""
        view = f"history_{name}"
        if former:
            self._defined.discard(view)  # it may have been defined without them
            self._define(view, sql.with_former_names(self.history(entity)))
        elif view not in self._defined:
            self._define(view, sql.everything(self.history(entity)))

    def entities(self) -> list[str]:
        """Every type, declared or encountered."""
        return sorted({*self._types, *self._warehouse.events.record.types})

    def view_names(self) -> dict[str, str]:
        """The SQL name of each type."""
        names = self._warehouse.events.record.named(self._types)
        return {entity: names[entity] for entity in self.entities()}

    def events(self, *, after: int = 0, column: str | None = None) -> str:
        """The events of batches after `after`; with `column` at least those that have a value in
        it."""
        return self.files(self._warehouse.events.files(after=after, column=column), EVENTS)

    def dead_letters(self, columns: Sequence[str] | None = None) -> str:
        """The invalid events that have not been replayed, with the columns of the relation or these
        of events."""
        refused, events = self.events(column="error"), self.events()
        if columns is None:
            return sql.dead_letters(refused, events)
        return sql.dead_letters(refused, events, columns=columns)

    def merged(self, entity: str) -> tuple[StateTable, str]:
        """The state of a type up to now, including deleted keys."""
        state, base = self._base(entity)
        if not state.is_behind(self._warehouse.events.record):
            return state, sql.everything(base)
        cut = self.cuts()
        fresh = self.typed(self._fresh(state, cut), self._types.get(entity))
        return state, sql.merged(base, fresh, cut)

    def _fresh(self, state: StateTable, cut: str) -> str:
        """The newest change of each key after the last fold."""
        events = self.events(after=state.batch)
        return sql.newest(sql.changes(events, state.entity, after=state.batch), cut)

    def together(self, entity: str) -> tuple[StateTable, str]:
        """The rows of a state table and all that came since, several to a key."""
        state, base = self._base(entity)
        newer = sql.changes(self.events(after=state.batch), entity, after=state.batch)
        fresh = self.typed(newer, self._types.get(entity))
        return state, f"{sql.everything(base)} UNION ALL {sql.everything(fresh)}"

    def _base(self, entity: str) -> tuple[StateTable, str]:
        state = self.stored(entity)
        return state, self._rows(state, state.files())

    def _rows(
        self,
        state: StateTable,
        files: Sequence[TableFile],
        *,
        low: str | None = None,
        high: str | None = None,
    ) -> str:
        """The rows of some files of a state table with the declared columns; with bounds: those
        with keys from `low` up to `high`."""
        base = self.files(files, state.stored)
        if low is not None or high is not None:
            base = sql.between(base, low, high)
        if state.is_outgrown:
            return self.typed(sql.own_columns(base), self._types.get(state.entity))
        return base

    def stored(self, entity: str) -> StateTable:
        """The state table of a type, opened once: a refresh costs less than opening it."""
        state = self._states.get(entity)
        if state is None:
            schema = self._types.get(entity)
            state = self._states[entity] = StateTable(self._warehouse, entity, schema)
        return state

    def cuts(self) -> str:
        return sql.cuts(self.events(column="control"), replaces=self._replaces)

    def state(self, entity: str) -> str:
        return sql.living(self.merged(entity)[1])

    def state_at(self, entity: str, until: sql.Until, *, chosen: str = "") -> str:
        query = sql.state_at(self.events(), entity, until=until, replaces=self._replaces)
        return self._chosen(query, entity, chosen)

    def history(self, entity: str, until: sql.Until = sql.NOW, *, chosen: str = "") -> str:
        query = sql.history(self.events(), entity, until=until, replaces=self._replaces)
        return self._chosen(query, entity, chosen)

    def _chosen(self, query: str, entity: str, chosen: str) -> str:
        """The rows of a query with the user's columns. `chosen` is SQL after `FROM … x`: it is
        applied before values are parsed."""
        if chosen:
            query = f"SELECT x.* FROM ({query}) x {chosen}"
        return self.typed(query, self._types.get(entity))

    def names(self) -> list[str]:
        """The names of all relations."""
        names = ["events", "dead_letters", "collisions"]
        for name in self.view_names().values():
            names += [f"{kind}_{name}" for kind in ("state", "by_key", "history", "collisions")]
        return names


def with_columns(rows: pa.Table | pa.RecordBatch, schema: TypeSchema) -> pa.Table:
    """Rows with the user's columns after the key."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    columns = schema.columns(table["_value"].to_pylist())
    for number, (field, column) in enumerate(zip(schema.nullable, columns, strict=True)):
        table = table.add_column(len(sql.KEY) + number, field, column)
    return table
