-- The same for the table itself.
ALTER TABLE stalled_streams ON CLUSTER '{cluster}'
    MODIFY COMMENT 'View: running streams without content for 2 s or more, one row per stream and vantage'
