-- Who sends spans, and what becomes of those that are not from Legato's own libraries: numbers of spans by service, emitter or scope,
-- result and reason. `legato serve` adds up in memory and inserts a few rows every 10 s at most. A number counts receipts: a span that is
-- sent again after a lost reply counts twice, and a killed server loses its last 10 s. `stream_revs` is exact; this table is for `legato
-- doctor --emitters`.
CREATE TABLE emitter_spans
(
    tenant        LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'Tenant of the token that sent the spans; empty without tenants',
    received_at   DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'Time at which legato serve inserted the row, UTC',
    service_name  LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'service.name of the sender; empty: unknown',
    scope         LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'Instrumentation scope of ignored spans; empty: stored spans, or unknown',
    scope_version LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'Version of the scope; empty: unknown',
    emitter       LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'Family of emitters, with its version; empty: of no known family',
    result        LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'stored; same_response: another row has the response; ignored',
    reason        LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'Why spans are ignored, or the emitter that has the response; empty:
    stored', spans         UInt64 CODEC(T64, ZSTD(1)) COMMENT 'Number of spans'
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(received_at)
ORDER BY (tenant, received_at)
TTL toDateTime(received_at) + INTERVAL 30 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Numbers of spans of other emitters than Legato''s own, by what became of them; kept for 30 days'
