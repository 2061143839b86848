-- How far the 5-minute rollup of node samples has come. It is computed less often than the rollups of streams. 1970 in earlier rows: the
-- next run computes it for all samples.
ALTER TABLE rollup_runs ON CLUSTER '{cluster}'
    ADD COLUMN IF NOT EXISTS sampled_until DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1))
    COMMENT 'Node samples received up to this time are rolled up, UTC'
