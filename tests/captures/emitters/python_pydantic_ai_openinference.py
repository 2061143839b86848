"""Pydantic AI under OpenInference's span processor, which adds attributes to Pydantic AI's own spans."""

import asyncio
import os

from common import MODEL, consume_async, report
from openinference.instrumentation.pydantic_ai import OpenInferenceSpanProcessor
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = TracerProvider(resource=Resource.create({"service.name": "capture"}))
provider.add_span_processor(OpenInferenceSpanProcessor())
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
Agent.instrument_all()
model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=os.environ["OPENAI_BASE_URL"], api_key="none"))


async def main() -> None:
    """Stream one answer."""
    async with Agent(model, name="counter").run_stream("Count.") as result:
        await consume_async(result.stream_text(delta=True, debounce_by=None))


try:
    asyncio.run(main())
except Exception as error:
    report(error)
provider.shutdown()
