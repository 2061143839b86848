"""The client of Cohere, under the instrumentation that is installed."""

import importlib.util
import os

from cohere import ClientV2
from common import MESSAGES, consume, metering, tracing

tracer, meter = tracing(), metering()
if importlib.util.find_spec("openinference"):
    from openinference.instrumentation.cohere import CohereInstrumentor
else:
    from opentelemetry.instrumentation.cohere import CohereInstrumentor

CohereInstrumentor().instrument()
client = ClientV2("none", base_url=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"))
consume(client.chat_stream(model="command-a-03-2025", messages=MESSAGES))
tracer.shutdown()
meter.shutdown()
