"""`/docs`: where to find what about this server."""

from __future__ import annotations

from penstock import __version__
from penstock.http.docs.page import link, page, prose, table

_PLACES = {
    "./": "The console: streams, state, tables and pipelines in the browser.",
    "docs/api": "Every operation of the API with its parameters, statuses and schemas.",
    "problems": "Every error with its cause and remedy.",
    "openapi.json": "The API for programs: OpenAPI 3.1.",
    "healthz": "Whether the process answers.",
    "readyz": "Whether the server can be written to.",
    "metrics": "Counters in the text format of Prometheus.",
}
_FIRST = """\
URL=http://127.0.0.1:4437   # the address of this server

curl -X PUT "$URL/v1/stream/hello" -H 'Content-Type: application/json'
curl -X POST "$URL/v1/stream/hello" -H 'Content-Type: application/json' -d '{"text": "Hello"}'
curl "$URL/v1/stream/hello?offset=-1"
curl -N "$URL/v1/stream/hello?offset=-1&live=sse"
"""


def overview_page() -> bytes:
    rows = (
        [link(place, f"`/{place.lstrip('./')}`"), prose(text)] for place, text in _PLACES.items()
    )
    intro = (
        "Penstock keeps durable, replayable streams of changing state and serves them over HTTP. "
        "A stream is created with PUT, appended to with POST, and read with GET from any offset, "
        "once or live."
    )
    hint = "On a server with access rules, add `-H 'Authorization: Bearer …'`."
    body = (
        f"<p>{prose(intro)}</p>\n<h2>First steps</h2>\n<pre><code>{prose(_FIRST)}</code></pre>\n"
        f"<p>{prose(hint)} <code>penstock --help</code> lists the commands that do the same.</p>\n"
        f"<h2>On this server</h2>\n{table(('where', 'what'), rows)}\n"
        f'<p class="soft">Penstock {prose(__version__)}</p>'
    )
    return page("Documentation", body, root="")
