-- The attribution queries every few seconds for samples received since its last run; the rows of one part were received at about the same
-- time.
ALTER TABLE node_samples ON CLUSTER '{cluster}'
    ADD INDEX IF NOT EXISTS received_at_minmax received_at TYPE minmax GRANULARITY 1
