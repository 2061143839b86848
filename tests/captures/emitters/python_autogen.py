"""AutoGen's agent with its own spans, streamed through OpenAI's chat completions."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from common import MODEL, consume_async, tracing

tracer = tracing()


async def main() -> None:
    """Stream one answer."""
    client = OpenAIChatCompletionClient(model=MODEL, max_retries=0, include_usage=True)
    agent = AssistantAgent("counter", client, model_client_stream=True)
    await consume_async(agent.run_stream(task="Count."))


asyncio.run(main())
tracer.shutdown()
