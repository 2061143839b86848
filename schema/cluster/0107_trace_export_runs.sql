-- Progress of the export of verdicts to a trace backend: the stalls of everything received up to `until` are exported. The next run begins
-- at the newest row. A row is written after the endpoint accepted the spans, so a crash in between repeats them.
CREATE TABLE trace_export_runs ON CLUSTER '{cluster}'
(
    tenant     LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'Empty: a run covers all tenants',
    until      DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'The stalls of streams received up to this time have been exported, UTC',
    ran_at     DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'Time of the run, UTC',
    streams    UInt32 CODEC(T64, ZSTD(1)) COMMENT 'Streams of the run that were exported up to this row',
    spans      UInt32 CODEC(T64, ZSTD(1)) COMMENT 'Spans of the run that the endpoint accepted up to this row',
    seconds    Float32 CODEC(ZSTD(1)) COMMENT 'Duration of the run up to this row, s'
)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/all/{database}/trace_export_runs', '{shard}-{replica}')
ORDER BY (tenant, until)
TTL toDateTime(ran_at) + INTERVAL 30 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800
COMMENT 'One row per export of verdicts to a trace backend that sent or passed something; kept for 30 days'
