"""Langfuse's drop-in for openai. It posts OTLP to its own path on LANGFUSE_BASE_URL."""

from common import chat_request, consume, openai_client
from langfuse import get_client
from langfuse.openai import OpenAI

openai_client()
client = OpenAI(max_retries=0)
consume(client.chat.completions.create(**chat_request()))
get_client().flush()
