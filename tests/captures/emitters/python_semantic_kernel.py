"""Semantic Kernel, streamed through OpenAI's chat completions, with its own spans."""

import asyncio

from common import MODEL, consume_async, metering, tracing
from openai import AsyncOpenAI
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory

tracer, meter = tracing(), metering()
service = OpenAIChatCompletion(ai_model_id=MODEL, async_client=AsyncOpenAI(max_retries=0))


async def main() -> None:
    """Stream one answer."""
    history = ChatHistory()
    history.add_user_message("Count.")
    await consume_async(service.get_streaming_chat_message_contents(history, OpenAIChatPromptExecutionSettings()))


asyncio.run(main())
tracer.shutdown()
meter.shutdown()
