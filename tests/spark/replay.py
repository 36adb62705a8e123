"""What a pipeline has to come to, worked out from the events one by one, in plain Python."""

from __future__ import annotations

from typing import Any

from penstock.spark.type_schema import TypeSchema

Row = dict[str, Any]


class Replay:
    """Reads rows of the source in the order of each stream; keeps all that follows from them."""

    def __init__(self, types: dict[str, TypeSchema] | None = None) -> None:
        self.types = types or {}
        self.state: dict[tuple[str, str, str], Row] = {}
        self.history: list[Row] = []
        self.dead: list[Row] = []
        self.events: list[tuple[Any, ...]] = []
        self._open: dict[tuple[str, str, str], Row] = {}
        self._floor: dict[str, tuple[int, int]] = {}

    def see(self, rows: list[Row]) -> None:
        for row in rows:
            self._one(row)

    def _one(self, row: Row) -> None:
        kind, error = row["kind"], row["error"]
        schema = self.types.get(row["type"] or "")
        if kind == "change" and schema is not None and row["operation"] != "delete":
            error = schema.problems([row["value"]])[0]
            kind = "change" if error is None else "invalid"
        generation = row["generation"] or 0
        self.events.append((row["stream"], generation, row["seq"], kind, row["value"], error))
        if kind == "invalid":
            self.dead.append({**row, "error": error})
        elif row["control"] == "reset":
            self._reset(row)
        elif kind == "change":
            self._change(row, generation)

    def _reset(self, row: Row) -> None:
        stream = row["stream"]
        target, floor = row["control_offset"], None
        if target is not None:
            generation, position = (int(part) for part in target.split("_"))
            if generation == row["generation"]:
                floor = position
                self._floor[stream] = max(self._floor.get(stream, (0, 0)), (generation, position))
        for place in [place for place in self.state if place[0] == stream]:
            before = self.state[place]
            is_older = before["generation"] != row["generation"]
            if floor is None or is_older or before["position"] < floor:
                del self.state[place]
                self._close(place, row)

    def _change(self, row: Row, generation: int) -> None:
        floor = self._floor.get(row["stream"])
        if floor is not None and floor[0] == generation and row["position"] < floor[1]:
            return
        place = (row["stream"], row["type"], row["key"])
        before = self.state.pop(place, None)
        if row["operation"] == "delete":
            self._close(place, row)
            return
        self.state[place] = row
        if before is None or before["value"] != row["value"]:
            self._close(place, row)
            begun = {"place": place, "value": row["value"], "from": row["seq"], "to": None}
            self._open[place] = begun
            self.history.append(begun)

    def _close(self, place: tuple[str, str, str], row: Row) -> None:
        begun = self._open.pop(place, None)
        if begun is not None:
            begun["to"] = row["seq"]

    def state_rows(self, entity: str) -> list[tuple[Any, ...]]:
        return sorted(
            (row["stream"], row["key"], row["value"], row["generation"] or 0, row["seq"])
            for place, row in self.state.items()
            if place[1] == entity
        )

    def history_rows(self, entity: str) -> list[tuple[Any, ...]]:
        return sorted(
            (*(each["place"][0::2]), each["value"], each["from"], each["to"] or -1)
            for each in self.history
            if each["place"][1] == entity
        )

    def dead_rows(self) -> list[tuple[Any, ...]]:
        return sorted((row["stream"], row["seq"], row["value"], row["error"]) for row in self.dead)
