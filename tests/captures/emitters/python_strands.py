"""Strands Agents' own spans: an agent on an OpenAI model that streams."""

import asyncio

from common import BREAK_AFTER, MODEL, SCENARIO, metering, report, tracing
from strands import Agent
from strands.models.openai import OpenAIModel

tracer, meter = tracing(), metering()
agent = Agent(model=OpenAIModel(model_id=MODEL), callback_handler=None)


async def main() -> None:
    """Stream one answer."""
    seen = 0
    try:
        async for event in agent.stream_async("Count."):
            seen += "data" in event
            if SCENARIO == "break" and seen == BREAK_AFTER:
                break
    except Exception as error:
        report(error)


asyncio.run(main())
tracer.shutdown()
meter.shutdown()
