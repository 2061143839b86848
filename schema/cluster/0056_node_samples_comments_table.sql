-- The same for the table itself.
ALTER TABLE node_samples ON CLUSTER '{cluster}'
    MODIFY COMMENT 'One row per data point of a metric: engines, hosts, GPUs, sockets, and Legato itself'
