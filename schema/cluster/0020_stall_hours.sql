-- The 1-hour rollup of stalls: the rows of `stall_minutes` added up, for queries over days. `minute` is the first minute of the hour.
-- Computed again together with its minutes.
CREATE TABLE stall_hours ON CLUSTER '{cluster}'
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
    engine_id       LowCardinality(String) CODEC(ZSTD(1)),
    cause           LowCardinality(String) CODEC(ZSTD(1)),
    confidence      LowCardinality(String) CODEC(ZSTD(1)),
    rolled_at       DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),

    stalls          UInt32 CODEC(T64, ZSTD(1)),
    stalled_us      UInt64 CODEC(T64, ZSTD(1)),
    excess_us       UInt64 CODEC(T64, ZSTD(1)),
    parts           Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    missing         Map(LowCardinality(String), UInt32) CODEC(ZSTD(1))
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/all/{database}/stall_hours', '{shard}-{replica}', rolled_at)
PARTITION BY toYYYYMM(minute)
ORDER BY (tenant, minute, vantage, service_name, model, provider, service_version, route, transport, engine_id, cause, confidence)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800
