-- The same for the table itself.
ALTER TABLE attribution_runs ON CLUSTER '{cluster}'
    MODIFY COMMENT 'One row per run of the attribution worker that changed something; kept for 30 days'
