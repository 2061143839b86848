-- Writer heartbeats: one row per instance of `legato serve` on a store that several instances share. Everything that the instance received
-- up to `settled_at` (its watermark) is stored. Times are by the clock of the store. The newest heartbeat of each instance counts.
CREATE TABLE writers
(
    tenant     LowCardinality(String) CODEC(ZSTD(1)),
    writer     String CODEC(ZSTD(1)),
    settled_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    seen_at    DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(seen_at)
ORDER BY (tenant, writer)
TTL toDateTime(seen_at) + INTERVAL 1 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
