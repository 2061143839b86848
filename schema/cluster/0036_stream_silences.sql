-- The rows of `stream_silences_local` on all shards.
CREATE TABLE stream_silences ON CLUSTER '{cluster}' AS stream_silences_local
ENGINE = Distributed('{cluster}', currentDatabase(), stream_silences_local, cityHash64(trace_id))
SETTINGS fsync_after_insert = 1
