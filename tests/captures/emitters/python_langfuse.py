"""Langfuse's drop-in for openai. It posts OTLP to its own path on LANGFUSE_BASE_URL."""

from common import consume, open_stream, openai_client
from langfuse import get_client
from langfuse.openai import OpenAI

openai_client()
client = OpenAI(max_retries=0)
consume(open_stream(client))
get_client().flush()
