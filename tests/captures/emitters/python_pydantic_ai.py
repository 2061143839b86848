"""Pydantic AI's own spans: an agent that streams text. With Logfire installed, Logfire does the set-up."""

import asyncio
import importlib.util

from common import BREAK_AFTER, MODEL, SCENARIO, WARM_UP, metering, report, tracing
from pydantic_ai import Agent


async def warm_up() -> None:
    """Stream one short answer before the instrumentation is set up."""
    async with Agent(f"openai-chat:{WARM_UP}").run_stream("Count.") as run:
        async for _ in run.stream_text(delta=True, debounce_by=None):
            pass


asyncio.run(warm_up())
if importlib.util.find_spec("logfire"):
    import logfire

    logfire.configure(send_to_logfire=False, service_name="capture", console=False, inspect_arguments=False)
    logfire.instrument_pydantic_ai()
    shutdowns = [logfire.shutdown]
else:
    shutdowns = [tracing().shutdown, metering().shutdown]
    Agent.instrument_all()

agent = Agent(f"openai-chat:{MODEL}")
if SCENARIO == "tools":

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        return "sun"


async def main() -> None:
    """Stream one answer."""
    seen = 0
    try:
        async with agent.run_stream("Count.") as run:
            async for _ in run.stream_text(delta=True, debounce_by=None):
                seen += 1
                if SCENARIO == "break" and seen == BREAK_AFTER:
                    break
    except Exception as error:
        report(error)


asyncio.run(main())
for shutdown in shutdowns:
    shutdown()
