-- The meaning of `leases` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE leases ON CLUSTER '{cluster}'
    COMMENT COLUMN tenant 'Empty: the row belongs to no tenant',
    COMMENT COLUMN lease 'Name of the work',
    COMMENT COLUMN holder 'Id of the instance',
    COMMENT COLUMN claimed_at 'Time since which the instance claims the lease, UTC (clock of the store)',
    COMMENT COLUMN acting 'True: the instance does the work now',
    COMMENT COLUMN seen_at 'Time of the newest heartbeat, UTC (clock of the store)'
