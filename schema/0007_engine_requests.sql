-- One row per request that an engine finished, as reported by the engine (STEPS.md).
-- Key: the attribution reads by the time range of the streams, and looks up a response id within that range.
CREATE TABLE engine_requests
(
    tenant        LowCardinality(String) CODEC(ZSTD(1)),
    engine_id     LowCardinality(String) CODEC(ZSTD(1)),
    recorded_at   DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    response_id   String CODEC(ZSTD(1)),
    step          UInt64 CODEC(T64, ZSTD(1)),
    received_at   DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    reason        LowCardinality(String) CODEC(ZSTD(1)),
    preemptions   UInt32 CODEC(T64, ZSTD(1)),
    prompt_tokens UInt32 CODEC(T64, ZSTD(1)),
    output_tokens UInt32 CODEC(T64, ZSTD(1)),
    queued_us     UInt64 CODEC(T64, ZSTD(1)),
    prefill_us    UInt64 CODEC(T64, ZSTD(1)),
    decode_us     UInt64 CODEC(T64, ZSTD(1))
)
ENGINE = ReplacingMergeTree(received_at)
PARTITION BY toYYYYMMDD(recorded_at)
ORDER BY (tenant, engine_id, recorded_at, response_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
