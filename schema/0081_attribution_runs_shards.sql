-- Several instances that share a server divide the streams into 64 shards, and each judges some of them. Bit b stands for shard b.
-- Earlier rows, and those of an instance that judges alone, are about all streams.
ALTER TABLE attribution_runs
    ADD COLUMN IF NOT EXISTS shards UInt64 DEFAULT 18446744073709551615 CODEC(ZSTD(1))
    COMMENT 'Shards of the streams that were judged: bit b stands for shard b of 64'
