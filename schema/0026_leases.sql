-- One row an instance that does, or waits for, what only one may do at a time. Who acts and has not lapsed is the one; else who came first.
CREATE TABLE leases
(
    tenant     LowCardinality(String) CODEC(ZSTD(1)),
    lease      LowCardinality(String) CODEC(ZSTD(1)),
    holder     String CODEC(ZSTD(1)),
    claimed_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    acting     Bool CODEC(ZSTD(1)),
    seen_at    DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(seen_at)
ORDER BY (tenant, lease, holder)
TTL toDateTime(seen_at) + INTERVAL 1 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
