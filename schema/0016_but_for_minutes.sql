-- The 1-minute rollup of the counterfactual: one row per minute, combination of dimensions and cause, with the stalls that would remain
-- without that cause. The row with the empty cause holds the stalls of the same streams as they were. Key and partitions: see
-- `stream_minutes`.
CREATE TABLE but_for_minutes
(
    tenant          LowCardinality(String) CODEC(ZSTD(1)),
    minute          DateTime('UTC') CODEC(Delta, ZSTD(1)),
    vantage         LowCardinality(String) CODEC(ZSTD(1)),
    service_name    LowCardinality(String) CODEC(ZSTD(1)),
    model           LowCardinality(String) CODEC(ZSTD(1)),
    provider        LowCardinality(String) CODEC(ZSTD(1)),
    service_version LowCardinality(String) CODEC(ZSTD(1)),
    route           LowCardinality(String) CODEC(ZSTD(1)),
    transport       LowCardinality(String) CODEC(ZSTD(1)),
    cause           LowCardinality(String) CODEC(ZSTD(1)),
    rolled_at       DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),

    streams         UInt32 CODEC(T64, ZSTD(1)),
    stalls          UInt32 CODEC(T64, ZSTD(1)),
    stalls_min      UInt32 CODEC(T64, ZSTD(1)),
    stalls_max      UInt32 CODEC(T64, ZSTD(1)),
    stalled_us      UInt64 CODEC(T64, ZSTD(1)),
    stalled_min_us  UInt64 CODEC(T64, ZSTD(1)),
    stalled_max_us  UInt64 CODEC(T64, ZSTD(1))
)
ENGINE = ReplacingMergeTree(rolled_at)
PARTITION BY toYYYYMM(minute)
ORDER BY (tenant, minute, vantage, service_name, model, provider, service_version, route, transport, cause)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
