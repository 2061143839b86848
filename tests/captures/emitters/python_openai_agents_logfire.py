"""OpenAI's Agents SDK, streamed through chat completions, under Logfire."""

import asyncio

import logfire
from agents import Agent, OpenAIChatCompletionsModel, Runner
from common import BREAK_AFTER, MODEL, SCENARIO, report
from openai import AsyncOpenAI

logfire.configure(send_to_logfire=False, service_name="capture", console=False)
logfire.instrument_openai_agents()
agent = Agent(name="counter", model=OpenAIChatCompletionsModel(MODEL, AsyncOpenAI(max_retries=0)))


async def main() -> None:
    """Stream one answer."""
    seen = 0
    try:
        async for event in Runner.run_streamed(agent, "Count.").stream_events():
            seen += event.type == "raw_response_event"
            if SCENARIO == "break" and seen == BREAK_AFTER:
                break
    except Exception as error:
        report(error)


asyncio.run(main())
logfire.shutdown()
