"""A pipeline of Haystack with OpenAI's chat generator, under OpenInference's instrumentation."""

from common import BREAK_AFTER, MODEL, SCENARIO, metering, report, tracing
from haystack import Pipeline
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from openinference.instrumentation.haystack import HaystackInstrumentor

tracer, meter = tracing(), metering()
HaystackInstrumentor().instrument()
seen = 0


class Enough(Exception):
    """The application stops."""


def read(_: object) -> None:
    """Count the chunks."""
    global seen
    seen += 1
    if SCENARIO == "break" and seen == BREAK_AFTER:
        raise Enough


pipeline = Pipeline()
usage = {"stream_options": {"include_usage": True}}
pipeline.add_component("llm", OpenAIChatGenerator(model=MODEL, streaming_callback=read, max_retries=0, generation_kwargs=usage))
try:
    pipeline.run({"llm": {"messages": [ChatMessage.from_user("Count.")]}})
except Exception as error:
    if SCENARIO != "break":
        report(error)
tracer.shutdown()
meter.shutdown()
