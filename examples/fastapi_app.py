r"""Penstock inside a FastAPI app.

    uvicorn examples.fastapi_app:app

Streams are then under /streams; create one, append to it and read it:

    curl -X PUT  -H 'Content-Type: application/json' localhost:8000/streams/v1/stream/hello
    curl -X POST -H 'Content-Type: application/json' -d '{"n": 1}' \
         localhost:8000/streams/v1/stream/hello
    curl localhost:8000/streams/v1/stream/hello
"""

from __future__ import annotations

from fastapi import FastAPI

import penstock

streams = penstock.asgi(memory=True)

# FastAPI does not tell mounted apps when the server starts and stops.
app = FastAPI(lifespan=streams.lifespan)
app.mount("/streams", streams)


@app.get("/")
async def index() -> dict[str, str]:
    return {"streams": "/streams/v1/stream/"}
