-- The same for the table itself.
ALTER TABLE engine_requests ON CLUSTER '{cluster}'
    MODIFY COMMENT 'One row per request that an engine finished, as reported by the engine'
