"""The demo's application: `openai` clients that request every recorded stream at its recorded time. It runs as a separate process.

It uses Legato as a user's application does: two calls (`configure`, `instrument_openai`), then ordinary use of the `openai` package. It
prints its progress as JSON lines for the demo. The progress is not part of the measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import time
import zlib
from dataclasses import asdict, dataclass

from openai import AsyncOpenAI, NotFoundError

import legato
from demo.plan import Plan
from demo.processes import raise_priority
from demo.recording import Recording, Stream

__all__ = ["Progress", "read_all"]

SERVICE = "demo-app"
STALL_S = 0.25
_REPORT_EVERY_S = 0.25
_TIMEOUT_S = 60
# Requests are sent this long before their recorded time, so that all have arrived by then even if twenty begin at once.
_LEAD_S = 0.06


@dataclass(slots=True)
class Progress:
    """Counts of the clients so far, printed as one JSON line."""

    recording: str = ""
    streams: int = 0
    running: int = 0
    ended: int = 0
    failed: int = 0
    chunks: int = 0
    stalls: int = 0
    gap_max_s: float = 0.0


async def read_all(plan: Plan, base_url: str, progress: Progress) -> None:
    """Read the plan's recordings one after another. Each stream starts at its recorded time; return when all have ended."""
    async with AsyncOpenAI(base_url=base_url, api_key="demo", max_retries=0, timeout=_TIMEOUT_S) as client:
        for recording in plan.recordings():
            progress.recording = recording.name
            progress.streams += len(recording.streams)
            started = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for stream in recording.streams:
                    group.create_task(_read_at(client, plan, recording, stream, started, progress))


async def _warm_up(base_url: str) -> None:
    """Send one request before recording starts: a process's first request loads modules, which would delay the first streams."""
    async with AsyncOpenAI(base_url=base_url, api_key="demo", max_retries=0) as client:
        with contextlib.suppress(NotFoundError):
            await client.chat.completions.create(model="none", messages=[], stream=True, extra_headers={"X-Request-Id": "warm-up"})
    # The objects loaded so far stay in use, so the garbage collector need not scan them again.
    gc.collect()
    gc.freeze()


async def _read_at(client: AsyncOpenAI, plan: Plan, recording: Recording, stream: Stream, started: float, progress: Progress) -> None:
    await asyncio.sleep(max(0.0, started + stream.start_us / 1e6 / plan.speed - time.monotonic()))
    limit = stream.cancel_us / 1e6 / plan.speed if stream.cancel_us is not None else None
    progress.running += 1
    try:
        # The application has twenty users. The SDK sends their names as hashes.
        async with asyncio.timeout(limit):
            with legato.context(client=f"user-{zlib.crc32(stream.key.encode()) % 20}"):
                await _read(client, plan.model(recording), stream.key, started, progress)
    except TimeoutError:
        pass  # the recorded client cancelled at this time
    except Exception:
        # This includes errors that the HTTP library raises in mid-stream. One failed stream must not end the others.
        progress.failed += 1
    finally:
        progress.running -= 1
        progress.ended += 1


async def _read(client: AsyncOpenAI, model: str, key: str, began: float, progress: Progress) -> None:
    chunks = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Replay the stream with the id in X-Request-Id."}],
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"X-Request-Id": key, "X-Replay-Began": repr(began + _LEAD_S)},
    )
    last = None
    async for chunk in chunks:
        if not chunk.choices or not chunk.choices[0].delta.content:
            continue
        now = time.monotonic()
        progress.chunks += 1
        if last is not None:
            progress.stalls += now - last >= STALL_S
            progress.gap_max_s = max(progress.gap_max_s, now - last)
        last = now


async def _report(progress: Progress) -> None:
    while True:
        print(json.dumps(asdict(progress)), flush=True)
        await asyncio.sleep(_REPORT_EVERY_S)


async def _run(plan: Plan, base_url: str) -> None:
    progress = Progress()
    reporting = asyncio.create_task(_report(progress))
    await read_all(plan, base_url, progress)
    reporting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reporting
    print(json.dumps(asdict(progress)), flush=True)


def main() -> None:
    """Read the plan's streams from a server and export the recordings to an OTLP endpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", help="the plan as JSON")
    parser.add_argument("--server", required=True, help="base URL of the OpenAI-compatible server")
    parser.add_argument("--otlp", required=True, help="OTLP endpoint of `legato serve`")
    options = parser.parse_args()
    raise_priority()
    plan = Plan.from_json(options.plan)
    if not plan.plain:
        legato.configure(endpoint=options.otlp, service_name=SERVICE, service_version="demo")
    asyncio.run(_warm_up(options.server))
    if not plan.plain:
        legato.instrument_openai()
    asyncio.run(_run(plan, options.server))
    if not plan.plain:
        legato.flush()


if __name__ == "__main__":
    main()
