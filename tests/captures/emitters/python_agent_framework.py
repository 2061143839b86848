"""Microsoft's Agent Framework, streamed through OpenAI's chat completions, with its own spans."""

import asyncio

from agent_framework import Agent
from agent_framework.observability import enable_instrumentation
from agent_framework.openai import OpenAIChatCompletionClient
from common import MODEL, consume_async, metering, tracing

tracer, meter = tracing(), metering()
enable_instrumentation()
agent = Agent(OpenAIChatCompletionClient(model=MODEL), name="counter")


async def main() -> None:
    """Stream one answer."""
    await consume_async(agent.run("Count.", stream=True))


asyncio.run(main())
tracer.shutdown()
meter.shutdown()
