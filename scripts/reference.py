"""The pages docs/http.md and docs/metrics.md, from what a running server says of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx2
import msgspec

from penstock import testing
from penstock.http.openapi.model import ALWAYS, AT_PATH
from scripts.metrics_guide import WORRY

_NOTE: Final = "<!-- Written by `make docs`; edit the source, not this file. -->\n"
_TYPE: Final = re.compile(r"^# HELP (\w+) (.+)\n# TYPE \1 (\w+)$", re.M)
_UNITS: Final = {
    "timestamp": "Unix time in seconds",
    "seconds": "seconds",
    "bytes": "bytes",
    "ratio": "ratio",
    "info": "always 1",
}


class Metric(msgspec.Struct, frozen=True):
    """A metric of /metrics."""

    name: str
    help: str
    kind: str

    @property
    def unit(self) -> str:
        words = set(self.name.split("_"))
        return next((unit for word, unit in _UNITS.items() if word in words), "count")


@cache
def _fetched() -> tuple[dict[str, Any], str]:
    """Return the OpenAPI document and the metrics of a server."""
    # With a disk and an object store: without them a server has no metrics of them.
    with TemporaryDirectory() as folder:
        settings = {"data_dir": Path(folder, "data"), "tier_url": Path(folder, "tier").as_uri()}
        with testing.server(memory=False, **settings) as server:
            document = httpx2.get(f"{server.url}/openapi.json").json()
            return document, httpx2.get(f"{server.url}/metrics").text


def metrics() -> dict[str, Metric]:
    """Return the server's own metrics by their names without `penstock_`."""
    return {
        name.removeprefix("penstock_"): Metric(name, help, kind)
        for name, help, kind in _TYPE.findall(_fetched()[1])
        if name.startswith("penstock_")
    }


def metric_list() -> str:
    """Return the page of the metrics."""
    parts = [
        f"# Metrics\n\n{_NOTE}",
        """
`GET /metrics` answers in the text format of Prometheus. It needs `read` on `__ds/metrics`
([access.md](access.md)). Counters begin at zero with each start; use `rate()`. Histograms have
`_bucket`, `_sum` and `_count`. Besides these there are the metrics of the process that every
Prometheus client has (`process_cpu_seconds_total`, `process_resident_memory_bytes` and so on).

The four to watch first: `penstock_commit_seconds` (what an append waits for),
`penstock_loop_lag_seconds` (what everybody waits for), `penstock_requests_total` with status `5xx`,
and `penstock_disk_free_bytes`.
""",
    ]
    known = metrics()
    for group, entries in WORRY.items():
        parts.append(f"\n## {group}\n\n| metric | kind | unit | meaning | when to worry |\n")
        parts.append("|---|---|---|---|---|\n")
        for name, worry in entries.items():
            metric = known[name]
            parts.append(
                f"| `{metric.name}` | {metric.kind} | {metric.unit} | {metric.help} | {worry} |\n"
            )
    return "".join(parts)


def http_list() -> str:
    """Return the page of the HTTP API."""
    document = _fetched()[0]
    common, at_path = (", ".join(sorted({f"`{e.code}`" for e in es})) for es in (ALWAYS, AT_PATH))
    parts = [
        f"# HTTP reference\n\n{_NOTE}",
        f"""
Every request that a server answers, from its OpenAPI document (`GET /openapi.json`).
[protocol.md](protocol.md) has the rules behind them, [access.md](access.md) what each needs,
[errors.md](errors.md) what each error means.

{document["info"]["description"]}

Errors that every request may get are not repeated below: {common}; and with a path in the URL
{at_path}.
""",
    ]
    for tag in document["tags"]:
        parts.append(f"\n## {tag['name'].capitalize()}\n\n{tag['description']}\n")
        for path, item in document["paths"].items():
            for method, operation in item.items():
                own_head = method != "head" or "(headers only)" not in operation["summary"]
                if operation["tags"] == [tag["name"]] and own_head:
                    parts += _operation(method.upper(), path, operation, document)
    return "".join(parts)


def _operation(
    method: str, path: str, operation: dict[str, Any], document: dict[str, Any]
) -> Iterator[str]:
    yield f"\n### {method} {path}\n\n{operation['summary']}."
    yield f" {operation['description']}\n" if "description" in operation else "\n"
    parameters = [each for each in operation.get("parameters", ()) if each["in"] != "path"]
    if parameters:
        yield "\n| parameter | in | |\n|---|---|---|\n"
        for each in parameters:
            must = " Required." if each["required"] else ""
            yield f"| `{each['name']}` | {each['in']} | {_cell(each['description'])}{must} |\n"
    if "requestBody" in operation:
        yield _body(operation["requestBody"])
    yield "\n| status | |\n|---|---|\n"
    usual = {error.code for error in ALWAYS}
    usual |= {error.code for error in AT_PATH} if "{path}" in path else set()
    for status, answer in sorted(operation["responses"].items()):
        name = answer.get("$ref", "").rpartition("/")[2]
        whole = document["components"]["responses"][name] if name else answer
        if status < "400" or "application/problem+json" not in whole.get("content", {}):
            yield f"| {status} | {_cell(whole['description'])}{_headers(whole)} |\n"
        elif codes := sorted(_codes(whole) - usual):
            links = ", ".join(f"[`{code}`](errors.md#{code})" for code in codes)
            yield f"| {status} | {links} |\n"


def _body(body: dict[str, Any]) -> str:
    kinds = ", ".join(f"`{kind}`" for kind in body["content"])
    text = f"\nBody{'' if body.get('required') else ' (optional)'}: {kinds}."
    text += f" {body['description']}\n" if "description" in body else "\n"
    example = body["content"].get("application/json", {}).get("example")
    if example is None:
        return text
    return f"{text}\n```json\n{msgspec.json.encode(example).decode()}\n```\n"


def _headers(answer: dict[str, Any]) -> str:
    names = ", ".join(f"`{name}`" for name in answer.get("headers", ()))
    return f" Headers: {names}." if names else ""


def _codes(answer: dict[str, Any]) -> set[str]:
    """Return every value of a `code` in the schema of an error."""
    schema = answer["content"]["application/problem+json"]["schema"]
    members = [each.get("properties", {}).get("code", {}) for each in schema.get("allOf", ())]
    return {code for member in members for code in member.get("enum", ())}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
