"""Requests that schemathesis makes up from the OpenAPI document, sent to a real server.

Paths and URLs are often those of streams, tables and subscriptions that exist, so that requests
get further than a 404.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from requests.structures import CaseInsensitiveDict
from schemathesis import GenerationMode
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response
from schemathesis.schemas import APIOperation as AnyOperation
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.helpers.server import Server, running_server

APIOperation = AnyOperation[Any, Any, Any, Any]
Case = schemathesis.Case[Any]

NOBODY = "http://127.0.0.1:1025"  # a port on which nothing listens
ARGS = [
    *("--long-poll-timeout", "0.02", "--sse-timeout", "0.02"),
    *("--table-timeout", "0.02", "--table-idle", "0.02"),
    *("--development", "--public-url", "http://127.0.0.1:1026", "--stp-peers", "127.0.0.1"),
]
JSON = {"content-type": "application/json"}
PATHS = ("bytes", "messages", "closed", "state", "rows", "trimmed", "forked", "gone", "mirror")
IDS = ("pull", "hook", "gone")
BODIES: dict[str, list[Any]] = {
    "declareSchema": [{"types": {"user": {"schema": {"type": "object"}}}}, {"types": {}}],
    "followTable": [{"surl": f"{NOBODY}/v1/table/a"}, {"surl": f"{NOBODY}/v1/table/b", "links": 1}],
    "notify": [{"surl": f"{NOBODY}/v1/table/a", "match": f"{NOBODY}/v1/notify/a"}],
    "sendNotify": [{"surl": f"{NOBODY}/v1/table/a"}],
    "putSubscription": [
        {"type": "pull-wake", "pattern": "**", "wake_stream": "wakes"},
        {"type": "webhook", "streams": ["messages"], "webhook": {"url": f"{NOBODY}/hook"}},
    ],
    "createToken": [{"allow": ["read:**"]}, {"allow": ["read:a"], "expires_in": None}],
    "signLink": [{"verb": "read", "path": "messages", "expires_in": 60}],
    "setSuccessor": [{"location": "/v1/stream/messages"}],
    "trimStream": [{"before": "now"}, {"before": "-1"}],
}
"""Bodies that get far, by operation."""

CHECKS: list[CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    allow_header_conformance,
]
SETTINGS = settings(
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


class Api(NamedTuple):
    """A server, its document, and a connection to it."""

    server: Server
    schema: BaseSchema
    session: requests.Session

    @property
    def operations(self) -> list[APIOperation]:
        return [each.ok() for each in self.schema.get_all_operations() if isinstance(each, Ok)]


@contextmanager
def running_api(*, memory: bool = True) -> Iterator[Api]:
    """A server with one of everything, and the document that it serves."""
    with running_server(args=ARGS, memory=memory) as server, requests.Session() as session:
        prepare(server.url)
        document = httpx.get(f"{server.url}/openapi.json").json()
        schema = schemathesis.openapi.from_dict(document)
        schema.config.update(base_url=server.url)
        yield Api(server, schema, session)


def prepare(url: str, headers: dict[str, str] | None = None) -> None:
    """Create what `PATHS` and `IDS` name, in place of what is there."""
    event = {"type": "user", "key": "1", "value": {"n": 1}, "headers": {"operation": "insert"}}
    # No TLS: saves loading certificates, every time.
    with httpx.Client(base_url=url, headers=headers, verify=False) as client:

        def send(method: str, path: str, body: Any = b"", **headers: str) -> httpx.Response:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            if not isinstance(body, bytes):
                names = {**JSON, **names}
            response = client.request(method, path, content=content, headers=names)
            assert response.status_code < 300, response.text
            return response

        for name in ("mirror", "rows"):
            client.delete(f"/v1/follow/{name}")
        for path in ("forked", *PATHS):
            client.delete(f"/v1/stream/{path}")
        for id in IDS:
            client.delete(f"/v1/stream/__ds/subscriptions/{id}")
        send("PUT", "/v1/stream/bytes", b"0123456789", content_type="text/plain")
        tail = send("PUT", "/v1/stream/messages", [1, {"a": "b"}, "c"]).headers
        send("PUT", "/v1/stream/closed", [1], stream_closed="true")
        send("PUT", "/v1/stream/state", [event])
        send("PUT", "/v1/schema/state", {"types": {"user": {"schema": {"type": "object"}}}})
        send("PUT", "/v1/table/rows", {"schema": "user", "record": "text"})
        send("POST", "/v1/table/rows", b"+\tuser-1\tAda\n-\tuser-2\n", content_type="text/plain")
        send("PUT", "/v1/stream/trimmed", [1, 2, 3])
        send("POST", "/v1/stream/trimmed/__ds/trim", {"before": "now"})
        send("PUT", "/v1/stream/forked", stream_forked_from="/v1/stream/messages")
        send("PUT", "/v1/follow/mirror", {"surl": f"{NOBODY}/v1/table/mirror"})
        pull, hook = BODIES["putSubscription"]
        send("PUT", "/v1/stream/__ds/subscriptions/pull", pull)
        send("PUT", "/v1/stream/__ds/subscriptions/hook", hook)
        send("POST", "/v1/stream/messages", [2], if_match=tail["stream-next-offset"])


@st.composite
def cases(draw: st.DrawFn, operation: APIOperation, mode: GenerationMode) -> Case:
    """A request of an operation, mostly to something that exists."""
    case: Case = draw(operation.as_strategy(generation_mode=mode))
    parameters = dict(case.path_parameters or {})
    for name, existing in (("path", PATHS), ("id", IDS)):
        if name in parameters and draw(st.integers(0, 3)):
            parameters[name] = draw(st.sampled_from(existing))
    if parameters:
        case.path_parameters = parameters
    identifier = operation.definition.raw["operationId"]
    if identifier in BODIES and draw(st.booleans()):
        case.body = draw(st.sampled_from(BODIES[identifier]))
    return case


def send(api: Api, case: Case) -> Response:
    """Send a request, and check the response against the document."""
    response = case.call(session=api.session, timeout=20)
    case.validate_response(response, checks=CHECKS)
    check_body(case, response)
    return response


def check_body(case: Case, response: Response) -> None:
    """What the document cannot say."""
    if case.operation.method.upper() == "HEAD" or response.status_code in (204, 304):
        assert not response.content, case.operation.label
    if response.status_code >= 400 and response.content:
        assert json.loads(response.content)["status"] == response.status_code, case.operation.label


def fuzz(api: Api, operation: APIOperation, *, seed_of: int, examples: int) -> None:
    """Send requests that fit the document, and as many that do not."""
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        @seed(seed_of)
        @settings(SETTINGS, max_examples=examples)
        @given(cases(operation, mode))
        def run(case: Case) -> None:
            send(api, case)

        try:
            run()
        except Unsatisfiable:
            # Some parameters take any text: nothing is wrong with any request.
            assert mode is GenerationMode.NEGATIVE


class Sequence:
    """Requests about one path and one subscription, each with what the responses before it said.

    Streams of one sequence have one content type, so that most appends are accepted.
    """

    def __init__(self, api: Api, data: st.DataObject, name: str) -> None:
        self._api = api
        self._draw = data.draw
        self._names = {"path": name, "id": name}
        self._operations = {each.definition.raw["operationId"]: each for each in api.operations}
        self._media = self._draw(st.sampled_from(["application/json", "text/plain"]))
        self._offsets: list[str] = []
        self._wake: dict[str, Any] = {}
        self.statuses: set[tuple[str, int]] = set()

    def step(self, identifier: str, *, guided: bool = False) -> None:
        """Send one request; a `guided` one is never left as it was made up."""
        operation = self._operations[identifier]
        names = {name: self._names[name] for name in re.findall(r"{(\w+)}", operation.path)}
        media = self._media if identifier in ("createStream", "appendToStream") else None
        case = self._draw(operation.as_strategy(path_parameters=names, media_type=media))
        self._continue(identifier, case, self._draw(st.integers(1 if guided else 0, 7)))
        response = send(self._api, case)
        self.statuses.add((identifier, response.status_code))
        self._offsets += response.headers.get("stream-next-offset", [])
        if identifier == "claimWake" and response.status_code == 200:
            self._wake = response.json()

    def _continue(self, identifier: str, case: Case, chance: int) -> None:
        """Put what is known into a request, or leave it as it was made up."""
        path = self._names["path"]
        if not chance:
            return
        if identifier in SEQUENCE_BODIES:
            case.body = self._draw(st.sampled_from(SEQUENCE_BODIES[identifier](path)))
        if identifier in ("createStream", "appendToStream", "writeRows"):
            case.headers = CaseInsensitiveDict()  # no fork, no producer, no condition
            if self._offsets and chance < 3 and identifier != "createStream":
                case.headers["If-Match"] = self._offsets[-1]
        if identifier in ("readStream", "readState") and self._offsets:
            case.query = {"offset": self._draw(st.sampled_from(self._offsets))}
            if identifier == "readStream" and chance < 4:
                case.query["live"] = self._draw(st.sampled_from(["long-poll", "sse"]))
        if identifier in ("ackWake", "releaseWake") and self._wake:
            case.headers = CaseInsensitiveDict(Authorization=f"Bearer {self._wake['token']}")
            acks: list[Any] = [
                {"stream": each["path"], "offset": each["tail_offset"]}
                for each in self._wake["streams"]
            ]
            case.body = {
                "wake_id": self._wake["wake_id"],
                "generation": self._wake["generation"],
                "acks": acks if self._draw(st.booleans()) else [],
                "done": self._draw(st.booleans()),
            }


EVENT = {"type": "user", "key": "1", "value": "Ada", "headers": {"operation": "upsert"}}
SEQUENCE_BODIES: dict[str, Callable[[str], list[Any]]] = {
    "createStream": lambda path: [[], [EVENT]],
    "appendToStream": lambda path: [[EVENT], [EVENT] * 9, [1, "two", None]],
    "declareSchema": lambda path: BODIES["declareSchema"],
    "putTableOrRow": lambda path: [{"schema": "user"}, {"schema": "user", "record": "json"}],
    "writeRows": lambda path: ["+\tuser-1\tAda\n", "-\tuser-1\n"],
    "putSubscription": lambda path: [
        {"type": "pull-wake", "streams": [path], "wake_stream": f"{path}-wakes"}
    ],
    "claimWake": lambda path: [{"worker": "worker-1"}, {"worker": "worker-2"}],
    "trimStream": lambda path: [{"before": "now"}, {"before": "-1"}],
}
SEQUENCES = {
    "stream": (
        "createStream", "appendToStream", "readStream", "describeStream", "trimStream",
        "readRetention", "setRetention", "deleteStream", "listStreams",
    ),
    "state": (
        "createStream", "declareSchema", "appendToStream", "readState", "readSchema",
        "compactStream", "trimStream", "dropSchema",
    ),
    "table": (
        "putTableOrRow", "writeRows", "readTable", "deleteRow", "readStream", "readState",
        "compactStream",
    ),
    "subscription": (
        "createStream", "putSubscription", "appendToStream", "claimWake", "ackWake", "releaseWake",
        "readSubscription", "listSubscriptions",
    ),
}  # fmt: skip
"""Operations that follow from each other; the first ones come first."""


def fuzz_sequences(
    api: Api, *, seed_of: int, examples: int, steps: int = 8
) -> set[tuple[str, int]]:
    """Send sequences of requests; return which operations were answered with which status."""
    statuses: set[tuple[str, int]] = set()
    for kind, identifiers in SEQUENCES.items():
        _fuzz_kind(api, kind, identifiers, statuses, (seed_of, examples, steps))
    return statuses


def _fuzz_kind(
    api: Api,
    kind: str,
    identifiers: tuple[str, ...],
    statuses: set[tuple[str, int]],
    size: tuple[int, int, int],
) -> None:
    seed_of, examples, steps = size
    numbers = itertools.count()

    @seed(seed_of)
    @settings(SETTINGS, max_examples=examples)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        sequence = Sequence(api, data, f"{kind}-{seed_of}-{next(numbers)}")
        for identifier in identifiers[:5]:
            sequence.step(identifier, guided=True)
        for _ in range(steps):
            sequence.step(data.draw(st.sampled_from(identifiers)))
        statuses.update(sequence.statuses)

    run()


def until(seconds: float) -> Callable[[], bool]:
    """Return a function that says whether there is time left."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end
