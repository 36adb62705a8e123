"""What the OpenAPI document says of the resources about the server itself, and of itself."""

from __future__ import annotations

from typing import Final

from penstock import limits
from penstock.errors import (
    ClusterNotFound,
    ClusterUnavailable,
    InvalidParameter,
    UnknownParameter,
)
from penstock.http.activity import SORTS, Sample, StreamActivity
from penstock.http.openapi import parameters as shared
from penstock.http.openapi.model import (
    NO_SECURITY,
    Answer,
    Content,
    Description,
    Operation,
    Parameter,
    Schema,
    json,
)
from penstock.http.openapi.schemas import (
    FLAG,
    NUMBER,
    TEXT,
    array,
    mapping,
    nullable,
    record,
    reference,
    struct_schemas,
)

_NO_STORE: Final = (shared.CACHE_CONTROL,)
_OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/",
        id="readIndex",
        summary="Name everything that is served",
        tag="server",
        answers=(
            Answer(
                200,
                "URL templates by name.",
                _NO_STORE,
                json(mapping(TEXT), {"name": "penstock", "streams": "/v1/stream/{path}"}),
            ),
        ),
        security=NO_SECURITY,
    ),
    Operation(
        method="GET",
        path="/healthz",
        id="checkHealth",
        summary="Whether the process answers",
        tag="server",
        answers=(Answer(200, "It does.", _NO_STORE, json(reference("Health"), {"status": "ok"})),),
        security=NO_SECURITY,
    ),
    Operation(
        method="GET",
        path="/readyz",
        id="checkReadiness",
        summary="Whether the server has recovered and can be written to",
        tag="server",
        answers=(
            Answer(200, "It is ready.", _NO_STORE, json(reference("Health"), {"status": "ok"})),
            Answer(
                503,
                "It is not.",
                _NO_STORE,
                json(
                    reference("Health"),
                    {"status": "unavailable", "reason": "The server is stopping."},
                ),
            ),
        ),
        security=NO_SECURITY,
    ),
    Operation(
        method="GET",
        path="/metrics",
        id="readMetrics",
        summary="Counters in the text format of Prometheus",
        tag="server",
        answers=(Answer(200, "The metrics.", _NO_STORE, (Content("text/plain", TEXT),)),),
    ),
    Operation(
        method="GET",
        path="/v1/activity",
        id="readActivity",
        summary="What the server did in the last hour, and which streams are busy now",
        description="Rates are averages of an interval, `commit_…` are quantiles of its commits, "
        "null if there were none. `current` is the interval that goes on. Streams are counted "
        "from the first request on until nobody has asked for a minute: that request has none.",
        tag="server",
        parameters=(
            Parameter(
                "since",
                "query",
                "Only samples after this time, which is the `time` of a sample.",
                shared.TIME,
            ),
            Parameter(
                "limit",
                "query",
                "The most streams.",
                {"type": "integer", "minimum": 1, "maximum": limits.ACTIVITY_STREAMS_MAX},
                example=100,
            ),
            Parameter(
                "sort", "query", "Which of its rates a stream is busy by.", {"enum": [*SORTS]}
            ),
        ),
        answers=(Answer(200, "The activity.", _NO_STORE, json(reference("Activity"))),),
        errors=(InvalidParameter, UnknownParameter),
    ),
    Operation(
        method="GET",
        path="/v1/cluster",
        id="readCluster",
        summary="Which nodes of the cluster live, and who owns which shard",
        description="Read from the tables of the cluster, at most once a second: every node says "
        "the same. `batches` and `journal_bytes` are what a takeover of the shard would replay. "
        "`differing_settings` has settings that all nodes should share, and in groups the nodes "
        "that have the same.",
        tag="server",
        answers=(Answer(200, "The cluster.", _NO_STORE, json(reference("Cluster"))),),
        errors=(ClusterNotFound, ClusterUnavailable),
    ),
    Operation(
        method="GET",
        path="/openapi.json",
        id="readOpenApi",
        summary="This document",
        tag="server",
        parameters=(shared.IF_NONE_MATCH,),
        answers=(
            Answer(
                200,
                "OpenAPI 3.1.",
                (shared.ETAG, shared.CACHE_CONTROL, shared.VARY),
                json({"type": "object", "required": ["openapi", "paths"]}),
            ),
            Answer(304, "It has not changed.", (shared.ETAG, shared.CACHE_CONTROL, shared.VARY)),
        ),
        security=NO_SECURITY,
    ),
)


def describe() -> Description:
    """Return what the document says of these resources."""
    status = {"enum": ["ok", "unavailable"]}
    health = record({"status": status, "reason": TEXT}, optional=["reason"])
    rates = struct_schemas({"ActivitySample": Sample, "StreamActivity": StreamActivity})
    sample = reference("ActivitySample")
    activity = record(
        {
            "version": TEXT,
            "started_at": shared.TIME,
            "now": shared.TIME,
            "interval_s": {"type": "number"},
            "samples": array(sample),
            "current": nullable(sample),
            "streams": array(reference("StreamActivity")),
        }
    )
    own = {"Health": health, "Activity": activity, "Cluster": _cluster()}
    return Description(_OPERATIONS, own | rates)


def _cluster() -> Schema:
    seconds = {"type": "number"}
    shard = record(
        {
            "shard": NUMBER,
            "epoch": NUMBER,
            "owner": nullable(TEXT),
            "owned_s": nullable(seconds),
            "checkpoints": NUMBER,
            "batches": NUMBER,
            "journal_bytes": NUMBER,
        }
    )
    node = record(
        {
            "name": TEXT,
            "url": TEXT,
            "version": TEXT,
            "beat_age_s": seconds,
            "lives": FLAG,
            "leaving": FLAG,
        }
    )
    return record(
        {
            "cluster": TEXT,
            "format": NUMBER,
            "postgresql": TEXT,
            "synchronous_standby_names": TEXT,
            "standbys": array(record({"name": TEXT, "state": TEXT, "sync": TEXT})),
            "shards": array(shard),
            "nodes": array(node),
            "differing_settings": mapping(array(array(TEXT))),
        }
    )
