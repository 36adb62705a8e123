import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
from fastapi import FastAPI, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel

import penstock

MODEL = "http://127.0.0.1:4438/v1/chat/completions"


def authorize(request: penstock.AccessRequest) -> penstock.Grant:
    return penstock.Grant(name="guest", allow=("read:chats/**", "read:sessions/**"))


streams = penstock.asgi(data_dir="data", authorize=authorize)
client = streams.client()
answers: set[asyncio.Task[Any]] = set()


def error_chunk(error: BaseException | None = None) -> dict[str, str]:
    return {"type": "error", "errorText": "The answer could not be finished."}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with streams.lifespan():
        # An answer that a crash has cut off is over: its readers must not wait for ever.
        async for info in client.list("chats/"):
            if not info.closed:
                await client.stream(info.path).close(error_chunk())
        yield
        for task in answers:
            task.cancel()
        await asyncio.gather(*answers, return_exceptions=True)


app = FastAPI(lifespan=lifespan)
app.mount("/streams", streams)


async def ask(question: str) -> AsyncIterator[str]:
    """Yield the words of the model's answer."""
    body = {"stream": True, "messages": [{"role": "user", "content": question}]}
    http = httpx.AsyncClient(timeout=60)
    async with http, http.stream("POST", MODEL, json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])["choices"][0]["delta"].get("content", "")


async def ui_chunks(question: str) -> AsyncIterator[dict[str, str]]:
    """Yield an answer in the chunks of the AI SDK."""
    yield {"type": "start"}
    yield {"type": "text-start", "id": "0"}
    async for word in ask(question):
        yield {"type": "text-delta", "id": "0", "delta": word}
    yield {"type": "text-end", "id": "0"}
    yield {"type": "finish"}


def write(stream: penstock.AsyncStream, chunks: AsyncIterator[Any], **options: Any) -> None:
    """Write an answer in the background: it goes on whether or not anybody reads it."""
    task = asyncio.create_task(
        stream.write_from(chunks, error_record=error_chunk, **options), name=stream.url
    )
    answers.add(task)
    task.add_done_callback(answers.discard)


class Chat(BaseModel):
    id: str
    messages: list[dict[str, Any]]


def pointer(id: str, status: int) -> Response:
    """Return a response that says where the answer is."""
    url = f"/streams/v1/stream/chats/{id}"
    return Response(status_code=status, headers={"Location": url})


@app.post("/api/chat")
async def start(chat: Chat) -> Response:
    stream = client.stream(f"chats/{chat.id}")
    await stream.create(ttl_s=24 * 3600)
    write(stream, ui_chunks(chat.messages[-1]["parts"][0]["text"]))
    return pointer(chat.id, 201)


@app.get("/api/chat/{id}/stream")
async def resume(id: str) -> Response:
    exists = await client.stream(f"chats/{id}").exists()
    return pointer(id, 200) if exists else Response(status_code=204)


async def session_chunks(question: str) -> AsyncIterator[dict[str, str]]:
    """Yield a question and its answer in the chunks of TanStack AI."""
    for role in ("user", "assistant"):
        message = {"messageId": str(uuid4()), "role": role}
        yield {"type": "TEXT_MESSAGE_START", **message}
        if role == "user":
            yield {"type": "TEXT_MESSAGE_CONTENT", **message, "delta": question}
        else:
            async for word in ask(question):
                yield {"type": "TEXT_MESSAGE_CONTENT", **message, "delta": word}
        yield {"type": "TEXT_MESSAGE_END", **message}


class Turn(BaseModel):
    messages: list[dict[str, Any]]


@app.put("/api/sessions/{id}", status_code=204)
async def open_session(id: str) -> None:
    await client.stream(f"sessions/{id}").ensure()


@app.post("/api/sessions/{id}", status_code=202)
async def say(id: str, turn: Turn) -> None:
    question = turn.messages[-1]["parts"][0]["content"]
    write(client.stream(f"sessions/{id}"), session_chunks(question), close=False, on_error="leave")


@app.get("/")
async def page() -> FileResponse:
    return FileResponse("page.html")
