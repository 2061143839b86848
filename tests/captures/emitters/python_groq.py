"""The client of Groq, under the instrumentation that is installed."""

import importlib.util
import os

from common import MESSAGES, consume, metering, tracing
from groq import Groq

tracer, meter = tracing(), metering()
if importlib.util.find_spec("openinference"):
    from openinference.instrumentation.groq import GroqInstrumentor
else:
    from opentelemetry.instrumentation.groq import GroqInstrumentor

GroqInstrumentor().instrument()
client = Groq(api_key="none", base_url=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"), max_retries=0)
consume(client.chat.completions.create(model="llama-3.3-70b-versatile", messages=MESSAGES, stream=True))
tracer.shutdown()
meter.shutdown()
