"""Langfuse's callback handler in a chat model of langchain-openai."""

from common import MODEL, consume
from langchain_openai import ChatOpenAI
from langfuse import get_client
from langfuse.langchain import CallbackHandler

model = ChatOpenAI(model=MODEL, max_retries=0, stream_usage=True, use_responses_api=False)
consume(model.stream("Count.", config={"callbacks": [CallbackHandler()]}))
get_client().flush()
get_client().shutdown()
