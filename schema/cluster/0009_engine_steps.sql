-- One row per engine step, as recorded by the front end of the engine (STEPS.md). NULL means unknown.
-- Key: the attribution reads the steps of one engine in a time range; `culprit_at` and `culprit_step` of a verdict identify a row by its
-- key.
-- Codecs: step numbers and step times grow almost evenly, so DoubleDelta leaves small numbers.
-- Index: the rollups query every few seconds for the steps received since their last run.
CREATE TABLE engine_steps ON CLUSTER '{cluster}'
(
    tenant           LowCardinality(String) CODEC(ZSTD(1)),
    engine_id        LowCardinality(String) CODEC(ZSTD(1)),
    engine_epoch     DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    recorded_at      DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    step             UInt64 CODEC(DoubleDelta, ZSTD(1)),
    received_at      DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    emitter          LowCardinality(String) CODEC(ZSTD(1)),

    interval_us      Nullable(UInt32) CODEC(T64, ZSTD(1)),
    interval_max_us  Nullable(UInt32) CODEC(T64, ZSTD(1)),
    elapsed_us       Nullable(UInt32) CODEC(T64, ZSTD(1)),
    running          Nullable(UInt32) CODEC(T64, ZSTD(1)),
    waiting          Nullable(UInt32) CODEC(T64, ZSTD(1)),
    prefill_requests Nullable(UInt32) CODEC(T64, ZSTD(1)),
    prefill_tokens   Nullable(UInt32) CODEC(T64, ZSTD(1)),
    decode_requests  Nullable(UInt32) CODEC(T64, ZSTD(1)),
    decode_tokens    Nullable(UInt32) CODEC(T64, ZSTD(1)),
    draft_tokens     Nullable(UInt32) CODEC(T64, ZSTD(1)),
    accepted_tokens  Nullable(UInt32) CODEC(T64, ZSTD(1)),
    preempted        Nullable(UInt32) CODEC(T64, ZSTD(1)),
    kv_used_ppm      Nullable(UInt32) CODEC(T64, ZSTD(1)),

    INDEX received_at_minmax received_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/all/{database}/engine_steps', '{shard}-{replica}', received_at)
PARTITION BY toYYYYMMDD(recorded_at)
ORDER BY (tenant, engine_id, recorded_at, step)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800
