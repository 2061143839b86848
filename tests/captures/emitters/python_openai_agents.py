"""OpenAI's Agents SDK, streamed through chat completions, under the instrumentation that is installed."""

import asyncio
import importlib.util

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_trace_processors
from common import BREAK_AFTER, MODEL, SCENARIO, metering, report, tracing
from openai import AsyncOpenAI

# The default processor sends traces to OpenAI.
set_trace_processors([])
tracer, meter = tracing(), metering()
if importlib.util.find_spec("openinference"):
    from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
elif importlib.util.find_spec("opentelemetry.instrumentation.openai_agents"):
    from opentelemetry.instrumentation.openai_agents import OpenAIAgentsInstrumentor
else:
    from opentelemetry.instrumentation.genai.openai_agents import OpenAIAgentsInstrumentor

OpenAIAgentsInstrumentor().instrument()
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
tracer.shutdown()
meter.shutdown()
