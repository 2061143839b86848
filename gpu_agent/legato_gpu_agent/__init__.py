"""The plugins that run inside vLLM, and the agent that runs next to a serving engine and exports its steps as OTLP (schema/STEPS.md)."""

__version__ = "0.1.0"
