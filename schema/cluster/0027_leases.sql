-- Leases: one row per instance that holds, or waits for, work that only one instance may do at a time. The holder is the instance that is
-- acting and has not missed its heartbeat; if there is none, the instance with the earliest claim. Used on servers that several instances
-- share.
CREATE TABLE leases ON CLUSTER '{cluster}'
(
    tenant     LowCardinality(String) CODEC(ZSTD(1)),
    lease      LowCardinality(String) CODEC(ZSTD(1)),
    holder     String CODEC(ZSTD(1)),
    claimed_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    acting     Bool CODEC(ZSTD(1)),
    seen_at    DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1))
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/all/{database}/leases', '{shard}-{replica}', seen_at)
ORDER BY (tenant, lease, holder)
TTL toDateTime(seen_at) + INTERVAL 1 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800
