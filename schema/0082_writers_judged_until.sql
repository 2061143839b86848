-- Rollups follow the verdicts of all instances that share a server. An instance of an earlier version does not write this time.
ALTER TABLE writers
    ADD COLUMN IF NOT EXISTS judged_until DateTime64(3, 'UTC') DEFAULT settled_at CODEC(Delta, ZSTD(1))
    COMMENT 'All verdicts of the instance with a time up to this are stored, UTC (clock of the store)'
