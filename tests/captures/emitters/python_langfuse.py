"""Langfuse's drop-in for openai. It posts OTLP to its own path on LANGFUSE_BASE_URL."""

from common import consume, open_stream, openai_client

openai_client()

# The import patches openai for the whole process: after the warm-up.
from langfuse import get_client  # noqa: E402
from langfuse.openai import OpenAI  # noqa: E402

consume(open_stream(OpenAI(max_retries=0)))
get_client().flush()
