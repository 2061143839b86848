-- The same for the table itself.
ALTER TABLE stream_sockets ON CLUSTER '{cluster}'
    MODIFY COMMENT 'State of a client''s socket before reads that followed a long pause, one row per revision that has any'
