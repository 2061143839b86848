-- Spans that could not be stored, with the reason. `detail` holds attribute names and types, never an attribute's value.
-- Key: ids, reason and the SHA-256 of the span, so a retry of the same span is the same row. Rows are kept for 30 days.
CREATE TABLE rejected_local ON CLUSTER '{cluster}'
(
    tenant       LowCardinality(String) CODEC(ZSTD(1)),
    received_at  DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    reason       LowCardinality(String) CODEC(ZSTD(1)),
    detail       String CODEC(ZSTD(1)),
    trace_id     FixedString(16) CODEC(ZSTD(1)),
    span_id      FixedString(8) CODEC(ZSTD(1)),
    rev          UInt32 CODEC(T64, ZSTD(1)),
    start_time   DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    service_name LowCardinality(String) CODEC(ZSTD(1)),
    emitter      LowCardinality(String) CODEC(ZSTD(1)),
    otlp_bytes   UInt32 CODEC(T64, ZSTD(1)),
    span_sha256  FixedString(32) CODEC(NONE)
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/{database}/rejected', '{replica}', received_at)
ORDER BY (tenant, reason, trace_id, span_id, rev, span_sha256)
TTL toDateTime(received_at) + INTERVAL 30 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800
