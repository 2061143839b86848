-- What `legato schema apply` has applied, one row a file. The highest number is the store's version.
CREATE TABLE schema_migrations ON CLUSTER '{cluster}'
(
    number     UInt32,
    name       String,
    sha256     String,
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/all/{database}/schema_migrations', '{shard}-{replica}')
ORDER BY number
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800
