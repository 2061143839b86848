-- The rows of `stream_sockets_local` on all shards.
CREATE TABLE stream_sockets ON CLUSTER '{cluster}' AS stream_sockets_local
ENGINE = Distributed('{cluster}', currentDatabase(), stream_sockets_local, cityHash64(trace_id))
SETTINGS fsync_after_insert = 1
