-- The same for the table itself.
ALTER TABLE but_for_minutes ON CLUSTER '{cluster}'
    MODIFY COMMENT 'The 1-minute rollup of the counterfactual by dimensions and cause. Read with FINAL and streams > 0'
