"""OpenTelemetry's own GenAI instrumentation of LangChain, around a chat model of langchain-openai."""

from common import MODEL, consume, metering, tracing
from langchain_openai import ChatOpenAI
from opentelemetry.instrumentation.genai.langchain import LangChainInstrumentor

tracer, meter = tracing(), metering()
model = ChatOpenAI(model=MODEL, max_retries=0, stream_usage=True, use_responses_api=False)
LangChainInstrumentor().instrument()
consume(model.stream("Count."))
tracer.shutdown()
meter.shutdown()
