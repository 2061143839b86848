"""MLflow's autolog of openai: it exports by OTLP if OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set."""

import mlflow
from common import consume, open_stream, openai_client

client = openai_client()
mlflow.openai.autolog()
consume(open_stream(client))
mlflow.flush_trace_async_logging(terminate=True)
