"""A model of smolagents, streamed through OpenAI's chat completions, under OpenInference's instrumentation."""

import os

from common import MODEL, consume, tracing
from openinference.instrumentation.smolagents import SmolagentsInstrumentor
from smolagents import OpenAIModel, ToolCallingAgent

tracer = tracing()
SmolagentsInstrumentor().instrument()
model = OpenAIModel(MODEL, api_base=os.environ["OPENAI_BASE_URL"], api_key="none", client_kwargs={"max_retries": 0})
agent = ToolCallingAgent(tools=[], model=model, stream_outputs=True, max_steps=1)
consume(agent.run("Count.", stream=True))
tracer.shutdown()
