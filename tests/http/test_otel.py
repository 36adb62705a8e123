"""OpenTelemetry: spans and metrics reach a collector by OTLP, and nothing waits for one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config.settings import Settings
from penstock.http.exchange import Exchange
from penstock.http.message import Request, Response
from penstock.http.otel.spans import Span, TraceContext, parse_traceparent, spans_of
from penstock.http.otel.telemetry import Telemetry
from penstock.protocol.outbound import parse_url
from tests.helpers.collector import attributes_of, collecting
from tests.helpers.server import running_server

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TEXT = {"Content-Type": "text/plain"}
RATIO = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}


def test_a_server_sends_spans_and_metrics() -> None:
    with collecting() as (collector, endpoint):
        args = ["--otel-endpoint", endpoint, "--memory", "--development"]
        env = {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test"}
        with (
            running_server(args=args, env=env) as server,
            httpx.Client(base_url=server.url) as client,
        ):
            client.put("/v1/stream/a", headers=TEXT)
            parent = f"00-{TRACE}-{PARENT}-01"
            client.post("/v1/stream/a", content=b"hello", headers={**TEXT, "traceparent": parent})
            client.post(
                "/v1/stream/a",
                content=b"x",
                headers={**TEXT, "traceparent": f"00-{TRACE}-{PARENT}-00"},  # not sampled
            )
            client.get("/v1/stream/b?link=s3cret")
            hook = {"type": "webhook", "pattern": "a", "webhook": {"url": f"{endpoint}/hook"}}
            made = client.put("/v1/stream/__ds/subscriptions/s", json=hook)
            assert made.status_code in (200, 201), made.text
            client.post("/v1/stream/a", content=b"wake", headers=TEXT)
            collector.wait_for(lambda c: c.traceparents and c.named("POST"))
            collector.wait_for(lambda c: c.named("GET /v1/stream/{path}"))
        # A stop sends what is left, metrics included.
        collector.wait_for(lambda c: "penstock_appends" in c.metrics)

    append = next(span for span in collector.spans if span.trace_id.hex() == TRACE)
    assert append.name == "POST /v1/stream/{path}"
    assert append.parent_span_id.hex() == PARENT
    attributes = attributes_of(append.attributes)
    assert attributes["http.request.method"] == "POST"
    assert attributes["http.route"] == "/v1/stream/{path}"
    assert attributes["url.path"] == "/v1/stream/a"
    assert attributes["http.response.status_code"] == 204
    assert attributes["http.request.body.size"] == 5
    assert attributes["client.address"] == "127.0.0.1"
    assert append.end_time_unix_nano > append.start_time_unix_nano
    commit = next(span for span in collector.named("commit") if span.trace_id == append.trace_id)
    assert commit.parent_span_id == append.span_id
    assert sum(span.trace_id.hex() == TRACE for span in collector.spans) == 2
    missing = attributes_of(collector.named("GET /v1/stream/{path}")[0].attributes)
    assert missing["error.type"] == "stream-not-found"
    assert "s3cret" not in str(collector.spans)
    call = collector.named("POST")[0]
    assert collector.traceparents[0] == f"00-{call.trace_id.hex()}-{call.span_id.hex()}-01"
    resource = collector.resources[0]
    assert (resource["service.name"], resource["deployment.environment"]) == ("penstock", "test")

    # The subscription has written, too.
    assert collector.metrics["penstock_appends"].sum.data_points[0].as_int >= 3
    seconds = collector.metrics["penstock_request_seconds"].histogram.data_points
    posts = next(
        point
        for point in seconds
        if attributes_of(point.attributes)
        == {"method": "POST", "route": "/v1/stream/{path}", "status": "2xx"}
    )
    assert sum(posts.bucket_counts) == posts.count == 3
    assert len(posts.bucket_counts) == len(posts.explicit_bounds) + 1
    assert not posts.HasField("max")
    assert collector.metrics["penstock_open_streams"].gauge.data_points[0].as_int >= 1


def test_a_collector_that_is_away_harms_nobody() -> None:
    args = ["--otel-endpoint", "http://127.0.0.1:9", "--otel-queue-max", "5", "--memory"]
    env = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with running_server(args=args, env=env) as server, httpx.Client(base_url=server.url) as client:
        client.put("/v1/stream/a", headers=TEXT)
        for _ in range(50):
            assert client.post("/v1/stream/a", content=b"x", headers=TEXT).status_code == 204

        def dropped() -> bool:
            lines = client.get("/metrics").text.splitlines()
            return any(
                line.startswith("penstock_otel_dropped_total ") and not line.endswith(" 0.0")
                for line in lines
            )

        deadline = time.monotonic() + 20
        while not dropped():
            assert time.monotonic() < deadline
        server.process.terminate()
        assert server.process.wait(30) == 0
        assert all(json.loads(line) for line in server.stderr.splitlines() if line)


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path) -> None:
    blocked = (
        "import sys; sys.modules['opentelemetry.sdk'] = None; from penstock.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocked, "serve", "--memory", "--otel", "--port", "0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: Setting otel needs the OpenTelemetry SDK and its OTLP exporter: pip install "
        "'penstock-streams[otel]'."
    ]


@pytest.mark.parametrize(
    ("value", "context"),
    [
        (f"00-{TRACE}-{PARENT}-01", TraceContext(int(TRACE, 16), int(PARENT, 16), True)),
        (f"00-{TRACE}-{PARENT}-00", TraceContext(int(TRACE, 16), int(PARENT, 16), False)),
        (f"01-{TRACE}-{PARENT}-03-more", TraceContext(int(TRACE, 16), int(PARENT, 16), True)),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        ("", None),
    ],
)
def test_a_traceparent_is_taken_only_if_it_is_valid(value: str, context: Any) -> None:
    assert parse_traceparent(value.encode()) == context


class Silent:
    """An exporter that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: Any = None

    def send_spans(self, spans: list[Span]) -> bool:
        self.spans += spans
        return True

    def send_metrics(self, families: Any) -> bool:
        self.metrics = families
        raise RuntimeError("a bug of an exporter ends no thread")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("percent", "environ", "share"),
    [
        (100, {}, 100),
        (0, {}, 0),
        (100, {"OTEL_TRACES_SAMPLER": "always_off"}, 0),
        (100, {**RATIO, "OTEL_TRACES_SAMPLER_ARG": "0.25"}, 25),
        (100, {**RATIO, "OTEL_TRACES_SAMPLER_ARG": "much"}, 100),
        (10, {**RATIO, "OTEL_TRACES_SAMPLER_ARG": "1"}, 10),
        (100, {"OTEL_TRACES_EXPORTER": "none"}, 0),
    ],
)  # fmt: skip
def test_the_share_of_traces_is_that_of_the_setting_or_of_the_environment(
    percent: int, environ: dict[str, str], share: float
) -> None:
    settings = Settings(otel=True, otel_sample_percent=percent)
    assert Telemetry(settings, Silent(), environ)._percent == share


def test_a_request_to_another_server_has_a_span_with_its_failure() -> None:
    exporter = Silent()
    telemetry = Telemetry(Settings(otel=True), exporter, {})
    call = telemetry.begin("POST", parse_url("http://example.com/hook?token=s3cret"))
    call.end(0, "EgressFailed")
    item = telemetry._items.get()
    assert item is not None
    telemetry._send_spans([item])
    (span,) = exporter.spans
    assert (span.kind, span.error) == ("client", "EgressFailed")
    assert span.attributes["server.address"] == "example.com"
    assert "s3cret" not in str(span)
    assert call.header == f"00-{span.trace_id:032x}-{span.span_id:016x}-01"


def test_a_client_that_has_gone_and_a_failure_are_errors() -> None:
    context = TraceContext(1, 0, True)
    request = Request("BREW", b"/x")
    exchange = Exchange(request, 0, lambda _: None)
    exchange.end()
    (span,) = spans_of(exchange, context)
    assert (span.name, span.error) == ("HTTP", "client_gone")
    assert span.attributes["http.request.method"] == "_OTHER"
    failed = Exchange(Request("GET", b"/x"), 0, lambda _: None)
    failed.answered(Response(503))
    failed.end()
    assert next(iter(spans_of(failed, context))).error == "503"


def test_metrics_that_cannot_be_collected_end_no_thread_and_no_stop() -> None:
    async def main() -> None:
        async def broken() -> Any:
            raise ZeroDivisionError

        def broken_at_last() -> Any:
            raise ZeroDivisionError

        exporter = Silent()
        telemetry = Telemetry(Settings(otel=True, otel_metrics_interval_s=0.01), exporter, {})
        telemetry.start(broken)
        await asyncio.sleep(0.05)  # some intervals
        telemetry.begin("GET", parse_url("http://example.com/")).end(200)
        while not exporter.spans:
            await asyncio.sleep(0.01)
        telemetry.close(broken_at_last)
        assert not telemetry._thread.is_alive()

    asyncio.run(main())


def test_a_stop_while_metrics_are_collected_waits_for_nothing_and_sends_the_last() -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def endless() -> Any:
            begun.set()
            await asyncio.Event().wait()

        exporter = Silent()
        telemetry = Telemetry(Settings(otel=True, otel_metrics_interval_s=0.01), exporter, {})
        telemetry.start(endless)
        await begun.wait()
        last: Any = ["the last"]
        telemetry.close(lambda: last)
        assert exporter.metrics == last
        assert not telemetry._thread.is_alive()

    asyncio.run(main())
