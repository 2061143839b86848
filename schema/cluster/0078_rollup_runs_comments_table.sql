-- The same for the table itself.
ALTER TABLE rollup_runs ON CLUSTER '{cluster}'
    MODIFY COMMENT 'One row per run of the rollup worker that changed something; kept for 30 days'
