-- The same for the table itself.
ALTER TABLE streams ON CLUSTER '{cluster}'
    MODIFY COMMENT 'View: one row per stream and vantage, with the statistics and the timeline of its newest revision'
