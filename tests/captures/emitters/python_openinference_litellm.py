"""OpenInference's instrumentation of LiteLLM."""

import litellm
from common import MESSAGES, MODEL, WARM_UP, consume, tracing
from openinference.instrumentation.litellm import LiteLLMInstrumentor

litellm.telemetry = False
OPTIONS = {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}, "num_retries": 0}
for _ in litellm.completion(model=f"openai/{WARM_UP}", **OPTIONS):
    pass
tracer = tracing()
LiteLLMInstrumentor().instrument()
consume(litellm.completion(model=f"openai/{MODEL}", **OPTIONS))
tracer.shutdown()
