"""Bytes per stored chunk, compared with the OpenTelemetry Collector's ClickHouse schema for the same data.

    python bench/storage.py [--recordings demo/recordings] [--columns]

Each client of each recording becomes a native span. The spans pass through ingest's converter into an embedded store with the schema of
this version, and are merged to one part per day. The tables of the peer are those of the ClickHouse exporter, `otel_traces`, with its
columns, codecs, keys and indexes. They are filled by SQL from the same rows: once with a span event for each chunk (time, bytes, tokens,
kind), once with a span for each chunk. Other emitters record nanoseconds, so the times of the peer have random digits below 1 µs. The
bytes are those of columns, marks, keys and indexes. The files of a part that do not depend on its size (checksums, names of columns: tens
of kB) are left out on both sides and printed. Last line: JSON with `bytes_per_chunk`, `ratio_span_events`, `ratio_span_per_chunk`,
`n_chunks`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import clickhouse_connect  # noqa: E402
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: E402

from bench.common.machine import describe  # noqa: E402
from bench.common.recordings import RecordedStream, streams_of  # noqa: E402
from helpers.builders.batches import received_spans  # noqa: E402
from helpers.builders.spans import native_span, request  # noqa: E402
from legato._timeline import pack  # noqa: E402
from legato_ingest.otlp.batch import Limits  # noqa: E402

PEER = """
CREATE TABLE {table}
(
    Timestamp DateTime64(9) CODEC(Delta, ZSTD(1)), TraceId String CODEC(ZSTD(1)), SpanId String CODEC(ZSTD(1)),
    ParentSpanId String CODEC(ZSTD(1)), TraceState String CODEC(ZSTD(1)), SpanName LowCardinality(String) CODEC(ZSTD(1)),
    SpanKind LowCardinality(String) CODEC(ZSTD(1)), ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)), ScopeName String CODEC(ZSTD(1)),
    ScopeVersion String CODEC(ZSTD(1)), SpanAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    Duration UInt64 CODEC(ZSTD(1)), StatusCode LowCardinality(String) CODEC(ZSTD(1)), StatusMessage String CODEC(ZSTD(1)),
    Events Nested (Timestamp DateTime64(9), Name LowCardinality(String), Attributes Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
    Links Nested (TraceId String, SpanId String, TraceState String, Attributes Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
    INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX idx_res_attr_key mapKeys(ResourceAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_res_attr_value mapValues(ResourceAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_span_attr_key mapKeys(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_span_attr_value mapValues(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_duration Duration TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree PARTITION BY toDate(Timestamp) ORDER BY (ServiceName, SpanName, toDateTime(Timestamp))
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1
"""
STREAM = """
    start_time AS Timestamp, lower(hex(trace_id)) AS TraceId, lower(hex(span_id)) AS SpanId, concat('chat ', model) AS SpanName,
    'Client' AS SpanKind, service_name AS ServiceName, map('service.name', service_name) AS ResourceAttributes, 'legato' AS ScopeName,
    duration_ns AS Duration, 'Unset' AS StatusCode,
    map('gen_ai.provider.name', provider, 'gen_ai.request.model', model, 'gen_ai.response.id', response_id,
        'gen_ai.response.finish_reasons', finish_reason, 'gen_ai.usage.input_tokens', ifNull(toString(input_tokens), ''),
        'gen_ai.usage.output_tokens', ifNull(toString(output_tokens), ''), 'client.port', toString(client_port),
        'client.address', client_address, 'server.address', server_address, 'server.port', toString(server_port),
        'gen_ai.operation.name', 'chat', 'gen_ai.request.stream', 'true', 'stream.outcome', outcome, 'stream.vantage', vantage,
        'stream.transport', transport, 'stream.chunks', ifNull(toString(chunks), ''),
        'stream.gap_max', ifNull(toString(gap_max_us / 1e6), ''), 'stream.stalls', ifNull(toString(stalls_250ms), ''),
        'stream.ttfb', ifNull(toString(ttfb_us / 1e6), ''), 'stream.wire_bytes', ifNull(toString(wire_bytes), ''),
        'gen_ai.response.time_to_first_chunk', ifNull(toString(ttft_us / 1e6), '')) AS SpanAttributes
"""
KINDS = "['role', 'text', 'reasoning', 'tool', 'usage', 'heartbeat', 'retract', 'done']"
SPAN_EVENTS = f"""
INSERT INTO peer_events (Timestamp, TraceId, SpanId, SpanName, SpanKind, ServiceName, ResourceAttributes, ScopeName, Duration,
                         StatusCode, SpanAttributes, Events.Timestamp, Events.Name, Events.Attributes)
SELECT {STREAM},
    arrayMap(t -> addNanoseconds(start_time, t * 1000 + rand64(t) % 1000), arrayCumSum(dt_us)),
    arrayMap(t -> 'gen_ai.chunk', dt_us),
    arrayMap((b, n, k) -> map('bytes', toString(b), 'tokens', toString(n), 'kind', {KINDS}[k + 1]),
             chunk_bytes, arrayResize(chunk_tokens, length(dt_us)), chunk_kind)
FROM stream_revs
"""
SPANS = f"""
INSERT INTO peer_spans (Timestamp, TraceId, SpanId, ParentSpanId, SpanName, SpanKind, ServiceName, ResourceAttributes, ScopeName,
                        Duration, StatusCode, SpanAttributes)
SELECT addNanoseconds(start_time, chunk.1 * 1000 + rand64(1) % 1000), lower(hex(trace_id)), lower(hex(reinterpretAsFixedString(rand64()))),
       lower(hex(span_id)), 'gen_ai.chunk', 'Internal', service_name, map('service.name', service_name), 'legato',
       chunk.4 * 1000 + rand64(2) % 1000, 'Unset',
       map('bytes', toString(chunk.2), 'tokens', toString(chunk.5), 'kind', {KINDS}[chunk.3 + 1])
FROM stream_revs ARRAY JOIN arrayZip(arrayCumSum(dt_us), chunk_bytes, chunk_kind, dt_us,
                         arrayResize(chunk_tokens, length(dt_us))) AS chunk
"""
SPANS_STREAMS = f"""
INSERT INTO peer_spans (Timestamp, TraceId, SpanId, SpanName, SpanKind, ServiceName, ResourceAttributes, ScopeName, Duration, StatusCode,
                        SpanAttributes)
SELECT {STREAM} FROM stream_revs
"""
SIZE = """
SELECT sum(data_compressed_bytes + marks_bytes + primary_key_size + secondary_indices_compressed_bytes), sum(bytes_on_disk), count()
FROM system.parts WHERE active AND table = {table:String}
"""
COLUMNS = """
SELECT column, sum(column_data_compressed_bytes) AS bytes FROM system.parts_columns
WHERE active AND table = 'wide' GROUP BY column ORDER BY bytes DESC, column
"""


def body(streams: list[RecordedStream]) -> ExportTraceServiceRequest:
    """Return a request with a native span for each stream."""
    rng = random.Random(1)
    out = request(
        {"service.name": "bench"}, {"legato.emitter": "legato-python/0.1.0", "legato.stream.clock": f"{rng.getrandbits(128):x}:1:2"}
    )
    for stream in streams:
        times, sizes, kinds = (list(column) for column in zip(*stream.chunks, strict=True))
        attributes = {
            "gen_ai.response.id": f"chatcmpl-{stream.name}",
            "gen_ai.usage.input_tokens": stream.usage[0] if stream.usage else 0,
            "gen_ai.usage.output_tokens": stream.usage[1] if stream.usage else 0,
            "legato.stream.timeline": pack(times, sizes, stream.tokens, kinds),
            "legato.stream.outcome": stream.outcome,
            "legato.stream.ttfb": stream.head_us / 1e6,
            "legato.stream.wire_bytes": stream.wire_bytes,
            "client.address": "127.0.0.1",
            "client.port": stream.port,
            "server.address": "127.0.0.1",
            "server.port": 8000,
        }
        drop = () if stream.usage else ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
        duration_ns = stream.end_us * 1000 + rng.randrange(1000)
        native_span(out, attributes, start_ns=stream.start_ns, duration_ns=duration_ns, drop=drop, rng=rng)
    return out


def main() -> None:
    """Fill the three tables and print their sizes."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--recordings", type=pathlib.Path, default=ROOT / "demo" / "recordings")
    options.add_argument("--columns", action="store_true", help="print the bytes per chunk of every column")
    given = options.parse_args()
    streams = streams_of(given.recordings)
    batch = received_spans(body(streams), tenant="", now_ns=time.time_ns(), limits=Limits(retention_days=0))
    if batch.rejected.num_rows:
        raise SystemExit(f"{batch.rejected.num_rows} spans were rejected: {batch.rejected.to_pylist()[0]['detail']}")
    with tempfile.TemporaryDirectory() as folder:
        client = clickhouse_connect.get_client(interface="chdb", path=folder)
        for file in sorted((ROOT / "schema").glob("0*.sql")):
            client.command(file.read_text(encoding="utf-8"))
        client.insert_arrow("stream_revs", batch.revs)
        for table in ("peer_events", "peer_spans"):
            client.command(PEER.format(table=table))
        for statement in (SPAN_EVENTS, SPANS, SPANS_STREAMS):
            client.command(statement)
        sizes: dict[str, Sequence[int]] = {}
        for table in ("stream_revs", "peer_events", "peer_spans"):
            client.command(f"OPTIMIZE TABLE {table} FINAL")
            sizes[table] = client.query(SIZE, parameters={"table": table}).result_rows[0]
        if given.columns:
            client.command("CREATE TABLE wide AS stream_revs")
            client.command("ALTER TABLE wide MODIFY SETTING min_bytes_for_wide_part = 0")
            client.command("INSERT INTO wide SELECT * FROM stream_revs")
            client.command("OPTIMIZE TABLE wide FINAL")
            for column, size in client.query(COLUMNS).result_rows:
                print(f"  {column:20} {size / batch.chunks:.4f}")
        client.close()
    report(sizes, batch.chunks, len(streams))


def report(sizes: dict[str, Sequence[int]], chunks: int, streams: int) -> None:
    """Print the table and the JSON line."""
    print(describe("chdb", "clickhouse-connect"))
    print(f"{chunks:,} chunks of {streams} streams")
    for table, (size, disk, parts) in sizes.items():
        print(f"{table:12} {size / chunks:7.3f} B per chunk   ({disk / chunks:.3f} with the fixed files of {parts} parts)")
    legato = sizes["stream_revs"][0]
    figures = {
        "bytes_per_chunk": round(legato / chunks, 3),
        "ratio_span_events": round(sizes["peer_events"][0] / legato, 2),
        "ratio_span_per_chunk": round(sizes["peer_spans"][0] / legato, 2),
        "bytes_per_chunk_on_disk": round(sizes["stream_revs"][1] / chunks, 3),
        "n_chunks": chunks,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
