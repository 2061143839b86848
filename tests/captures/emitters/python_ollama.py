"""The client of Ollama, under OpenInference's instrumentation."""

import os

from common import MESSAGES, consume, tracing
from ollama import Client
from openinference.instrumentation.ollama import OllamaInstrumentor

tracer = tracing()
OllamaInstrumentor().instrument()
consume(Client(os.environ["OLLAMA_HOST"]).chat(model="llama3.2", messages=MESSAGES, stream=True))
tracer.shutdown()
