-- The same column in the 1-hour rollup: panels read minutes and hours with one UNION ALL of all columns.
ALTER TABLE stream_hours
    ADD COLUMN IF NOT EXISTS judged_clients Map(UInt64, UInt32) CODEC(ZSTD(1))
