-- One row per run of the rollups: rows received up to `until` and verdicts made up to `judged_until` are included.
CREATE TABLE rollup_runs
(
    tenant       LowCardinality(String) CODEC(ZSTD(1)),
    until        DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    judged_until DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ran_at       DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    minutes      UInt32 CODEC(T64, ZSTD(1)),
    rows         UInt32 CODEC(T64, ZSTD(1)),
    seconds      Float32 CODEC(ZSTD(1))
)
ENGINE = MergeTree
ORDER BY (tenant, until)
TTL toDateTime(ran_at) + INTERVAL 30 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
