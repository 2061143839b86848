-- The rows of `replays_local` on all shards.
CREATE TABLE replays ON CLUSTER '{cluster}' AS replays_local
ENGINE = Distributed('{cluster}', currentDatabase(), replays_local, cityHash64(trace_id))
SETTINGS fsync_after_insert = 1
