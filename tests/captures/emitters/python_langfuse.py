"""Langfuse's drop-in for openai. It posts OTLP to its own path on LANGFUSE_BASE_URL."""

from common import chat_request, consume
from langfuse import get_client
from langfuse.openai import OpenAI

client = OpenAI(api_key="none", max_retries=0)
client.models.list()
consume(client.chat.completions.create(**chat_request()))
get_client().flush()
