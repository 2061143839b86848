-- One row per report of a running stream that it has had no content for some time, at one vantage: after 2 s, 8 s, 30 s, 90 s, …, and
-- (`resumed`) when content arrived again after 8 s or more. The stream's own span has every gap exactly; these rows show it while it lasts.
-- Query the view `stalled_streams` for the streams that are stalled now.
--
-- `recorded_at` is the time of the report by the sender's clock, `gap_start_us` the time of the last content (µs from the start; 0: no
-- content so far), and `silence_us` the time between the two. `start_time`, `trace_id` and `span_id` are those of the stream.
-- Key: the time first, because every query is about a stretch of time; a retry produces the same row.
CREATE TABLE stream_silences_local ON CLUSTER '{cluster}'
(
    tenant       LowCardinality(String) CODEC(ZSTD(1)),
    recorded_at  DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    trace_id     FixedString(16) CODEC(NONE),
    span_id      FixedString(8) CODEC(NONE),
    start_time   DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    received_at  DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    gap_start_us UInt64 CODEC(T64, ZSTD(1)),
    silence_us   UInt64 CODEC(T64, ZSTD(1)),
    resumed      Bool CODEC(ZSTD(1)),
    vantage      LowCardinality(String) CODEC(ZSTD(1)),
    service_name LowCardinality(String) CODEC(ZSTD(1)),
    model        LowCardinality(String) CODEC(ZSTD(1)),
    engine_id    LowCardinality(String) CODEC(ZSTD(1)),
    clock        LowCardinality(String) CODEC(ZSTD(1)),
    emitter      LowCardinality(String) CODEC(ZSTD(1)),

    INDEX received_at_minmax received_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/{database}/stream_silences', '{replica}', received_at)
PARTITION BY toYYYYMMDD(recorded_at)
ORDER BY (tenant, recorded_at, trace_id, span_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800
