"""A crew of CrewAI with a model that streams, under the instrumentation that is installed."""

import importlib.util

from common import MODEL, metering, report, tracing
from crewai import LLM, Agent, Crew, Task

tracer, meter = tracing(), metering()
if importlib.util.find_spec("openinference"):
    from openinference.instrumentation.crewai import CrewAIInstrumentor as Instrumentor
else:
    from opentelemetry.instrumentation.crewai import CrewAIInstrumentor as Instrumentor

Instrumentor().instrument()
agent = Agent(role="counter", goal="Count.", backstory="Counts.", llm=LLM(MODEL, stream=True, max_retries=0), max_iter=1, max_retry_limit=0)
task = Task(description="Count.", expected_output="Numbers.", agent=agent)
try:
    Crew(agents=[agent], tasks=[task]).kickoff()
except Exception as error:
    report(error)
tracer.shutdown()
meter.shutdown()
