-- As 0013: which minutes have new verdicts.
ALTER TABLE verdicts_local ON CLUSTER '{cluster}'
    ADD INDEX IF NOT EXISTS judged_at_minmax judged_at TYPE minmax GRANULARITY 1
