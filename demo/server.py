"""The demo's server: OpenAI's streaming chat completions over SSE, sent at the recorded times. It runs as a separate process.

Each frame has an absolute deadline relative to the start of the replay, which the clients send in `X-Replay-Began`. Delays therefore do not
accumulate, and frames stay aligned with the engine's steps. The event loop uses `select`, which has time-outs in microseconds; those of
epoll are in milliseconds. `X-Request-Id` selects the recorded stream; a request without it receives the next one, timed from its arrival.
The SDK's middleware wraps the application from outside, as in any other server.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import selectors
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.responses import StreamingResponse

import legato
from demo.engine import ReplayedEngine
from demo.frames import Replay, build
from demo.plan import Plan
from demo.processes import raise_priority
from legato.asgi import StreamMiddleware
from legato_gpu_agent.plugin.recorder import StepRecorder

__all__ = ["create_app", "serve"]

SERVICE = "demo-server"


class BrokenOff(Exception):
    """Raised to end a response without `[DONE]`, as the recorded one ended."""


def create_app(plan: Plan, recorder: StepRecorder | None = None) -> FastAPI:
    """Return the application without Legato's middleware. With a ``recorder``, the replayed engine passes its steps to it."""
    app = FastAPI(title="Legato demo", docs_url=None, redoc_url=None, openapi_url=None)
    recordings = plan.recordings()
    replays = {
        stream.key: (recording.name, stream.start_us, build(stream, plan.model(recording), plan.response_id(stream)))
        for recording in recordings
        for stream in recording.streams
    }
    engines = {each.name: ReplayedEngine(plan, each, recorder) for each in recordings if recorder is not None and each.steps}
    running: set[asyncio.Task[None]] = set()
    turns = itertools.cycle(replays)

    @app.get("/healthz")
    async def healthz() -> dict[str, int]:
        return {"streams": len(replays)}

    @app.post("/v1/chat/completions")
    async def completions(
        request: Request, x_request_id: str = Header(""), x_replay_began: float | None = Header(None)
    ) -> StreamingResponse:
        arrived = asyncio.get_running_loop().time()
        body = await _json(request)
        if not body.get("stream"):
            raise HTTPException(400, "stream is not true: this server only replays streams; send stream=true")
        x_request_id = x_request_id or next(turns)
        if x_request_id not in replays:
            raise HTTPException(404, f"no recorded stream {x_request_id!r}: send its id in X-Request-Id, for example {next(iter(replays))}")
        with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        name, start_us, replay = replays[x_request_id]
        began = arrived if x_replay_began is None else x_replay_began + start_us / 1e6 / plan.speed
        if x_replay_began is not None and name in engines:
            running.add(asyncio.create_task(engines.pop(name).run(x_replay_began)))
        frames = _replay(replay, began, plan.speed, with_usage)
        return StreamingResponse(frames, media_type="text/event-stream", headers={"X-Request-Id": x_request_id})

    return app


async def _json(request: Request) -> dict[str, Any]:
    """Return the JSON body. Content-Type is ignored, because `curl --data` sends that of a form."""
    try:
        body = json.loads(await request.body())
    except ValueError:
        raise HTTPException(400, 'the body is not JSON: send {"stream": true}') from None
    return body if isinstance(body, dict) else {}


async def _replay(replay: Replay, began: float, speed: float, with_usage: bool) -> AsyncIterator[bytes]:
    clock = asyncio.get_running_loop().time
    for frame in replay.frames:
        if frame.usage and not with_usage:
            continue
        wait = began + frame.at_us / 1e6 / speed - clock()
        if wait > 0:
            await asyncio.sleep(wait)
        yield frame.data
    if not replay.complete:
        raise BrokenOff


def serve(app: Any, port: int) -> None:
    """Serve an ASGI application on loopback until SIGTERM or SIGINT, on an event loop with microsecond timers."""
    config = uvicorn.Config(app, "127.0.0.1", port, loop="none", log_level="critical", access_log=False, timeout_graceful_shutdown=1)
    # The objects created so far stay in use. Scanning them in a garbage collection would delay every stream.
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(uvicorn.Server(config).serve())


def main() -> None:
    """Serve the plan on a port and export the recorded spans to an OTLP endpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", help="the plan as JSON")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--otlp", required=True, help="OTLP endpoint of `legato serve`")
    options = parser.parse_args()
    raise_priority()
    legato.configure(endpoint=options.otlp, service_name=SERVICE, service_version="demo")
    app = create_app(Plan.from_json(options.plan), StepRecorder())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(legato.flush)

    app.router.lifespan_context = lifespan
    serve(StreamMiddleware(app), options.port)


if __name__ == "__main__":
    main()
