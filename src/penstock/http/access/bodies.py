"""The JSON bodies of requests for tokens and links."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.errors import InvalidAccessRequest
from penstock.protocol.json_mode import frame

if TYPE_CHECKING:
    from penstock.http.message import Request

S = TypeVar("S", bound=msgspec.Struct)


def parse_body(request: Request, kind: type[S], example: str) -> S:
    """Return the body as a struct; InvalidAccessRequest says what is wrong and shows an example."""
    frame(request.body, allow_empty=True)  # raises what is wrong with the JSON itself
    try:
        return msgspec.json.decode(request.body, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidAccessRequest(f"Send JSON such as {example}: {error}.") from None
