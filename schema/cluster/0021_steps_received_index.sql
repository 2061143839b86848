-- As 0013: which minutes have new engine steps.
ALTER TABLE engine_steps ON CLUSTER '{cluster}'
    ADD INDEX IF NOT EXISTS received_at_minmax received_at TYPE minmax GRANULARITY 1
