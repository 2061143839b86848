-- One row per stall of a stream and judgement: the causes that the gap was charged to. The values of `parts` are ns and add up to the gap.
-- ReplacingMergeTree(judged_at): the newest judgement counts, and repeating a judgement gives the same row.
--
-- `evidence` holds the numbers that the verdict was made from, `excluded` the causes ruled out with the reason for each, `error_us` the
-- error of the estimate, and the `culprit_*` columns the engine step that caused the stall (the root-cause step).
-- Key: the key of the stream, so the verdicts of one stream are adjacent.
-- Index: the rollups query every few seconds for verdicts made since their last run.
CREATE TABLE verdicts
(
    tenant            LowCardinality(String) CODEC(ZSTD(1)),
    start_time        DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    trace_id          FixedString(16) CODEC(NONE),
    span_id           FixedString(8) CODEC(NONE),
    gap_start_us      UInt64 CODEC(T64, ZSTD(1)),
    gap_us            UInt64 CODEC(T64, ZSTD(1)),
    excess_us         UInt64 CODEC(T64, ZSTD(1)),
    judged_at         DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    cause             LowCardinality(String) CODEC(ZSTD(1)),
    confidence        LowCardinality(String) CODEC(ZSTD(1)),
    share             Float32 CODEC(ZSTD(1)),
    parts             Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    engine_id         LowCardinality(String) CODEC(ZSTD(1)),
    step_first        Nullable(UInt64) CODEC(T64, ZSTD(1)),
    step_last         Nullable(UInt64) CODEC(T64, ZSTD(1)),
    missing           Array(LowCardinality(String)) CODEC(ZSTD(1)),
    evidence          Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    excluded          Map(LowCardinality(String), LowCardinality(String)) CODEC(ZSTD(1)),
    error_us          UInt32 CODEC(T64, ZSTD(1)),
    culprit_step      Nullable(UInt64) CODEC(T64, ZSTD(1)),
    culprit_at        DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    culprit_us        UInt64 CODEC(T64, ZSTD(1)),
    culprit_responses Array(String) CODEC(ZSTD(1)),

    INDEX judged_at_minmax judged_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(judged_at)
PARTITION BY toYYYYMMDD(start_time)
ORDER BY (tenant, start_time, trace_id, span_id, gap_start_us)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
