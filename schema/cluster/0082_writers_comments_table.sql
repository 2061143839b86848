-- The same for the table itself.
ALTER TABLE writers ON CLUSTER '{cluster}'
    MODIFY COMMENT 'Heartbeats of the instances of legato serve that share a server; kept for 1 day. Read with FINAL'
