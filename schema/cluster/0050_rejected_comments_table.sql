-- The same for the table itself.
ALTER TABLE rejected ON CLUSTER '{cluster}'
    MODIFY COMMENT 'Spans and data points that could not be stored, with the reason; kept for 30 days'
