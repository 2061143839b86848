"""An application that records streams until it is killed: `pipeline_application.py URL LEDGER STREAMS_PER_S`.

The tests run it as a separate process. It exports with OpenTelemetry's OTLP exporter and writes every acknowledgement to a ledger file, so
the acknowledged spans are known even after SIGKILL. The ledger has a line `+ TRACE SPAN REV` for each acknowledged span and a line
`STATUS` for each HTTP reply.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import requests
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import legato

CHUNKS = 20
PAUSE_S = 0.05


def _line(span: ReadableSpan) -> str:
    assert span.context is not None and span.attributes is not None
    return f"+ {span.context.trace_id:032x} {span.context.span_id:016x} {span.attributes.get('legato.stream.rev', 1)}\n"


class Ledger(SpanExporter):
    """The OTLP exporter with a ledger file of replies and acknowledged spans."""

    def __init__(self, url: str, path: str) -> None:
        session = requests.Session()
        session.hooks["response"].append(self._reply)
        self._exporter = OTLPSpanExporter(endpoint=f"{url}/v1/traces", session=session)
        # Each call appends with a single write, so a kill leaves only complete lines.
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def _reply(self, response: requests.Response, **_: object) -> None:
        os.write(self._file, f"{response.status_code}\n".encode())

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export the spans and write them to the ledger if they were acknowledged."""
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            os.write(self._file, "".join(map(_line, spans)).encode())
        return result

    def shutdown(self) -> None:
        """Close the exporter."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def main() -> None:
    """Record streams at the given rate until a signal ends the process."""
    url, ledger, rate = sys.argv[1], sys.argv[2], float(sys.argv[3])
    provider = TracerProvider(resource=Resource.create({"service.name": "pipeline"}))
    provider.add_span_processor(BatchSpanProcessor(Ledger(url, ledger), schedule_delay_millis=100))
    trace.set_tracer_provider(provider)
    begun, streams = time.monotonic(), 0
    while True:
        while streams < (time.monotonic() - begun) * rate:
            with legato.stream(model="m", provider="p") as recorder:
                for _ in range(CHUNKS):
                    recorder.record(4)
            streams += 1
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
