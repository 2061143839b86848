-- The same column in `stall_hours`, with the same meaning.
ALTER TABLE stall_hours ON CLUSTER '{cluster}'
    ADD COLUMN IF NOT EXISTS objective LowCardinality(String) DEFAULT 'default' CODEC(ZSTD(1))
    COMMENT 'Name of the objective by which these streams were judged'
