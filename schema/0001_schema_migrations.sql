-- What `legato schema apply` has applied, one row a file. The highest number is the store's version.
CREATE TABLE schema_migrations
(
    number     UInt32,
    name       String,
    sha256     String,
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree
ORDER BY number
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
