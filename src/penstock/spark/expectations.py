"""Expectations: SQL conditions that rows of a type, or of a result, are expected to meet, and what
happens to those that do not. DuckDB evaluates them, in the driver and in tasks alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import duckdb
import pyarrow as pa

from penstock.errors import ExpectationFailed, InvalidPipeline

Action = Literal["warn", "drop", "fail"]
REASON: Final = "expectation"
_ROWS: Final = "rows"
_LOCK: Final = (
    "SET TimeZone = 'UTC'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


class Expectation(NamedTuple):
    """A condition with its name. A row for which it is not true, so also NULL, violates it."""

    name: str
    sql: str
    action: Action = "warn"

    @property
    def reason(self) -> str:
        """The error of a dead letter that this made."""
        return f"{REASON} {self.name}: {self.sql}"


class Violations(NamedTuple):
    """Which rows violate each of some expectations, as masks."""

    expectations: Sequence[Expectation]
    masks: Sequence[Sequence[bool]]

    def counts(self) -> dict[str, int]:
        """The number of violating rows by the name of the expectation; those without are left
        out."""
        pairs = zip(self.expectations, self.masks, strict=True)
        return {each.name: sum(mask) for each, mask in pairs if any(mask)}

    def dropped(self, *, include_failing: bool = False) -> dict[int, Expectation]:
        """The rows to drop, each with the first expectation that says so; with `include_failing`
        also those that would stop a run."""
        dropped: dict[int, Expectation] = {}
        for each, mask in zip(self.expectations, self.masks, strict=True):
            if each.action == "drop" or (include_failing and each.action == "fail"):
                for row, violates in enumerate(mask):
                    if violates:
                        dropped.setdefault(row, each)
        return dropped

    def check(self, where: str, names: Sequence[str]) -> None:
        """Raise an error if a row violates an expectation that stops the run; `names` of the
        rows."""
        for each, mask in zip(self.expectations, self.masks, strict=True):
            if each.action == "fail" and any(mask):
                raise ExpectationFailed(
                    f"{where}.expect.{each.name}: {sum(mask):,} rows do not meet {each.sql}; the "
                    f"first is {names[list(mask).index(True)]}. Nothing of this batch was "
                    "committed. Correct the condition, or let its action be warn or drop."
                )


def violations(rows: pa.Table, expectations: Sequence[Expectation], where: str) -> Violations:
    """Evaluate expectations over rows."""
    masks = evaluate(
        rows,
        {f"{where}.expect.{each.name}": f"({each.sql}) IS NOT TRUE" for each in expectations},
    )
    return Violations(expectations, [mask.to_pylist() for mask in masks])


def evaluate(rows: pa.Table, expressions: Mapping[str, str]) -> list[pa.ChunkedArray]:
    """The values of SQL expressions for each row, in their order. They reach the rows and nothing
    else; their names are for errors."""
    # Closed at once: DuckDB complains about connections that are open at the end of a process.
    with duckdb.connect(config={"threads": "1", "preserve_insertion_order": "true"}) as sandbox:
        for statement in _LOCK:
            sandbox.execute(statement)
        sandbox.register(_ROWS, rows)
        return [_evaluate(sandbox, rows, *each) for each in expressions.items()]


def _evaluate(sandbox: Any, rows: pa.Table, name: str, expression: str) -> pa.ChunkedArray:
    query = f"SELECT {expression} AS v FROM {_ROWS}"  # noqa: S608 - SQL of the pipeline's owner
    try:
        table = sandbox.sql(query).to_arrow_table()
    except duckdb.Error as error:
        message = " ".join(str(error).split("\n\n")[0].split())
        raise InvalidPipeline(f"{name} cannot be evaluated: {message[:300]}") from None
    if table.num_rows != rows.num_rows:
        raise InvalidPipeline(f"{name} is no expression over one row: it has other rows.")
    return table["v"]


def check_conditions(columns: pa.Schema, expectations: Sequence[Expectation], where: str) -> None:
    """Raise an error for a condition that DuckDB cannot run over these columns."""
    empty = pa.Table.from_pylist([dict.fromkeys(columns.names)], schema=columns)
    violations(empty, expectations, where)
