"""Verdicts in other people's trace backends: `legato serve` sends spans about stalls to an OTLP endpoint (Jaeger, Tempo, a Collector).

``worker.TraceExportWorker`` follows the streams that were judged, ``stalled_streams`` reads them, ``delivery`` divides them into requests,
``spans`` makes the spans as a pure function, ``endpoint`` sends them, and ``replies`` says what a reply means. It may import ``storage``
and the root leaves.
"""
