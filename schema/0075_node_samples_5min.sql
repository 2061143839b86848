-- The 5-minute rollup of node samples: one row per five minutes and series. Holds what panels over days need: counts, sums and maxima of
-- values, the growth of counters, and the deltas of histograms. The raw samples of thirty days are 300 times as many.
-- Five minutes are computed again completely when one of their samples arrives, and ReplacingMergeTree(rolled_at) keeps the newest result.
-- `grown` covers the samples of the row; the growth from one row to the next is `first_value` less the `last_value` before.
-- Key: that of `node_samples`, so the rows of a series are adjacent, and its names and attributes cost almost nothing.
CREATE TABLE node_samples_5min
(
    tenant       LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'Tenant of the token that wrote the samples; empty without tenants',
    metric       LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'Name of the metric',
    engine_id    LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'Engine that the samples are about (legato.engine.id); empty: none',
    host         LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'host.name, or else host.id, of the sender; empty: unknown',
    series       UInt64 CODEC(ZSTD(1)) COMMENT 'Hash of everything that names the series, as in node_samples',
    minute       DateTime('UTC') CODEC(Delta, ZSTD(1)) COMMENT 'Start of the five minutes, UTC',
    rolled_at    DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'Time at which the row was computed, UTC; the newest row of a key is valid',
    attributes   Map(LowCardinality(String), String) CODEC(ZSTD(3)) COMMENT 'Attributes by name, as in node_samples',

    samples      UInt32 CODEC(T64, ZSTD(1)) COMMENT 'Samples with a value; 0: a histogram',
    positive     UInt32 CODEC(T64, ZSTD(1)) COMMENT 'Samples with a value above 0',
    value_sum    Float64 CODEC(ZSTD(1)) COMMENT 'Sum of the values, in the unit of the metric',
    value_max    Float64 CODEC(Delta, ZSTD(1)) COMMENT 'Highest value, in the unit of the metric; 0 without samples',
    first_value  Float64 CODEC(Delta, ZSTD(1)) COMMENT 'Value of the first sample, in the unit of the metric; 0 without samples',
    last_value   Float64 CODEC(Delta, ZSTD(1)) COMMENT 'Value of the last sample, in the unit of the metric; 0 without samples',
    grown        Float64 CODEC(ZSTD(1)) COMMENT 'Growth of a counter from the first to the last sample; a fall is a restart from 0',
    observations UInt64 CODEC(T64, ZSTD(1)) COMMENT 'Observations of a histogram with delta temporality and a sum',
    observed_sum Float64 CODEC(ZSTD(1)) COMMENT 'Sum of these observations, in the unit of the metric'
)
ENGINE = ReplacingMergeTree(rolled_at)
PARTITION BY toYYYYMM(minute)
ORDER BY (tenant, metric, engine_id, host, series, minute)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'The 5-minute rollup of node samples by series. Read with FINAL'
