-- The rows of `verdicts_local` on all shards.
CREATE TABLE verdicts ON CLUSTER '{cluster}' AS verdicts_local
ENGINE = Distributed('{cluster}', currentDatabase(), verdicts_local, cityHash64(trace_id))
SETTINGS fsync_after_insert = 1
