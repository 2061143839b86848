"""Laminar's SDK, which instruments openai and exports to its own server's path."""

from common import SINK, consume, open_stream
from lmnr import Laminar
from openai import OpenAI

host, port = SINK.rsplit(":", 1)
Laminar.initialize(project_api_key="none", base_url=host, http_port=int(port), force_http=True)
consume(open_stream(OpenAI(max_retries=0)))
Laminar.flush()
Laminar.shutdown()
