-- The meaning of `writers` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE writers
    MODIFY COMMENT 'Heartbeats of the instances of legato serve that share a server; kept for 1 day. Read with FINAL',
    COMMENT COLUMN tenant 'Empty: the row belongs to no tenant',
    COMMENT COLUMN writer 'Id of the instance',
    COMMENT COLUMN settled_at 'Everything that the instance received up to this time is stored, UTC (clock of the store)',
    COMMENT COLUMN seen_at 'Time of the heartbeat, UTC (clock of the store)'
