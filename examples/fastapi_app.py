r"""Penstock inside a FastAPI app.

    uvicorn examples.fastapi_app:app

Streams are then under /streams; create one, append to it and read it:

    curl -X PUT  -H 'Content-Type: application/json' localhost:8000/streams/v1/stream/hello
    curl -X POST -H 'Content-Type: application/json' -d '{"n": 1}' \
         localhost:8000/streams/v1/stream/hello
    curl localhost:8000/streams/v1/stream/hello
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import penstock

streams = penstock.asgi(memory=True)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # FastAPI does not tell mounted apps when the server starts and stops.
    await streams.startup()
    yield
    await streams.shutdown()


app = FastAPI(lifespan=lifespan)
app.mount("/streams", streams)


@app.get("/")
async def index() -> dict[str, str]:
    return {"streams": "/streams/v1/stream/"}
