-- A tenant with much to judge, or one for which memory is short, is behind the others: they do not wait for it. Each row is complete, so the
-- one with the newest `others_until` is the progress. Rows of an earlier version are about all tenants.
ALTER TABLE attribution_runs
    ADD COLUMN IF NOT EXISTS others_until DateTime64(3, 'UTC') DEFAULT until CODEC(Delta, ZSTD(1))
    COMMENT 'Everything received up to this time has been judged, except that of tenants that are behind, UTC',
    ADD COLUMN IF NOT EXISTS aside_tenants Map(String, DateTime64(3, 'UTC')) CODEC(ZSTD(1))
    COMMENT 'Tenants that are behind: the time of receipt up to which theirs has been judged, UTC',
    ADD COLUMN IF NOT EXISTS aside_parts Map(UInt32, DateTime64(3, 'UTC')) CODEC(ZSTD(1))
    COMMENT 'The same for tenants by the last 20 bits of cityHash64(tenant): parts of all tenants for which memory was short'
