-- One row per attribution run: everything received up to `until` has been judged. The next run begins at the newest row.
CREATE TABLE attribution_runs ON CLUSTER '{cluster}'
(
    tenant     LowCardinality(String) CODEC(ZSTD(1)),
    until      DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ran_at     DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    streams    UInt32 CODEC(T64, ZSTD(1)),
    verdicts   UInt32 CODEC(T64, ZSTD(1)),
    seconds    Float32 CODEC(ZSTD(1))
)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/all/{database}/attribution_runs', '{shard}-{replica}')
ORDER BY (tenant, until)
TTL toDateTime(ran_at) + INTERVAL 30 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800
