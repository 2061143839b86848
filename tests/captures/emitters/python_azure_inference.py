"""The client of Azure AI Inference with its own instrumentation."""

import os

from azure.ai.inference import ChatCompletionsClient
from azure.ai.inference.models import UserMessage
from azure.ai.inference.tracing import AIInferenceInstrumentor
from azure.core.credentials import AzureKeyCredential
from azure.core.settings import settings
from common import MODEL, consume, tracing

settings.tracing_implementation = "opentelemetry"
tracer = tracing()
AIInferenceInstrumentor().instrument()
client = ChatCompletionsClient(os.environ["OPENAI_BASE_URL"], AzureKeyCredential("none"))
usage = {"stream_options": {"include_usage": True}}
consume(client.complete(stream=True, messages=[UserMessage("Count.")], model=MODEL, model_extras=usage))
tracer.shutdown()
