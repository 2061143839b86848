-- The numbered files of schema/ that were applied to this store, one row per file. The highest number is the version of the store.
-- ReplacingMergeTree: recording the same file twice leaves one row.
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
