-- The judged streams of each minute by end user, as in the `bad_*_clients` columns: the key is the hash of `client_hash`, 0 for unknown. The
-- burn-rate rules compare end users with bad streams to all end users.
-- Minutes that were computed before have an empty map: their streams count as streams of unknown end users.
ALTER TABLE stream_minutes
    ADD COLUMN IF NOT EXISTS judged_clients Map(UInt64, UInt32) CODEC(ZSTD(1))
