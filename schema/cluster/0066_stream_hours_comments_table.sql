-- The same for the table itself.
ALTER TABLE stream_hours ON CLUSTER '{cluster}'
    MODIFY COMMENT 'The 1-hour rollup of streams: the rows of stream_minutes added up. Read with FINAL and streams > 0'
