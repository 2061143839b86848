-- What a verdict rests on: numbers it was made from, causes that are out of the question and why, its error, and the engine event to blame.
ALTER TABLE verdicts_local ON CLUSTER '{cluster}'
    ADD COLUMN IF NOT EXISTS evidence Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS excluded Map(LowCardinality(String), LowCardinality(String)) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS error_us UInt32 CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS culprit_step Nullable(UInt64) CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS culprit_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS culprit_us UInt64 CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS culprit_responses Array(String) CODEC(ZSTD(1))
