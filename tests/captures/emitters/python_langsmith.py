"""LangSmith's OTLP exporter: a chat model of langchain-openai, or its wrapper of openai's client."""

import os

from common import MODEL, chat_request, consume, tracing
from langchain_core.tracers.langchain import wait_for_all_tracers
from langchain_openai import ChatOpenAI
from langsmith import Client
from langsmith.wrappers import wrap_openai
from openai import OpenAI

provider = tracing()
client = Client(api_key="none", api_url="http://127.0.0.1:9")
if os.environ.get("CAPTURE_WRAPPER"):
    consume(wrap_openai(OpenAI(max_retries=0)).chat.completions.create(**chat_request()))
else:
    model = ChatOpenAI(model=MODEL, max_retries=0, stream_usage=True, use_responses_api=False)
    consume(model.stream("Count."))
wait_for_all_tracers()
client.flush()
provider.force_flush()
provider.shutdown()
