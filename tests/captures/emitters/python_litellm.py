"""LiteLLM's OpenTelemetry callback: the classic one, or the newer one (asynchronous calls only) if LITELLM_OTEL_V2 is set."""

import asyncio

import litellm
from common import MESSAGES, MODEL, WARM_UP, consume_async

litellm.telemetry = False
OPTIONS = {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}, "num_retries": 0}
# The callbacks run after the last chunk, and the exporter sends every 5 s.
SETTLE_S = 7


async def main() -> None:
    """Stream one response; a warm-up goes before it, without the callback."""
    async for _ in await litellm.acompletion(model=f"openai/{WARM_UP}", **OPTIONS):
        pass
    # The warm-up's callbacks run after its last chunk: with the callback set by then it would be captured, too.
    await asyncio.sleep(1)
    litellm.callbacks = ["otel"]
    stream = await litellm.acompletion(model=f"openai/{MODEL}", **OPTIONS)
    await consume_async(stream)
    del stream
    await asyncio.sleep(SETTLE_S)


asyncio.run(main())
