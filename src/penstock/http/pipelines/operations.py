"""What the OpenAPI document says of pipelines."""

from __future__ import annotations

from typing import Final

from penstock.errors import (
    InvalidJson,
    InvalidParameter,
    InvalidQuery,
    NumberTooLong,
    PipelineFailed,
    PipelineNotFound,
    UnknownParameter,
)
from penstock.http.openapi import parameters as shared
from penstock.http.openapi.model import Answer, Body, Description, Operation, Parameter, json
from penstock.http.openapi.schemas import (
    FLAG,
    NUMBER,
    TEXT,
    array,
    mapping,
    nullable,
    record,
    reference,
)

_NO_STORE: Final = (shared.CACHE_CONTROL,)
_NAME: Final = Parameter(
    "name",
    "path",
    "The name of a pipeline of the setting `pipelines`.",
    {"type": "string", "pattern": "^[A-Za-z0-9_~-]+$"},
    required=True,
    example="shop",
)
_FAILS: Final = (PipelineNotFound, PipelineFailed)
_QUERY: Final = (InvalidParameter, UnknownParameter)

_SELECTED: Final = {
    "reason": "Only those with this error, spelled as `reasons` has it.",
    "type": "Only those of this type.",
    "stream": "Only those of this stream.",
    "key": "Only those of this key.",
}
_SELECTION: Final = tuple(
    Parameter(name, "query", words, {"type": "string"}) for name, words in _SELECTED.items()
)

_OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/pipelines",
        id="listPipelines",
        summary="List the pipelines of this server",
        tag="pipelines",
        answers=(
            Answer(
                200,
                "Their names and files.",
                _NO_STORE,
                json(
                    record({"pipelines": array(record({"name": TEXT, "file": TEXT}))}),
                    {"pipelines": [{"name": "shop", "file": "shop/pipeline.toml"}]},
                ),
            ),
        ),
    ),
    Operation(
        method="GET",
        path="/v1/pipelines/{name}",
        id="readPipeline",
        summary="Show the progress of a pipeline",
        description="Batches with their times, runs, the lag behind the tails of the streams, dead "
        "letters by reason, and the tables with their columns: what `penstock pipeline status "
        "--json --details` prints. A few seconds old at most.",
        tag="pipelines",
        parameters=(_NAME,),
        answers=(Answer(200, "Its status.", _NO_STORE, json(reference("PipelineStatus"))),),
        errors=_FAILS,
    ),
    Operation(
        method="GET",
        path="/v1/pipelines/{name}/dead-letters",
        id="listDeadLetters",
        summary="List the events that a pipeline could not use",
        tag="pipelines",
        parameters=(
            _NAME,
            Parameter(
                "after", "query", "The `next` of the page before.", shared.COUNT, example=100
            ),
            shared.LIMIT,
            *_SELECTION,
        ),
        answers=(
            Answer(
                200,
                "A page: the columns of the relation `dead_letters`.",
                _NO_STORE,
                json(
                    record(
                        {
                            "dead_letters": array({"type": "object"}),
                            "next": nullable(NUMBER),
                        }
                    ),
                    {"dead_letters": [], "next": None},
                ),
            ),
        ),
        errors=(*_QUERY, *_FAILS, InvalidQuery),
    ),
    Operation(
        method="POST",
        path="/v1/pipelines/{name}/replay",
        id="replayDeadLetters",
        summary="Apply dead letters again, after the schemas or their values were corrected",
        description="The pipeline must not run at the same time. Without a body all dead letters "
        "are checked again. `fix` is an SQL expression over a dead letter that gives its new value "
        "as JSON; `discard` settles them without making them events; `dry_run` changes nothing.",
        tag="pipelines",
        parameters=(_NAME,),
        body=Body(json(reference("ReplayRequest"), {"type": "user"}), required=False),
        answers=(
            Answer(
                200,
                "How many became events or were discarded, and how many are still invalid.",
                _NO_STORE,
                json(
                    record({"replayed": NUMBER, "invalid": NUMBER, "discarded": NUMBER}),
                    {"replayed": 12, "invalid": 0, "discarded": 0},
                ),
            ),
        ),
        errors=(InvalidJson, NumberTooLong, InvalidQuery, *_FAILS),
    ),
    Operation(
        method="POST",
        path="/v1/pipelines/{name}/sql",
        id="queryPipeline",
        summary="Query the tables of a pipeline",
        description="One SELECT in the SQL of DuckDB, in a sandbox: it reaches the tables and "
        "neither files nor the network, and has limits for rows, time and memory.",
        tag="pipelines",
        parameters=(_NAME,),
        body=Body(json(reference("SqlRequest"), {"query": "SELECT count(*) FROM events"})),
        answers=(
            Answer(
                200,
                "The rows; `truncated` if there are more.",
                _NO_STORE,
                json(
                    reference("SqlResult"),
                    {
                        "columns": [{"name": "count_star()", "type": "BIGINT"}],
                        "rows": [[42]],
                        "truncated": False,
                        "seconds": 0.1,
                    },
                ),
            ),
        ),
        errors=(InvalidJson, NumberTooLong, InvalidQuery, *_FAILS),
    ),
)


_COLUMN: Final = record({"name": TEXT, "type": TEXT})
_SECONDS: Final = {"type": "number", "minimum": 0}
_BATCH: Final = record(
    {
        "batch": NUMBER,
        "run": NUMBER,
        "committed_at": shared.TIME,
        "seconds": nullable(_SECONDS),
        "events": NUMBER,
        "dead_letters": NUMBER,
    }
)
_RUN: Final = record(
    {
        "run": NUMBER,
        "first_batch": NUMBER,
        "last_batch": NUMBER,
        "started_at": shared.TIME,
        "committed_at": shared.TIME,
        "events": NUMBER,
    }
)
_AMOUNT: Final = nullable({"type": "number", "minimum": 0})
_STREAM: Final = record(
    {
        "lag_messages": nullable(NUMBER),
        "lag_bytes": nullable(NUMBER),
        "messages_per_s": _AMOUNT,
        "bytes_per_s": _AMOUNT,
    }
)
_DETAILS: Final = record(
    {
        "is_running": FLAG,
        "runs": array(_RUN),
        "batches": array(_BATCH),
        "streams": mapping(_STREAM),
        "reasons": mapping(NUMBER),
        "relations": mapping(array(_COLUMN)),
    }
)
_TYPE: Final = record(
    {
        "name": TEXT,
        "changes": NUMBER,
        "rows": NUMBER,
        "folded": NUMBER,
        "behind": FLAG,
        "declared": FLAG,
    }
)
_EXPECTATION: Final = record(
    {
        "name": TEXT,
        "sql": TEXT,
        "action": {"enum": ["warn", "drop", "fail"]},
        "violated": NUMBER,
        "last_batch": nullable(NUMBER),
    }
)
_STATUS: Final = record(
    {
        "warehouse": TEXT,
        "batch": NUMBER,
        "events": NUMBER,
        "dead_letters": NUMBER,
        "files": NUMBER,
        "streams": NUMBER,
        "lag": nullable(NUMBER),
        "trouble": nullable(TEXT),
        "types": array(_TYPE),
        "published": mapping(NUMBER),
        "unkeyed": mapping(NUMBER),
        "expectations": array(_EXPECTATION),
        "failing": mapping(TEXT),
        "drift": mapping(TEXT),
        "details": _DETAILS,
    }
)
_LIMIT: Final = nullable(shared.COUNT)


def describe() -> Description:
    """Return what the document says of this dialect."""
    rows = {"columns": array(_COLUMN), "rows": array(array({}))}
    return Description(
        _OPERATIONS,
        {
            "PipelineStatus": record({"name": TEXT, "status": _STATUS}),
            "ReplayRequest": record(
                {
                    **{name: nullable(TEXT) for name in (*_SELECTED, "fix")},
                    "discard": FLAG,
                    "dry_run": FLAG,
                },
                optional=[*_SELECTED, "fix", "discard", "dry_run"],
            ),
            "SqlRequest": record({"query": TEXT, "limit": _LIMIT}, optional=["limit"]),
            "SqlResult": record({**rows, "truncated": FLAG, "seconds": _SECONDS}),
        },
    )
