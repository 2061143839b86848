"""The client of AWS Bedrock (`converse_stream`), under the instrumentation that is installed."""

import importlib.util
import os

import boto3
from botocore.config import Config
from common import CLAUDE, consume, metering, tracing

tracer, meter = tracing(), metering()
if importlib.util.find_spec("openinference"):
    from openinference.instrumentation.bedrock import BedrockInstrumentor as Instrumentor
elif importlib.util.find_spec("opentelemetry.instrumentation.bedrock"):
    from opentelemetry.instrumentation.bedrock import BedrockInstrumentor as Instrumentor
elif importlib.util.find_spec("opentelemetry.instrumentation.genai"):
    from opentelemetry.instrumentation.genai.bedrock import BedrockInstrumentor as Instrumentor
else:
    from opentelemetry.instrumentation.botocore import BotocoreInstrumentor as Instrumentor

Instrumentor().instrument()
secrets = {"aws_access_key_id": "none", "aws_secret_access_key": "none", "region_name": "us-east-1"}
config = Config(retries={"max_attempts": 1})
client = boto3.client("bedrock-runtime", endpoint_url=os.environ["ANTHROPIC_BASE_URL"], config=config, **secrets)
answer = client.converse_stream(modelId=f"anthropic.{CLAUDE}", messages=[{"role": "user", "content": [{"text": "Count."}]}])
consume(answer["stream"])
answer["stream"].close()
tracer.shutdown()
meter.shutdown()
