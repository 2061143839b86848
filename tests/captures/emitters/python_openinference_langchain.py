"""OpenInference's instrumentation of LangChain, around a chat model of langchain-openai."""

from common import MODEL, consume, tracing
from langchain_openai import ChatOpenAI
from openinference.instrumentation.langchain import LangChainInstrumentor

tracer = tracing()
model = ChatOpenAI(model=MODEL, max_retries=0, stream_usage=True, use_responses_api=False)
LangChainInstrumentor().instrument()
consume(model.stream("Count."))
tracer.shutdown()
