import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

app = FastAPI()


async def words(body: dict[str, Any]) -> AsyncIterator[str]:
    question = body["messages"][-1]["content"]
    for word in f"You said {question}. Streams remember.".split():
        yield f"{word} "
        await asyncio.sleep(0.03)
        if word.startswith("explode"):
            raise RuntimeError("the model broke in the middle of an answer")


@app.post("/v1/chat/completions")
async def openai(body: dict[str, Any]) -> StreamingResponse:
    async def events() -> AsyncIterator[str]:
        async for word in words(body):
            yield f"data: {json.dumps({'choices': [{'delta': {'content': word}}]})}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.post("/v1/messages")
async def anthropic(body: dict[str, Any]) -> StreamingResponse:
    async def events() -> AsyncIterator[str]:
        async for word in words(body):
            delta = {"type": "text_delta", "text": word}
            event = {"type": "content_block_delta", "index": 0, "delta": delta}
            yield f"event: content_block_delta\ndata: {json.dumps(event)}\n\n"
        yield 'event: message_stop\ndata: {"type": "message_stop"}\n\n'

    return StreamingResponse(events(), media_type="text/event-stream")
