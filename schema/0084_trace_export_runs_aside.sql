-- The export waits for the verdicts of a tenant that is behind, and passes it. Each row is complete, so the one with the newest
-- `others_until` is the progress. Rows of an earlier version are about all tenants.
ALTER TABLE trace_export_runs
    ADD COLUMN IF NOT EXISTS others_until DateTime64(3, 'UTC') DEFAULT until CODEC(Delta, ZSTD(1))
    COMMENT 'The stalls of streams received up to this time have been exported, except those of tenants that are behind, UTC',
    ADD COLUMN IF NOT EXISTS aside_parts Map(UInt32, DateTime64(3, 'UTC')) CODEC(ZSTD(1))
    COMMENT 'Tenants that are behind, by the last 20 bits of cityHash64(tenant): the time of receipt up to which theirs are exported, UTC'
