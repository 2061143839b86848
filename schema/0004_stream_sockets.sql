-- State of a client's socket just before some of its reads (TIMELINE.md, columns 10 to 12), one row per revision that has any. `at` holds
-- chunk indices; the other arrays have one value for each of these chunks. The key is the key of `stream_revs`.
CREATE TABLE stream_sockets
(
    tenant       LowCardinality(String) CODEC(ZSTD(1)),
    start_time   DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    trace_id     FixedString(16) CODEC(NONE),
    span_id      FixedString(8) CODEC(NONE),
    rev          UInt32 CODEC(T64, ZSTD(1)),
    at           Array(UInt32) CODEC(T64, ZSTD(1)),
    queued_bytes Array(UInt32) CODEC(T64, ZSTD(1)),
    window_bytes Array(UInt32) CODEC(T64, ZSTD(1)),
    idle_ms      Array(UInt32) CODEC(T64, ZSTD(1))
)
ENGINE = ReplacingMergeTree(rev)
PARTITION BY toYYYYMMDD(start_time)
ORDER BY (tenant, start_time, trace_id, span_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
