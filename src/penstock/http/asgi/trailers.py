"""Keeps trailers out of the headers of requests under uvicorn.

With httptools uvicorn adds the trailers of a chunked body to the list of headers that the
application gets, where nothing tells them apart: a header that a proxy checks or sets could come
after the body instead. The other servers and parsers drop trailers.
"""

from __future__ import annotations

import functools
import sys
from typing import Any


def drop_trailers() -> None:
    """Make the requests that uvicorn parses from now on end their headers where the body begins.

    Does nothing in a process without uvicorn. Called when an application is made and again when it
    starts, since uvicorn may be imported in between.
    """
    if "uvicorn" not in sys.modules:
        return
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:  # uvicorn without httptools
        return
    complete = HttpToolsProtocol.on_headers_complete
    if hasattr(complete, "__wrapped__"):
        return

    @functools.wraps(complete)
    def on_headers_complete(self: Any) -> None:
        complete(self)
        self.headers = []  # the scope has the list of headers; what follows is lost in this one

    # uvicorn has no hook for this.
    HttpToolsProtocol.on_headers_complete = on_headers_complete  # type: ignore[method-assign]
