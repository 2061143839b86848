-- The meaning of `attribution_runs` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE attribution_runs ON CLUSTER '{cluster}'
    COMMENT COLUMN tenant 'Tenant of the token that wrote the row; empty without tenants',
    COMMENT COLUMN until 'Everything received up to this time has been judged, UTC',
    COMMENT COLUMN ran_at 'Time of the run, UTC',
    COMMENT COLUMN streams 'Streams judged',
    COMMENT COLUMN verdicts 'Verdicts written',
    COMMENT COLUMN seconds 'Duration of the run, s'
