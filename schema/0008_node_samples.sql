-- One row per data point of a node's metrics: engine metrics endpoints, host, GPU and socket counters (WIRE.md). A column that does not
-- apply to the kind of a point is NULL or empty.
--
-- Key: the columns that panels and the attribution filter by, in that order. `series` is a hash of everything that names a series, so
-- `series` with `recorded_at` identifies a point, and a retried request is found by it. Rows of one series are adjacent: its names cost
-- almost nothing, and its times and values compress as differences.
-- Codecs: Delta on `value`, because counters grow by similar steps. ZSTD(3) on `attributes` and `bounds`, which repeat: a quarter or less
-- of the size that ZSTD(1) gives.
CREATE TABLE node_samples
(
    tenant        LowCardinality(String) CODEC(ZSTD(1)),
    metric        LowCardinality(String) CODEC(ZSTD(1)),
    engine_id     LowCardinality(String) CODEC(ZSTD(1)),
    host          LowCardinality(String) CODEC(ZSTD(1)),
    series        UInt64 CODEC(ZSTD(1)),
    recorded_at   DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    start_time    Nullable(DateTime64(9, 'UTC')) CODEC(Delta, ZSTD(1)),
    received_at   DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),

    kind          LowCardinality(String) CODEC(ZSTD(1)),
    temporality   LowCardinality(String) CODEC(ZSTD(1)),
    monotonic     Bool CODEC(ZSTD(1)),
    unit          LowCardinality(String) CODEC(ZSTD(1)),
    attributes    Map(LowCardinality(String), String) CODEC(ZSTD(3)),

    value         Nullable(Float64) CODEC(Delta, ZSTD(1)),
    count         Nullable(UInt64) CODEC(T64, ZSTD(1)),
    sum           Nullable(Float64) CODEC(ZSTD(1)),
    bounds        Array(Float64) CODEC(ZSTD(3)),
    bucket_counts Array(UInt64) CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(received_at)
PARTITION BY toYYYYMMDD(recorded_at)
ORDER BY (tenant, metric, engine_id, host, series, recorded_at)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
