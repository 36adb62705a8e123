from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import FileResponse
from pydantic import BaseModel

import penstock


def authorize(request: penstock.AccessRequest) -> penstock.Grant:
    return penstock.Grant(name="guest", allow=("read:votes",))


streams = penstock.asgi(data_dir="data", authorize=authorize)
votes = streams.client().stream("votes")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with streams.lifespan():
        await votes.ensure()
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/streams", streams)


class Vote(BaseModel):
    choice: str


@app.post("/vote", status_code=204)
async def vote(vote: Vote) -> None:
    await votes.append(vote.model_dump())


@app.get("/")
async def page() -> FileResponse:
    return FileResponse("page.html")
