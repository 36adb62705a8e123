"""SQL for Spark and DuckDB over the events: the state now or earlier, its history, and the dead
letters. Both engines, and the DataFrames of `penstock.spark`, run the same text.

The caller inserts names of tables; values are inserted by `literal` only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from penstock.errors import InvalidOffset, QueryFailed
from penstock.protocol.offsets import Offset, parse_offset

# The pipeline's own columns of a state table, in front of and behind the user's.
KEY: Final = ("_stream", "_key")
REST: Final = (
    "_value",
    "_operation",
    "_generation",
    "_ordinal",
    "_position",
    "_offset",
    "_time",
    "_txid",
    "_batch",
)
# The columns of the events at which a value began and ended, in a row of history.
ENDS: Final = ("ordinal", "offset", "time")
# What the columns of history were called before, and are called now. Until the next release.
_NAME_LENGTH_MAX: Final = 100  # of a type in `state_…`: catalogs take 128
FORMER_NAMES: Final = {
    **{f"_{end}_{name}": f"_valid_{end}_{name}" for end in ("from", "to") for name in ENDS},
    "_current": "_is_current",
}


class Until(NamedTuple):
    """A point in the past: an offset of one stream, the number of a batch, or the time up to which
    events had come into the warehouse."""

    batch: int | None = None
    stream: str | None = None
    generation: int | None = None
    position: int | None = None
    ingested: datetime | None = None

    def condition(self, alias: str) -> str:
        """SQL for whether an event came before that point."""
        conditions = []
        if self.batch is not None:
            conditions.append(f"{alias}.batch <= {int(self.batch)}")
        if self.stream is not None:
            generation, position = int(self.generation or 0), int(self.position or 0)
            conditions.append(
                f"{alias}.stream = {literal(self.stream)} AND ({alias}.generation < {generation} "
                f"OR ({alias}.generation = {generation} AND {alias}.position < {position}))"
            )
        if self.ingested is not None:
            time = self.ingested.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            # Both engines read such a text as a time; a type for it they would spell differently.
            conditions.append(f"{alias}.ingested <= '{time}+00:00'")
        return " AND ".join(conditions) or "TRUE"


NOW: Final = Until()


def until_offset(stream: str, offset: str) -> Until:
    """The point at an offset of a stream."""
    parsed = parse_offset(offset)
    if not isinstance(parsed, Offset):
        raise InvalidOffset(
            f"{offset!r} is no offset in the past. Use one that a reader or a table shows."
        )
    return Until(None, stream.strip("/"), parsed.generation, parsed.position)


def parse_time(text: str) -> datetime:
    """A time as ISO 8601 writes it; without a zone it is in UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise QueryFailed(
            f"{text!r} is no time. Write it as 2026-11-17T12:00:00Z, or with another offset."
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def literal(text: str) -> str:
    """A text as an SQL literal. Both engines read '' as a quote; only Spark unescapes
    backslashes, and neither reads a NUL everywhere."""
    pieces = [piece for piece in re.split(r"([\\\0])", text) if piece]
    if len(pieces) > 1 or text in _CHARACTERS:
        return f"({' || '.join(map(_piece, pieces))})"
    return "'" + text.replace("'", "''") + "'"


_CHARACTERS: Final = {"\\": "chr(92)", "\0": "chr(0)"}


def _piece(piece: str) -> str:
    return _CHARACTERS.get(piece) or "'" + piece.replace("'", "''") + "'"


def view_names(
    entities: Iterable[str], existing: Mapping[str, str] | None = None
) -> dict[str, str]:
    """A name for each type in `state_…` and the like, of letters, digits and _; existing names
    stay, so that a query never changes to another type. Of several new ones that would have one
    name, the type that is spelled like it has it, or else the first by order."""
    names = dict(existing or {})
    used = set(names.values())
    new = set(entities) - set(names)
    for entity in sorted(new, key=lambda each: (each != _stem(each), each)):
        name = stem = _stem(entity)
        number = 2
        while name in used:
            name, number = f"{stem}_{number}", number + 1
        used.add(name)
        names[entity] = name
    return names


def _stem(entity: str) -> str:
    return re.sub(r"\W", "_", entity.lower(), flags=re.ASCII)[:_NAME_LENGTH_MAX]


def marks(events: str, *, replaces: bool, ends: Sequence[str] = ENDS) -> str:
    """The events at which the state of a stream begins anew: its resets and, if snapshots replace,
    the beginning of each finished snapshot.

    Nothing before the position `floor` counts, and nothing up to the ordinal `bound`: that of the
    mark, or -1 if it is a reset to an offset behind it (`is_behind`).
    """
    target = "try_cast(substr(e.control_offset, 18) AS BIGINT)"
    is_named = (
        "coalesce(length(e.control_offset) = 33 AND substr(e.control_offset, 17, 1) = '_' "
        "AND try_cast(substr(e.control_offset, 1, 16) AS BIGINT) = e.generation "
        f"AND {target} IS NOT NULL, FALSE)"
    )
    is_behind = f"({is_named} AND {target} < e.position)"
    columns = ", ".join(f"e.{name}" for name in ("stream", "generation", *ends))
    resets = (
        f"SELECT {columns}, CASE WHEN {is_named} THEN {target} ELSE e.position END AS floor, "
        f"CASE WHEN {is_behind} THEN -1 ELSE e.ordinal END AS bound, {is_behind} AS is_behind "
        f"FROM {events} e WHERE e.control = 'reset'"
    )
    if not replaces:
        return resets
    bounds = (
        f"SELECT {columns}, e.position AS floor, e.control, lead(e.control) OVER (PARTITION BY "
        f"e.stream ORDER BY e.generation, e.ordinal) AS next_control FROM {events} e "
        "WHERE e.control IN ('snapshot-start', 'snapshot-end', 'reset')"
    )
    started = (
        f"SELECT {columns}, e.floor, e.ordinal AS bound, FALSE AS is_behind FROM ({bounds}) e "
        "WHERE e.control = 'snapshot-start' AND e.next_control = 'snapshot-end'"
    )
    return f"{resets} UNION ALL {started}"


def cuts(events: str, *, replaces: bool) -> str:
    """The last mark of each stream, with the highest floor and ordinal of its generation."""
    ranked = (
        "SELECT m.*, row_number() OVER (PARTITION BY m.stream ORDER BY m.generation DESC, "
        "m.ordinal DESC) AS rank, max(m.floor) OVER (PARTITION BY m.stream, m.generation) "
        "AS highest, max(m.bound) OVER (PARTITION BY m.stream, m.generation) AS last_bound "
        f"FROM ({marks(events, replaces=replaces)}) m"
    )
    return (
        "SELECT r.stream, r.generation, r.last_bound AS ordinal, r.highest AS floor "
        f"FROM ({ranked}) r WHERE r.rank = 1"
    )


def key_columns(entity: str | None) -> tuple[str, ...]:
    """The columns that identify an entity among those of its type, or (None) of all types."""
    return KEY if entity is not None else ("_stream", "_type", "_key")


def newest(rows: str, cut: str, *, key: Sequence[str] = KEY, more: Sequence[str] = ()) -> str:
    """The newest row of each key, of rows with the columns of a state table (and `more`); none if
    a mark of its stream has made it void."""
    columns = ", ".join(f"n.{name}" for name in (*key, *REST, *more))
    return f"SELECT {columns} FROM ({latest(f'({rows})', cut, key=key)}) n"


def latest(rows: str, cut: str, *, key: Sequence[str] = KEY) -> str:
    """The same with all columns of the rows, and one more."""
    partition = ", ".join(f"c.{name}" for name in key)
    # The hint is a comment for DuckDB. There is at most one cut for each stream.
    ranked = (
        f"SELECT /*+ BROADCAST(r) */ c.*, row_number() OVER (PARTITION BY {partition} ORDER BY "
        f"c._generation DESC, c._ordinal DESC, c._batch DESC) AS rank FROM {rows} c "
        f"LEFT JOIN ({cut}) r ON c._stream = r.stream "
        "WHERE r.stream IS NULL OR c._generation > r.generation OR (c._generation = r.generation "
        "AND c._ordinal > r.ordinal AND c._position >= r.floor)"
    )
    return f"SELECT n.* FROM ({ranked}) n WHERE n.rank = 1"


def _state_columns(names: Sequence[str]) -> str:
    """Columns of events under the names that they have in a state table."""
    return ", ".join(f"e.{name[1:]} AS {name}" for name in names)


def changes(
    events: str,
    entity: str | None,
    *,
    after: int = 0,
    until: Until = NOW,
    more: Sequence[str] = (),
) -> str:
    """The valid changes of a type, or (None) of all, as rows of a state table with some `more`
    columns."""
    is_of_type = "" if entity is None else f"AND e.type = {literal(entity)} "
    columns = _state_columns([*key_columns(entity), *REST, *more])
    return (
        f"SELECT {columns} FROM {events} e WHERE e.kind = 'change' "
        f"{is_of_type}AND e.batch > {int(after)} AND {until.condition('e')}"
    )


def refused(events: str, entity: str) -> str:
    """The changes of a type that only the schema of the pipeline refused, as the same rows."""
    return (
        f"SELECT {_state_columns([*KEY, *REST])} FROM {events} e WHERE e.kind = 'invalid' "
        f"AND e.type = {literal(entity)} AND e.key IS NOT NULL AND e.operation IS NOT NULL"
    )


def state_of(stream: str, rows: Sequence[str], cut: str) -> str:
    """The state of one stream, from several queries of changes."""
    changes = " UNION ALL ".join(
        f"SELECT o.* FROM ({each}) o WHERE o._stream = {literal(stream)}" for each in rows
    )
    return living(newest(changes, cut))


def in_order(states: Sequence[tuple[str, str]]) -> str:
    """The rows of several types in the order of their stream."""
    rows = " UNION ALL ".join(
        f"SELECT {literal(entity)} AS _type, s.* FROM ({query}) s" for entity, query in states
    )
    return f"SELECT o.* FROM ({rows}) o ORDER BY o._generation, o._ordinal"


_ORDER: Final = ("_generation", "_ordinal", "_batch")


def _is_older(one: str, other: str) -> str:
    """SQL for whether a row is older than another one of its key."""
    generation, ordinal, batch = ((f"{one}.{name}", f"{other}.{name}") for name in _ORDER)
    return (
        f"({generation[0]} < {generation[1]} OR ({generation[0]} = {generation[1]} AND "
        f"({ordinal[0]} < {ordinal[1]} OR ({ordinal[0]} = {ordinal[1]} AND "
        f"{batch[0]} < {batch[1]}))))"
    )


def merged(base: str, fresh: str, cut: str) -> str:
    """A state table and the newest later changes, merged to one row for each key."""
    same = "b._stream = f._stream AND b._key = f._key"
    return (
        f"SELECT b.* FROM {base} b LEFT JOIN {fresh} f ON {same} "
        f"LEFT JOIN ({cut}) r ON b._stream = r.stream "
        f"WHERE (f._key IS NULL OR {_is_older('f', 'b')}) "
        "AND (r.stream IS NULL OR b._generation > r.generation OR "
        "(b._generation = r.generation AND b._ordinal > r.ordinal AND b._position >= r.floor)) "
        f"UNION ALL SELECT f.* FROM {fresh} f LEFT JOIN {base} b ON {same} "
        f"WHERE b._key IS NULL OR NOT {_is_older('f', 'b')}"
    )


def without_tombstones(rows: str, streams: Sequence[str] | None) -> str:
    """Rows without deleted keys, except those of these streams (None: of all): a dead letter that
    is replayed there may be older than the delete."""
    if streams is None:
        return rows
    exception = f" OR t._stream IN ({', '.join(map(literal, streams))})" if streams else ""
    return f"SELECT t.* FROM ({rows}) t WHERE t._operation <> 'delete'{exception}"


def between(rows: str, low: str | None, high: str | None) -> str:
    """The rows with keys from `low` up to, not including, `high`, in the order of their bytes."""
    bounds = [] if low is None else [f"i._key >= {literal(low)}"]
    bounds += [] if high is None else [f"i._key < {literal(high)}"]
    return f"(SELECT i.* FROM {rows} i WHERE {' AND '.join(bounds) or 'TRUE'})"


def sample(rows: str, count: int) -> str:
    """The keys of so many random rows. In DuckDB's dialect: only the driver's fold needs it."""
    keys = f"SELECT i._key FROM {rows} i"
    return f"SELECT s._key FROM ({keys}) s USING SAMPLE reservoir({int(count)} ROWS)"


def everything(rows: str) -> str:
    """All rows of a relation."""
    return f"SELECT a.* FROM {rows} a"


def own_columns(state: str) -> str:
    """The rows of a state table without the user's columns."""
    return f"SELECT {', '.join(f's.{name}' for name in (*KEY, *REST))} FROM {state} s"


def living(rows: str) -> str:
    """Rows without deleted keys."""
    return f"SELECT l.* FROM ({rows}) l WHERE l._operation <> 'delete'"


def state_at(
    events: str,
    entity: str | None,
    *,
    until: Until = NOW,
    replaces: bool = False,
    more: Sequence[str] = (),
) -> str:
    """The state of a type, or (None) of all, from its events alone, as of some point; with some
    `more` columns of the events."""
    before = f"(SELECT e.* FROM {events} e WHERE {until.condition('e')})"
    rows = changes(events, entity, until=until, more=more)
    cut = cuts(before, replaces=replaces)
    return living(newest(rows, cut, key=key_columns(entity), more=more))


def history(
    events: str,
    entity: str | None,
    *,
    until: Until = NOW,
    replaces: bool = False,
    ends: Sequence[str] = ENDS,
) -> str:
    """Every value of each entity of a type, or (None) of all, with `ends` of the events at which it
    began and ended, as of some point.

    Cut at resets; a value that is written again unchanged makes no new row.
    """
    if until != NOW:
        events = f"(SELECT e.* FROM {events} e WHERE {until.condition('e')})"
    key = key_columns(entity)
    more = [f"_{name}" for name in ends if f"_{name}" not in REST]
    rows = changes(events, entity, more=more)
    rows = f"{rows} UNION ALL {_discarded(events, rows, key=key, more=more)}"
    bounds = "".join(f", s.to_{name}" for name in ends)
    # The hint is a comment for DuckDB. Marks are few.
    spanned = (
        f"SELECT /*+ BROADCAST(s) */ c.*, coalesce(s.epoch, 0) AS epoch{bounds} FROM ({rows}) c "
        f"LEFT JOIN ({_spans(events, replaces=replaces, ends=ends)}) s ON c._stream = s.stream "
        "AND (c._generation > s.generation "
        "OR (c._generation = s.generation AND c._ordinal > s.ordinal)) "
        "AND (s.to_generation IS NULL OR c._generation < s.to_generation "
        "OR (c._generation = s.to_generation AND c._ordinal <= s.to_ordinal)) "
        "WHERE s.stream IS NULL OR c._generation > s.generation OR c._position >= s.floor"
    )
    window = f"WINDOW w AS (PARTITION BY {', '.join(key)}, epoch ORDER BY _generation, _ordinal)"
    compared = (
        "SELECT p.*, lag(p._operation) OVER w AS before_operation, "
        f"lag(p._value) OVER w AS before_value FROM ({spanned}) p {window}"
    )
    distinct = (
        f"SELECT k.* FROM ({compared}) k WHERE k._operation = 'delete' "
        "OR k.before_operation IS NULL OR k.before_operation = 'delete' "
        "OR k.before_value <> k._value"
    )
    following = "".join(f", lead(h._{name}) OVER w AS next_{name}" for name in ends)
    ended = f"SELECT h.*{following} FROM ({distinct}) h {window}"
    columns = [f"v.{name}" for name in (*key, "_value", "_generation")]
    columns += [f"v._{name} AS _valid_from_{name}" for name in ends]
    columns += [
        f"CASE WHEN v.next_ordinal IS NULL THEN v.to_{name} ELSE v.next_{name} END "
        f"AS _valid_to_{name}"
        for name in ends
    ]
    columns += ["v.next_ordinal IS NULL AND v.to_ordinal IS NULL AS _is_current"]
    return f"SELECT {', '.join(columns)} FROM ({ended}) v WHERE v._operation <> 'delete'"


def _discarded(events: str, rows: str, *, key: Sequence[str], more: Sequence[str]) -> str:
    """The entities that resets to an offset behind them have removed, as deletes at the resets: the
    last change of each before the reset is before that offset."""
    columns = [f"d.{name}" for name in key]
    columns += [
        "'delete' AS _operation" if name == "_operation" else f"m.{name[1:]} AS {name}"
        for name in (*REST, *more)
    ]
    place = ("stream", "generation", "ordinal")
    same = " AND ".join(f"m.{name} = d.mark_{name}" for name in place)
    partition = ", ".join([*(f"b.{name}" for name in place), *(f"c.{name}" for name in key)])
    # The hint is a comment for DuckDB. These resets are few, and mostly there are none.
    last = (
        f"SELECT /*+ BROADCAST(b) */ c.*, {', '.join(f'b.{name} AS mark_{name}' for name in place)}"
        f", b.floor, row_number() OVER (PARTITION BY {partition} ORDER BY c._ordinal DESC) AS rank "
        f"FROM ({rows}) c JOIN ({marks(events, replaces=False)}) b ON c._stream = b.stream "
        "AND c._generation = b.generation AND c._ordinal < b.ordinal WHERE b.is_behind"
    )
    return (
        f"SELECT /*+ BROADCAST(m) */ {', '.join(columns)} FROM ({last}) d JOIN {events} m "
        f"ON {same} WHERE d.rank = 1 AND d._position < d.floor AND d._operation <> 'delete' "
        "AND m.control = 'reset'"
    )


def with_former_names(history: str) -> str:
    """History with its columns also under the names that they had before."""
    former = ", ".join(f"o.{name} AS {before}" for before, name in FORMER_NAMES.items())
    return f"SELECT o.*, {former} FROM {history} o"


def _spans(events: str, *, replaces: bool, ends: Sequence[str]) -> str:
    """The parts of a stream between its marks: one before each mark, and one after the last.
    Resets to an offset behind them do not divide a stream.

    Marks are read once, and the last one makes two rows: to read them may be to read a stream.
    """
    highest = (
        "SELECT m.*, max(m.floor) OVER (PARTITION BY m.stream, m.generation ORDER BY m.ordinal) "
        f"AS highest FROM ({marks(events, replaces=replaces, ends=ends)}) m WHERE NOT m.is_behind"
    )
    numbered = (
        "SELECT f.*, row_number() OVER w AS epoch, "
        "count(*) OVER (PARTITION BY f.stream) AS epochs, "
        "lag(f.generation, 1, -1) OVER w AS from_generation, "
        "lag(f.ordinal, 1, -1) OVER w AS from_ordinal, "
        f"lag(f.highest, 1, -2) OVER w AS from_floor FROM ({highest}) f "
        "WINDOW w AS (PARTITION BY f.stream ORDER BY f.generation, f.ordinal)"
    )
    bounds = "".join(
        f", CASE WHEN NOT a.is_after THEN n.{name} END AS to_{name}"
        for name in ("generation", *ends)
    )
    return (
        "SELECT n.stream, CASE WHEN a.is_after THEN n.epoch + 1 ELSE n.epoch END AS epoch, "
        "CASE WHEN a.is_after THEN n.generation ELSE n.from_generation END AS generation, "
        "CASE WHEN a.is_after THEN n.ordinal ELSE n.from_ordinal END AS ordinal, "
        f"CASE WHEN a.is_after THEN n.highest ELSE n.from_floor END AS floor{bounds} "
        f"FROM ({numbered}) n CROSS JOIN (SELECT TRUE AS is_after UNION ALL SELECT FALSE) a "
        "WHERE NOT a.is_after OR n.epoch = n.epochs"
    )


_DEAD: Final = (
    "stream", "generation", "ordinal", "offset", "type", "key", "operation", "value", "error",
    "schema_version", "batch", "ingested",
)  # fmt: skip


def dead_letters(refused: str, events: str, *, columns: Sequence[str] = _DEAD) -> str:
    """The invalid events that have not been replayed since."""
    return (
        f"SELECT {', '.join(f'd.{name}' for name in columns)} FROM {refused} d LEFT JOIN ("
        f"SELECT DISTINCT e.stream, e.generation, e.ordinal FROM {events} e "
        "WHERE e.kind IN ('change', 'discarded') AND e.replayed) r ON d.stream = r.stream "
        "AND d.generation = r.generation AND d.ordinal = r.ordinal "
        "WHERE d.kind = 'invalid' AND r.stream IS NULL"
    )


def collisions(state: str) -> str:
    """The keys of a type that exist in more than one stream."""
    return f"SELECT s._key, count(*) AS streams FROM {state} s GROUP BY s._key HAVING count(*) > 1"


def all_collisions(states: Sequence[tuple[str, str]]) -> str:
    """The types and keys that exist in more than one stream."""
    none = "SELECT '' AS _type, '' AS _key, CAST(0 AS BIGINT) AS streams WHERE 1 = 0"
    queries = (
        f"SELECT {literal(entity)} AS _type, c._key, c.streams FROM ({collisions(state)}) c"
        for entity, state in states
    )
    return " UNION ALL ".join([none, *queries])


def by_key(state: str) -> str:
    """The state of a type with one row for each key in any stream: the one with the latest time,
    else the last to arrive. `_streams` is the number of streams that have the key."""
    ranked = (
        "SELECT k._stream, k._key, count(*) OVER (PARTITION BY k._key) AS _streams, row_number() "
        "OVER (PARTITION BY k._key ORDER BY k._time DESC NULLS LAST, k._batch DESC, k._stream) "
        f"AS rank FROM {state} k"
    )
    return (
        f"SELECT s.*, r._streams FROM {state} s JOIN ({ranked}) r "
        "ON s._stream = r._stream AND s._key = r._key WHERE r.rank = 1"
    )
