-- The counterfactual, one row per stream and cause that took part in its stalls: the number of stalls and the time in them as they were,
-- and the least and the most that would remain without the cause. The newest judgement counts. The key is the key of the stream and the
-- cause.
CREATE TABLE replays
(
    tenant           LowCardinality(String) CODEC(ZSTD(1)),
    start_time       DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    trace_id         FixedString(16) CODEC(NONE),
    span_id          FixedString(8) CODEC(NONE),
    cause            LowCardinality(String) CODEC(ZSTD(1)),
    judged_at        DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    engine_id        LowCardinality(String) CODEC(ZSTD(1)),
    stalls           UInt32 CODEC(T64, ZSTD(1)),
    stalls_min       UInt32 CODEC(T64, ZSTD(1)),
    stalls_max       UInt32 CODEC(T64, ZSTD(1)),
    stalled_us       UInt64 CODEC(T64, ZSTD(1)),
    stalled_min_us   UInt64 CODEC(T64, ZSTD(1)),
    stalled_max_us   UInt64 CODEC(T64, ZSTD(1))
)
ENGINE = ReplacingMergeTree(judged_at)
PARTITION BY toYYYYMMDD(start_time)
ORDER BY (tenant, start_time, trace_id, span_id, cause)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
