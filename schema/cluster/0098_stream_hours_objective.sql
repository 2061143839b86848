-- The same column in `stream_hours`, with the same meaning.
ALTER TABLE stream_hours ON CLUSTER '{cluster}'
    ADD COLUMN IF NOT EXISTS objective LowCardinality(String) DEFAULT 'default' CODEC(ZSTD(1))
    COMMENT 'Name of the objective by which these streams were judged'
