-- The same for the Distributed table.
ALTER TABLE stream_silences ON CLUSTER '{cluster}'
    ADD COLUMN IF NOT EXISTS next_due_us UInt64
    COMMENT 'Latest time after start_time at which the next report is due while the silence goes on, µs; 0: not known'
