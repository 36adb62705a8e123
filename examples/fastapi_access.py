r"""Penstock inside a FastAPI app that knows its users: `Depends` decides who reads and writes what.

    uvicorn examples.fastapi_access:app

Ann may do everything in her own room and read the lobby:

    curl -X PUT -H 'X-User: ann' -H 'Content-Type: application/json' \
         localhost:8000/streams/v1/stream/rooms/ann
    curl -X POST -H 'X-User: ann' -H 'Content-Type: application/json' -d '{"n": 1}' \
         localhost:8000/streams/v1/stream/rooms/ann
    curl -H 'X-User: ann' localhost:8000/streams/v1/stream/rooms/ann
    curl -H 'X-User: bob' localhost:8000/streams/v1/stream/rooms/ann   # 404: not his
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from starlette.types import Receive, Scope, Send

import penstock

USERS = ("ann", "bob")
GRANT = "penstock.grant"  # where the route leaves what it has decided


def current_user(x_user: Annotated[str | None, Header()] = None) -> str:
    """Return the user of a request; a real application asks its session or its token."""
    if x_user not in USERS:
        raise HTTPException(401, "Send X-User: ann or X-User: bob.")
    return x_user


def authorize(request: penstock.AccessRequest) -> penstock.Grant | None:
    grant: penstock.Grant | None = request.scope.get(GRANT)
    return grant


streams = penstock.asgi(memory=True, authorize=authorize)


class StreamsResponse(Response):
    """Lets Penstock answer the request of a route."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await streams({**scope, "root_path": "/streams"}, receive, send)


app = FastAPI(lifespan=streams.lifespan)


@app.api_route("/streams/{path:path}", methods=["GET", "HEAD", "PUT", "POST", "DELETE"])
async def serve(request: Request, user: Annotated[str, Depends(current_user)]) -> Response:
    request.scope[GRANT] = penstock.Grant(name=user, allow=(f"*:rooms/{user}/**", "read:lobby"))
    return StreamsResponse()
