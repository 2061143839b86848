-- The 1-minute rollup of streams: one row per minute in which streams began and per combination of the dimensions that panels filter by.
-- Holds counts, sums and sparse histograms, which can be added. A minute is computed again completely when one of its streams or verdicts
-- changes, and ReplacingMergeTree(rolled_at) keeps the newest result. README.md describes the buckets of the histograms.
-- Key: a time range is a range of the key; the dimensions after it keep the rows of one minute distinct.
-- Partitions are months: ten million streams are a few hundred thousand rows, too few to fill a partition per day.
CREATE TABLE stream_minutes
(
    tenant                  LowCardinality(String) CODEC(ZSTD(1)),
    minute                  DateTime('UTC') CODEC(Delta, ZSTD(1)),
    vantage                 LowCardinality(String) CODEC(ZSTD(1)),
    service_name            LowCardinality(String) CODEC(ZSTD(1)),
    model                   LowCardinality(String) CODEC(ZSTD(1)),
    provider                LowCardinality(String) CODEC(ZSTD(1)),
    service_version         LowCardinality(String) CODEC(ZSTD(1)),
    route                   LowCardinality(String) CODEC(ZSTD(1)),
    transport               LowCardinality(String) CODEC(ZSTD(1)),
    emitter                 LowCardinality(String) CODEC(ZSTD(1)),
    rolled_at               DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    due_at                  DateTime64(3, 'UTC') CODEC(ZSTD(1)),

    streams                 UInt32 CODEC(T64, ZSTD(1)),
    outcomes                Map(LowCardinality(String), UInt32) CODEC(ZSTD(1)),
    judged                  UInt32 CODEC(T64, ZSTD(1)),
    good                    UInt32 CODEC(T64, ZSTD(1)),
    bad_gap                 UInt32 CODEC(T64, ZSTD(1)),
    bad_error               UInt32 CODEC(T64, ZSTD(1)),
    bad_late                UInt32 CODEC(T64, ZSTD(1)),
    bad_service_clients     Map(UInt64, UInt32) CODEC(ZSTD(1)),
    bad_connection_clients  Map(UInt64, UInt32) CODEC(ZSTD(1)),
    bad_reader_clients      Map(UInt64, UInt32) CODEC(ZSTD(1)),
    bad_late_clients        Map(UInt64, UInt32) CODEC(ZSTD(1)),

    timed_streams           UInt32 CODEC(T64, ZSTD(1)),
    gaps                    UInt64 CODEC(T64, ZSTD(1)),
    gap_sum_us              UInt64 CODEC(T64, ZSTD(1)),
    gap_max_us              UInt64 CODEC(T64, ZSTD(1)),
    gap_buckets             Map(UInt8, UInt64) CODEC(ZSTD(1)),
    gap_p99_buckets         Map(UInt16, UInt32) CODEC(ZSTD(1)),
    gap_max_buckets         Map(UInt16, UInt32) CODEC(ZSTD(1)),
    jitter_permille_buckets Map(UInt16, UInt32) CODEC(ZSTD(1)),
    ttfb_buckets            Map(UInt16, UInt32) CODEC(ZSTD(1)),
    ttft_buckets            Map(UInt16, UInt32) CODEC(ZSTD(1)),
    ttfo_buckets            Map(UInt16, UInt32) CODEC(ZSTD(1)),
    stalled_streams         UInt32 CODEC(T64, ZSTD(1)),
    stalls_250ms            UInt64 CODEC(T64, ZSTD(1)),
    stalls_400ms            UInt64 CODEC(T64, ZSTD(1)),
    excess_250ms_us         UInt64 CODEC(T64, ZSTD(1)),

    chunks                  UInt64 CODEC(T64, ZSTD(1)),
    content_chunks          UInt64 CODEC(T64, ZSTD(1)),
    content_bytes           UInt64 CODEC(T64, ZSTD(1)),
    otlp_bytes              UInt64 CODEC(T64, ZSTD(1)),
    enveloped_streams       UInt32 CODEC(T64, ZSTD(1)),
    enveloped_wire_bytes    UInt64 CODEC(T64, ZSTD(1)),
    enveloped_content_bytes UInt64 CODEC(T64, ZSTD(1)),
    token_streams           UInt32 CODEC(T64, ZSTD(1)),
    tokens                  UInt64 CODEC(T64, ZSTD(1)),
    token_chunks            UInt64 CODEC(T64, ZSTD(1)),
    token_otlp_bytes        UInt64 CODEC(T64, ZSTD(1)),
    share_streams           UInt32 CODEC(T64, ZSTD(1)),
    multi_token_share_sum   Float64 CODEC(ZSTD(1)),
    log_rate_streams        UInt32 CODEC(T64, ZSTD(1)),
    log_rate_sum            Float64 CODEC(ZSTD(1)),
    log_rate_sq_sum         Float64 CODEC(ZSTD(1)),
    head_streams            UInt32 CODEC(T64, ZSTD(1)),
    head_bursts             UInt32 CODEC(T64, ZSTD(1))
)
ENGINE = ReplacingMergeTree(rolled_at)
PARTITION BY toYYYYMM(minute)
ORDER BY (tenant, minute, vantage, service_name, model, provider, service_version, route, transport, emitter)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
