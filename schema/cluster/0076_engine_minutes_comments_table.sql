-- The same for the table itself.
ALTER TABLE engine_minutes ON CLUSTER '{cluster}'
    MODIFY COMMENT 'The 1-minute rollup of engine steps by engine. Read with FINAL and steps > 0'
