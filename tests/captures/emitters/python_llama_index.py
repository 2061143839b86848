"""A chat engine of LlamaIndex with OpenAI's chat model, under the instrumentation that is installed."""

import importlib.util
import os

from common import MODEL, consume, metering, tracing
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.llms.openai import OpenAI

tracer, meter = tracing(), metering()
if importlib.util.find_spec("openinference"):
    from openinference.instrumentation.llama_index import LlamaIndexInstrumentor
else:
    from opentelemetry.instrumentation.llamaindex import LlamaIndexInstrumentor

LlamaIndexInstrumentor().instrument()
usage = {"stream_options": {"include_usage": True}}
model = OpenAI(MODEL, api_base=os.environ["OPENAI_BASE_URL"], max_retries=0, additional_kwargs=usage)
consume(SimpleChatEngine.from_defaults(llm=model).stream_chat("Count.").response_gen)
tracer.shutdown()
meter.shutdown()
