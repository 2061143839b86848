-- The same for the table itself.
ALTER TABLE stall_hours ON CLUSTER '{cluster}'
    MODIFY COMMENT 'The 1-hour rollup of stalls: the rows of stall_minutes added up. Read with FINAL and stalls > 0'
