-- One row per revision (`rev`) of a streamed response at one vantage: its span, its statistics and its chunk timeline.
-- Query the view `streams`, which returns the newest revision only. Units are part of the column names.
--
-- Key: every key column comes from the span and none from the receiver, so a retried request produces the same row again, and
-- ReplacingMergeTree(rev) keeps the highest revision. `tenant` is first because every reader is limited to one tenant. `start_time` is
-- second because every query has a time range; a time range also keeps the deduplication lookup before an insert cheap. Model and service
-- are not in the key: streams of all services interleave in time, and low-cardinality columns compress to almost nothing.
-- Partitions are days, so retention drops complete parts.
-- Codecs: T64 makes the equal upper bytes of neighbouring integers adjacent, which ZSTD compresses well. `dt_us` must not have Delta,
-- because it holds differences already.
-- Trace ids and span ids are random bytes, which do not compress: NONE.
-- Indices: the bloom filters serve `legato stream ID`, which has no time range. `received_at_minmax` serves the attribution and the
-- rollups, which query every few seconds for rows received since their last run; the rows of one part were received at about the same time.
CREATE TABLE stream_revs_local ON CLUSTER '{cluster}'
(
    tenant              LowCardinality(String) CODEC(ZSTD(1)),
    start_time          DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    trace_id            FixedString(16) CODEC(NONE),
    span_id             FixedString(8) CODEC(NONE),
    rev                 UInt32 CODEC(T64, ZSTD(1)),
    parent_span_id      FixedString(8) CODEC(ZSTD(1)),
    ended               Bool CODEC(ZSTD(1)),
    duration_ns         UInt64 CODEC(T64, ZSTD(1)),
    next_due_us         UInt64 CODEC(ZSTD(1)),
    received_at         DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    flags               Array(LowCardinality(String)) CODEC(ZSTD(1)),

    vantage             LowCardinality(String) CODEC(ZSTD(1)),
    outcome             LowCardinality(String) CODEC(ZSTD(1)),
    error_type          LowCardinality(String) CODEC(ZSTD(1)),
    service_name        LowCardinality(String) CODEC(ZSTD(1)),
    service_version     LowCardinality(String) CODEC(ZSTD(1)),
    provider            LowCardinality(String) CODEC(ZSTD(1)),
    model               LowCardinality(String) CODEC(ZSTD(1)),
    response_model      LowCardinality(String) CODEC(ZSTD(1)),
    response_id         String CODEC(ZSTD(1)),
    finish_reason       LowCardinality(String) CODEC(ZSTD(1)),
    route               LowCardinality(String) CODEC(ZSTD(1)),
    conversation_id     String CODEC(ZSTD(1)),
    engine_id           LowCardinality(String) CODEC(ZSTD(1)),
    client_hash         String CODEC(ZSTD(1)),
    emitter             LowCardinality(String) CODEC(ZSTD(1)),
    transport           LowCardinality(String) CODEC(ZSTD(1)),
    clock               LowCardinality(String) CODEC(ZSTD(1)),
    client_address      LowCardinality(String) CODEC(ZSTD(1)),
    client_port         UInt16 CODEC(ZSTD(1)),
    server_address      LowCardinality(String) CODEC(ZSTD(1)),
    server_port         UInt16 CODEC(ZSTD(1)),
    input_tokens        Nullable(UInt32) CODEC(T64, ZSTD(1)),
    output_tokens       Nullable(UInt32) CODEC(T64, ZSTD(1)),
    otlp_bytes          UInt32 CODEC(T64, ZSTD(1)),
    wire_bytes          Nullable(UInt64) CODEC(T64, ZSTD(1)),

    chunks              Nullable(UInt32) CODEC(T64, ZSTD(1)),
    chunks_dropped      UInt32 CODEC(T64, ZSTD(1)),
    content_chunks      Nullable(UInt32) CODEC(T64, ZSTD(1)),
    content_bytes       Nullable(UInt64) CODEC(T64, ZSTD(1)),
    ttfb_us             Nullable(UInt64) CODEC(T64, ZSTD(1)),
    ttft_us             Nullable(UInt64) CODEC(T64, ZSTD(1)),
    ttfo_us             Nullable(UInt64) CODEC(T64, ZSTD(1)),

    gaps                Nullable(UInt32) CODEC(T64, ZSTD(1)),
    gap_sum_us          Nullable(UInt64) CODEC(T64, ZSTD(1)),
    gap_max_us          Nullable(UInt64) CODEC(T64, ZSTD(1)),
    gap_open_us         Nullable(UInt64) CODEC(T64, ZSTD(1)),
    gap_top_us          Array(UInt64) CODEC(T64, ZSTD(1)),
    gap_p50_us          Nullable(UInt64) CODEC(T64, ZSTD(1)),
    gap_p95_us          Nullable(UInt64) CODEC(T64, ZSTD(1)),
    gap_p99_us          Nullable(UInt64) CODEC(T64, ZSTD(1)),
    gap_twq50_us        Nullable(UInt64) CODEC(T64, ZSTD(1)),
    gap_bucket          Array(UInt8) CODEC(ZSTD(1)),
    gap_bucket_count    Array(UInt32) CODEC(T64, ZSTD(1)),
    stalls_100ms        Nullable(UInt32) CODEC(T64, ZSTD(1)),
    stalls_250ms        Nullable(UInt32) CODEC(T64, ZSTD(1)),
    stalls_400ms        Nullable(UInt32) CODEC(T64, ZSTD(1)),
    stalls_1000ms       Nullable(UInt32) CODEC(T64, ZSTD(1)),
    stalls_2000ms       Nullable(UInt32) CODEC(T64, ZSTD(1)),
    excess_100ms_us     Nullable(UInt64) CODEC(T64, ZSTD(1)),
    excess_250ms_us     Nullable(UInt64) CODEC(T64, ZSTD(1)),
    excess_400ms_us     Nullable(UInt64) CODEC(T64, ZSTD(1)),
    excess_1000ms_us    Nullable(UInt64) CODEC(T64, ZSTD(1)),
    excess_2000ms_us    Nullable(UInt64) CODEC(T64, ZSTD(1)),
    jitter_ratio        Nullable(Float32) CODEC(ZSTD(1)),
    tokens_per_chunk    Nullable(Float32) CODEC(ZSTD(1)),
    multi_token_share   Nullable(Float32) CODEC(ZSTD(1)),
    head_burst          Nullable(Float32) CODEC(ZSTD(1)),
    tail_flush          Nullable(Float32) CODEC(ZSTD(1)),
    burstiness          Nullable(Float32) CODEC(ZSTD(1)),
    starved_2wps_us     Nullable(UInt64) CODEC(T64, ZSTD(1)),
    starved_4wps_us     Nullable(UInt64) CODEC(T64, ZSTD(1)),
    starved_6wps_us     Nullable(UInt64) CODEC(T64, ZSTD(1)),
    starved_8wps_us     Nullable(UInt64) CODEC(T64, ZSTD(1)),
    hold_sum_us         Nullable(UInt64) CODEC(T64, ZSTD(1)),
    hold_max_us         Nullable(UInt64) CODEC(T64, ZSTD(1)),

    dt_us               Array(UInt32) CODEC(T64, ZSTD(1)),
    chunk_bytes         Array(UInt32) CODEC(T64, ZSTD(1)),
    chunk_tokens        Array(UInt32) CODEC(T64, ZSTD(1)),
    chunk_kind          Array(UInt8) CODEC(ZSTD(1)),
    chunk_hold_64us     Array(UInt32) CODEC(T64, ZSTD(1)),

    INDEX trace_id_bloom trace_id TYPE bloom_filter(0.01) GRANULARITY 4,
    INDEX response_id_bloom response_id TYPE bloom_filter(0.01) GRANULARITY 4,
    INDEX received_at_minmax received_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/{database}/stream_revs', '{replica}', rev)
PARTITION BY toYYYYMMDD(start_time)
ORDER BY (tenant, start_time, trace_id, span_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800
