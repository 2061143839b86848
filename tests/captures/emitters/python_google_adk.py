"""Google's Agent Development Kit, streamed from Gemini: its own spans, or those of OpenInference where that is installed."""

import asyncio
import importlib.util

from common import BREAK_AFTER, SCENARIO, metering, report, tracing
from google.adk.agents import Agent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.runners import InMemoryRunner
from google.genai.types import Content, Part

tracer, meter = tracing(), metering()
if importlib.util.find_spec("openinference"):
    from openinference.instrumentation.google_adk import GoogleADKInstrumentor

    GoogleADKInstrumentor().instrument()


async def main() -> None:
    """Stream one answer."""
    runner = InMemoryRunner(Agent(name="counter", model="gemini-2.5-flash"), app_name="capture")
    session = await runner.session_service.create_session(app_name="capture", user_id="user")
    message, config = Content(role="user", parts=[Part(text="Count.")]), RunConfig(streaming_mode=StreamingMode.SSE)
    events = runner.run_async(user_id="user", session_id=session.id, new_message=message, run_config=config)
    seen = 0
    try:
        async for _ in events:
            seen += 1
            if SCENARIO == "break" and seen == BREAK_AFTER:
                await events.aclose()
                break
    except Exception as error:
        report(error)


asyncio.run(main())
tracer.shutdown()
meter.shutdown()
