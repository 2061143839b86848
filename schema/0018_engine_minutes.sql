-- The 1-minute rollup of engine steps: one row per minute and engine with the number of steps, their work, and sparse histograms of their
-- intervals, of all steps and of the steps without a prefill. Key and partitions: see `stream_minutes`.
CREATE TABLE engine_minutes
(
    tenant                 LowCardinality(String) CODEC(ZSTD(1)),
    minute                 DateTime('UTC') CODEC(Delta, ZSTD(1)),
    engine_id              LowCardinality(String) CODEC(ZSTD(1)),
    rolled_at              DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),

    steps                  UInt32 CODEC(T64, ZSTD(1)),
    interval_steps         UInt32 CODEC(T64, ZSTD(1)),
    interval_sum_us        UInt64 CODEC(T64, ZSTD(1)),
    interval_buckets       Map(UInt16, UInt32) CODEC(ZSTD(1)),
    decode_interval_buckets Map(UInt16, UInt32) CODEC(ZSTD(1)),
    running_steps          UInt32 CODEC(T64, ZSTD(1)),
    running_sum            UInt64 CODEC(T64, ZSTD(1)),
    running_max            UInt32 CODEC(T64, ZSTD(1)),
    waiting_sum            UInt64 CODEC(T64, ZSTD(1)),
    waiting_max            UInt32 CODEC(T64, ZSTD(1)),
    work_steps             UInt32 CODEC(T64, ZSTD(1)),
    prefill_steps          UInt32 CODEC(T64, ZSTD(1)),
    prefill_tokens         UInt64 CODEC(T64, ZSTD(1)),
    decode_requests        UInt64 CODEC(T64, ZSTD(1)),
    decode_tokens          UInt64 CODEC(T64, ZSTD(1)),
    draft_tokens           UInt64 CODEC(T64, ZSTD(1)),
    accepted_tokens        UInt64 CODEC(T64, ZSTD(1)),
    preempting_steps       UInt32 CODEC(T64, ZSTD(1)),
    preempted              UInt64 CODEC(T64, ZSTD(1)),
    kv_steps               UInt32 CODEC(T64, ZSTD(1)),
    kv_used_sum_ppm        UInt64 CODEC(T64, ZSTD(1)),
    kv_used_max_ppm        UInt32 CODEC(T64, ZSTD(1))
)
ENGINE = ReplacingMergeTree(rolled_at)
PARTITION BY toYYYYMM(minute)
ORDER BY (tenant, minute, engine_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
