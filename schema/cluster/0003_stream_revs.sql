-- The rows of `stream_revs_local` on all shards.
CREATE TABLE stream_revs ON CLUSTER '{cluster}' AS stream_revs_local
ENGINE = Distributed('{cluster}', currentDatabase(), stream_revs_local, cityHash64(trace_id))
SETTINGS fsync_after_insert = 1
