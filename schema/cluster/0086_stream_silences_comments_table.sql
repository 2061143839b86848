-- The same for the table itself.
ALTER TABLE stream_silences ON CLUSTER '{cluster}'
    MODIFY COMMENT
        'One row per report of a running stream without content, at one vantage. The view stalled_streams has those that are silent now'
