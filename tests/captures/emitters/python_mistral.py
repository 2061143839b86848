"""The client of Mistral AI, under the instrumentation that is installed."""

import importlib.util
import os

from common import MESSAGES, consume, metering, tracing

try:
    from mistralai import Mistral
except ImportError:
    from mistralai.client import Mistral

tracer, meter = tracing(), metering()
if importlib.util.find_spec("openinference"):
    from openinference.instrumentation.mistralai import MistralAIInstrumentor

    MistralAIInstrumentor().instrument()
else:
    from opentelemetry.instrumentation.mistralai import MistralAiInstrumentor

    MistralAiInstrumentor().instrument()
client = Mistral(api_key="none", server_url=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"))
consume(client.chat.stream(model="mistral-small-latest", messages=MESSAGES))
tracer.shutdown()
meter.shutdown()
