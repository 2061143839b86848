-- The same for the table itself.
ALTER TABLE stall_minutes ON CLUSTER '{cluster}'
    MODIFY COMMENT 'The 1-minute rollup of stalls by dimensions, engine, cause and confidence. Read with FINAL and stalls > 0'
