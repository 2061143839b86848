-- One row an instance of `legato serve` on a store that several share: what it received until `settled_at` is in the store. Times are the store's.
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
