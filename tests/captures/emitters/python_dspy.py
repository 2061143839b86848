"""DSPy, streamed through LiteLLM, under OpenInference's instrumentation."""

import asyncio

import dspy
from common import MODEL, consume_async, tracing
from openinference.instrumentation.dspy import DSPyInstrumentor

tracer = tracing()
DSPyInstrumentor().instrument()
dspy.configure(lm=dspy.LM(f"openai/{MODEL}", cache=False, num_retries=0), track_usage=True)


async def main() -> None:
    """Stream one answer."""
    program = dspy.streamify(dspy.Predict("question -> answer"))
    try:
        await consume_async(program(question="Count."))
    except Exception as error:
        # The fake server's text is not in DSPy's format.
        print(f"as planned: {type(error).__name__}")


asyncio.run(main())
tracer.shutdown()
