-- The rows of `rejected_local` on all shards.
CREATE TABLE rejected ON CLUSTER '{cluster}' AS rejected_local
ENGINE = Distributed('{cluster}', currentDatabase(), rejected_local, cityHash64(trace_id))
SETTINGS fsync_after_insert = 1
