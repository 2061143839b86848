-- The meaning of `rollup_runs` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE rollup_runs
    MODIFY COMMENT 'One row per run of the rollup worker that changed something; kept for 30 days',
    COMMENT COLUMN tenant 'Tenant of the token that wrote the row; empty without tenants',
    COMMENT COLUMN until 'Rows received up to this time are rolled up, UTC',
    COMMENT COLUMN judged_until 'Verdicts made up to this time are rolled up, UTC',
    COMMENT COLUMN ran_at 'Time of the run, UTC',
    COMMENT COLUMN minutes 'Minutes computed',
    COMMENT COLUMN rows 'Rows written to the 1-minute tables',
    COMMENT COLUMN seconds 'Duration of the run, s'
