"""An HTTP server with OpenAI's streaming API on a free port. The requested model name selects its behaviour.

Models: `burst` sends all words in one write, `hang` pauses 20 s, `cut` ends without a finish reason, `break` drops the connection,
`abort` finishes with `abort`, `fail` answers 500; any other name gives a normal response.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from helpers.servers.serving import served

__all__ = ["WORDS", "completions_server", "seen_headers"]

WORDS = ["Zebra", " crossing", " éclair", ' "quoted"', " done"]
seen_headers: list[dict[str, str]] = []


def frame(choice: dict[str, Any] | None, **more: Any) -> str:
    """One chat completion chunk as a server-sent event."""
    body = {
        "id": "chatcmpl-test",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "served",
        "choices": [choice] if choice else [],
    }
    return f"data: {json.dumps({**body, **more}, ensure_ascii=False)}\n\n"


def delta(content: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """One entry of a chunk's `choices`."""
    return {"index": 0, "delta": content, "logprobs": None, "finish_reason": finish}


async def chat(model: str) -> AsyncIterator[str]:
    """The events of one chat completion."""
    yield frame(delta({"role": "assistant", "content": ""}))
    await asyncio.sleep(0.02)
    if model == "burst":
        yield "".join(frame(delta({"content": word})) for word in WORDS)
    for word in WORDS if model != "burst" else ():
        yield frame(delta({"content": word}))
        await asyncio.sleep(0.02)
    if model == "hang":
        await asyncio.sleep(20)
    if model == "cut":
        return
    if model == "break":
        raise ConnectionError("the engine closed the connection")
    if model == "abort":
        yield frame(delta({}, "abort"))
    else:
        yield frame(delta({}, "stop"))
    yield frame(None, usage={"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12})
    yield "data: [DONE]\n\n"


async def responses() -> AsyncIterator[str]:
    """The events of one response of the Responses API."""
    usage = {
        "input_tokens": 7,
        "output_tokens": 5,
        "total_tokens": 12,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    response: dict[str, Any] = {"id": "resp-test", "object": "response", "created_at": 1, "model": "served", "output": []}
    response |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "in_progress"}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": response}]
    where = {"item_id": "m", "output_index": 0, "content_index": 0, "logprobs": []}
    events += [{"type": "response.output_text.delta", "delta": word, **where} for word in WORDS]
    events.append({"type": "response.completed", "response": {**response, "status": "completed", "usage": usage}})
    for number, event in enumerate(events):
        yield f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"
        await asyncio.sleep(0.01)


def create_app() -> FastAPI:
    """The application with the two endpoints."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def completions(request: Request) -> Any:
        seen_headers.append(dict(request.headers))
        body = await request.json()
        if body["model"] == "fail":
            return JSONResponse({"error": {"message": "no", "type": "server_error"}}, 500)
        if not body.get("stream"):
            message = {"role": "assistant", "content": "plain"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return {"id": "chatcmpl-plain", "object": "chat.completion", "created": 1, "model": "served", "choices": [choice]}
        return StreamingResponse(chat(body["model"]), media_type="text/event-stream")

    @app.post("/v1/responses")
    async def answers() -> Any:
        return StreamingResponse(responses(), media_type="text/event-stream")

    return app


@contextlib.contextmanager
def completions_server(app: Any = None) -> Iterator[str]:
    """Serve ``app``, or the default application, on a free port and yield the base URL."""
    with served(app or create_app()) as url:
        yield f"{url}/v1"
