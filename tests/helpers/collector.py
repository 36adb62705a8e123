"""A collector of OpenTelemetry, on loopback."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """What it was sent, and the traceparents of webhooks."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.metrics: dict[str, Any] = {}
        self.traceparents: list[str] = []
        self.changed = threading.Condition()

    def take(self, path: str, body: bytes, headers: Any) -> None:
        with self.changed:
            if path == "/v1/traces":
                for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                    self.resources.append(attributes_of(each.resource.attributes))
                    for scope in each.scope_spans:
                        self.spans += scope.spans
            elif path == "/v1/metrics":
                for each in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    for scope in each.scope_metrics:
                        self.metrics |= {metric.name: metric for metric in scope.metrics}
            elif headers.get("traceparent"):
                self.traceparents.append(headers["traceparent"])
            self.changed.notify_all()

    def wait_for(self, condition: Any) -> Any:
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self), 30), [s.name for s in self.spans]
            return condition(self)

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def attributes_of(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body, self.headers)
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
