-- The same for the table itself.
ALTER TABLE stream_minutes ON CLUSTER '{cluster}'
    MODIFY COMMENT 'The 1-minute rollup of streams by their dimensions. Read with FINAL and streams > 0'
