-- One row a stall of a stream and judgement: what the gap was charged to, in ns that add up to it. The newest judgement counts.
CREATE TABLE verdicts_local ON CLUSTER '{cluster}'
(
    tenant       LowCardinality(String) CODEC(ZSTD(1)),
    start_time   DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    trace_id     FixedString(16) CODEC(NONE),
    span_id      FixedString(8) CODEC(NONE),
    gap_start_us UInt64 CODEC(T64, ZSTD(1)),
    gap_us       UInt64 CODEC(T64, ZSTD(1)),
    excess_us    UInt64 CODEC(T64, ZSTD(1)),
    judged_at    DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    cause        LowCardinality(String) CODEC(ZSTD(1)),
    confidence   LowCardinality(String) CODEC(ZSTD(1)),
    share        Float32 CODEC(ZSTD(1)),
    parts        Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    engine_id    LowCardinality(String) CODEC(ZSTD(1)),
    step_first   Nullable(UInt64) CODEC(T64, ZSTD(1)),
    step_last    Nullable(UInt64) CODEC(T64, ZSTD(1)),
    missing      Array(LowCardinality(String)) CODEC(ZSTD(1))
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/{database}/verdicts', '{replica}', judged_at)
PARTITION BY toYYYYMMDD(start_time)
ORDER BY (tenant, start_time, trace_id, span_id, gap_start_us)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800
