"""Google's GenAI SDK, streamed, under the instrumentation that is installed."""

import importlib.util

from common import WARM_UP, consume, metering, tracing
from google import genai


def instrumentor() -> object:
    """Return the installed instrumentation."""
    if importlib.util.find_spec("openinference"):
        from openinference.instrumentation.google_genai import GoogleGenAIInstrumentor
    elif importlib.util.find_spec("opentelemetry.instrumentation.google_genai"):
        from opentelemetry.instrumentation.google_genai import GoogleGenAiSdkInstrumentor as GoogleGenAIInstrumentor
    else:
        from opentelemetry.instrumentation.google_generativeai import GoogleGenerativeAiInstrumentor as GoogleGenAIInstrumentor
    return GoogleGenAIInstrumentor()


client = genai.Client()
for _ in client.models.generate_content_stream(model=WARM_UP, contents="Count."):
    pass
tracer, meter = tracing(), metering()
instrumentor().instrument()
consume(client.models.generate_content_stream(model="gemini-2.5-flash", contents="Count."))
tracer.shutdown()
meter.shutdown()
