-- The same for the table itself.
ALTER TABLE stream_revs ON CLUSTER '{cluster}'
    MODIFY COMMENT 'One row per revision of a stream at one vantage: span, statistics and chunk timeline. Read the view streams instead'
