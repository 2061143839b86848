-- The same for the table itself.
ALTER TABLE leases ON CLUSTER '{cluster}'
    MODIFY COMMENT 'Claims of instances to work that one instance at a time may do; kept for 1 day. Read with FINAL'
