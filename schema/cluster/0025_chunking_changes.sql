-- One row per change in how a provider divides its streams into chunks, as reported by the change detector.
-- Key: the stratum and the time of the change, so a change that is detected again replaces its earlier row; `found` = 0 withdraws it.
CREATE TABLE chunking_changes ON CLUSTER '{cluster}'
(
    tenant                  LowCardinality(String) CODEC(ZSTD(1)),
    changed_at              DateTime('UTC') CODEC(Delta, ZSTD(1)),
    vantage                 LowCardinality(String) CODEC(ZSTD(1)),
    service_name            LowCardinality(String) CODEC(ZSTD(1)),
    model                   LowCardinality(String) CODEC(ZSTD(1)),
    provider                LowCardinality(String) CODEC(ZSTD(1)),
    route                   LowCardinality(String) CODEC(ZSTD(1)),
    detected_at             DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    found                   Bool CODEC(ZSTD(1)),
    alarmed_at              DateTime('UTC') CODEC(Delta, ZSTD(1)),
    kind                    LowCardinality(String) CODEC(ZSTD(1)),
    direction               LowCardinality(String) CODEC(ZSTD(1)),
    share_before            Float64 CODEC(ZSTD(1)),
    share_after             Float64 CODEC(ZSTD(1)),
    tokens_per_chunk_before Float64 CODEC(ZSTD(1)),
    tokens_per_chunk_after  Float64 CODEC(ZSTD(1)),
    rate_ratio              Float64 CODEC(ZSTD(1)),
    streams_before          UInt64 CODEC(T64, ZSTD(1)),
    streams_after           UInt64 CODEC(T64, ZSTD(1)),
    log_e                   Float64 CODEC(ZSTD(1))
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/all/{database}/chunking_changes', '{shard}-{replica}', detected_at)
PARTITION BY toYYYYMM(changed_at)
ORDER BY (tenant, vantage, service_name, model, provider, route, changed_at)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800
