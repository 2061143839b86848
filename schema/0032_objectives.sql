-- The objectives of the SLO: what a good stream is, and which share of the streams has to be good. `legato serve` writes them at its start, from
-- the file LEGATO_OBJECTIVES_FILE and from the settings of the default; `legato objectives apply` writes a changed file. Each version is
-- complete: the rows with the newest `applied_at` apply, and earlier versions stay as the history. Query the view `current_objectives`.
CREATE TABLE objectives
(
    applied_at            DateTime64(3, 'UTC') CODEC(ZSTD(1)) COMMENT 'Time at which this version was applied',
    rank                  UInt16 CODEC(ZSTD(1)) COMMENT 'Place in the order; the first objective that matches a stream applies',
    tenant                LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'Tenant of the streams; * for all tenants',
    name                  String CODEC(ZSTD(1)) COMMENT 'Name of the objective, unique in its version',
    service               String CODEC(ZSTD(1)) COMMENT 'Pattern of the service name; * stands for any characters',
    model                 String CODEC(ZSTD(1)) COMMENT 'Pattern of the model; * stands for any characters',
    route                 String CODEC(ZSTD(1)) COMMENT 'Pattern of the route; * stands for any characters',
    target                Float64 CODEC(ZSTD(1)) COMMENT 'Share of the streams that has to be good, between 0 and 1',
    gap_limit_us          UInt64 CODEC(ZSTD(1)) COMMENT 'A stream with a longer gap is not good (us)',
    first_output_limit_us UInt64 CODEC(ZSTD(1)) COMMENT 'A stream with a later first output is not good (us from its start)'
)
ENGINE = MergeTree
ORDER BY (tenant, applied_at, rank)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Objectives of the SLO, all versions; the view current_objectives has the version that applies'
