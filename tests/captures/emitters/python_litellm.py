"""LiteLLM's OpenTelemetry callback: the classic one, or the newer one if LITELLM_OTEL_V2 is set."""

import time

import litellm
from common import MESSAGES, MODEL, consume

litellm.telemetry = False
litellm.callbacks = ["otel"]
litellm.success_callback = []
stream = litellm.completion(
    model=f"openai/{MODEL}", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, num_retries=0, api_key="none"
)
consume(stream)
del stream
# The callback runs in a thread of LiteLLM after the last chunk.
time.sleep(2)
