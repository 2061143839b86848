-- The same for all shards' rows.
ALTER TABLE verdicts ON CLUSTER '{cluster}'
    ADD COLUMN IF NOT EXISTS evidence Map(LowCardinality(String), Int64),
    ADD COLUMN IF NOT EXISTS excluded Map(LowCardinality(String), LowCardinality(String)),
    ADD COLUMN IF NOT EXISTS error_us UInt32,
    ADD COLUMN IF NOT EXISTS culprit_step Nullable(UInt64),
    ADD COLUMN IF NOT EXISTS culprit_at DateTime64(9, 'UTC'),
    ADD COLUMN IF NOT EXISTS culprit_us UInt64,
    ADD COLUMN IF NOT EXISTS culprit_responses Array(String)
