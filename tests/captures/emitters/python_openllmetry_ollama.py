"""OpenLLMetry's instrumentation of Ollama's client."""

import ollama
from common import MESSAGES, WARM_UP, consume, metering, tracing
from opentelemetry.instrumentation.ollama import OllamaInstrumentor

for _ in ollama.chat(model=WARM_UP, messages=MESSAGES, stream=True):
    pass
tracer, meter = tracing(), metering()
OllamaInstrumentor().instrument()
consume(ollama.chat(model="llama3.2", messages=MESSAGES, stream=True))
tracer.shutdown()
meter.shutdown()
