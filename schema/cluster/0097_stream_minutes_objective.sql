-- The objective by which the streams of a row were judged (view `current_objectives`); tenant, service, model and route decide it, so all
-- streams of a row have the same. Budgets and burn rates group by it, and no statement over rollups compares patterns.
-- Minutes that were computed before have the default: until now it was the only objective.
ALTER TABLE stream_minutes ON CLUSTER '{cluster}'
    ADD COLUMN IF NOT EXISTS objective LowCardinality(String) DEFAULT 'default' CODEC(ZSTD(1))
    COMMENT 'Name of the objective by which these streams were judged'
