"""Agno's agent, streamed through OpenAI's chat completions, under the instrumentation that is installed."""

import importlib.util

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from common import MODEL, consume, metering, tracing

tracer, meter = tracing(), metering()
if importlib.util.find_spec("openinference"):
    from openinference.instrumentation.agno import AgnoInstrumentor
else:
    from opentelemetry.instrumentation.agno import AgnoInstrumentor

AgnoInstrumentor().instrument()
agent = Agent(model=OpenAIChat(MODEL, max_retries=0), telemetry=False)
consume(agent.run("Count.", stream=True))
tracer.shutdown()
meter.shutdown()
