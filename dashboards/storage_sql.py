"""SQL for the cost of storing chunks: bytes of the entire store per chunk, by table and column, and what settings would save.

Sizes are those that ClickHouse lists for its parts on the server that answers. A reader of one tenant sees no parts, so for that reader
every figure is NULL and every table is empty. The module holds statements only; `boards/cost.py` has their panels.
"""

from __future__ import annotations

__all__ = ["AT_REST", "BY_COLUMN", "LEVERS", "STORED_CHUNKS", "TIMELINE"]

_PARTS = "FROM system.parts WHERE active AND database = currentDatabase()"
_COLUMNS = "FROM system.columns WHERE database = currentDatabase()"
# On a cluster, the tables of the shards have the rows.
_REVS = "table IN ('stream_revs', 'stream_revs_local')"
TIMELINE = ("dt_us", "chunk_bytes", "chunk_tokens", "chunk_kind", "chunk_hold_64us")

# Chunks of the streams that are stored now, each once. Rollups are kept for longer than streams.
STORED_CHUNKS = f"""(
    SELECT sum(chunks) FROM stream_hours FINAL WHERE minute >= (SELECT toStartOfHour(min(min_time), 'UTC') {_PARTS} AND {_REVS})
)"""
# Bytes per chunk of the entire store: parts mix the rows of all services, so every chunk is charged the mean.
AT_REST = f"(SELECT nullIf(sum(bytes_on_disk), 0) / nullIf({STORED_CHUNKS}, 0) {_PARTS})"

# ClickHouse divides the size of a part by columns only from 10 MB on. What it does not divide is one row per table, so the rows add up.
BY_COLUMN = f"""
SELECT
    table, column, bytes AS "on disk", bytes / nullIf({STORED_CHUNKS}, 0) AS "per chunk", bytes / sum(bytes) OVER () AS "share of the store"
FROM
(
    SELECT table, name AS column, toInt64(data_compressed_bytes + marks_bytes) AS bytes
    {_COLUMNS} AND table IN (SELECT table {_PARTS})
    UNION ALL
    SELECT table, '(indexes and small parts)', greatest(0, toInt64(on_disk) - toInt64(by_column))
    FROM (SELECT table, sum(bytes_on_disk) AS on_disk {_PARTS} GROUP BY table) AS whole
    LEFT JOIN (SELECT table, sum(data_compressed_bytes + marks_bytes) AS by_column {_COLUMNS} GROUP BY table) AS divided USING (table)
)
WHERE bytes > 0
ORDER BY bytes DESC, table, column
LIMIT 1000"""

# The days after which timelines are deleted now; 0 if they are kept with their streams.
_KEPT = f"""(
    SELECT max(toUInt32OrZero(extract(create_table_query, '`dt_us`[^`]*toIntervalDay[(]([0-9]+)[)]')))
    FROM system.tables WHERE database = currentDatabase() AND {_REVS.replace("table", "name")}
)"""
# Partitions of raw rows are days, those of rollups are months: 20261123, 202611. Timelines are charged to days by their number of rows.
LEVERS = f"""
WITH
    (SELECT if({_KEPT} = 0, 18000, {_KEPT})) AS kept,
    (SELECT sum(chunks) FROM stream_revs) AS chunks_of_all_revs,
    {STORED_CHUNKS} AS stored_chunks
SELECT
    lever.1 AS what, lever.2 AS setting, lever.3 AS saves, saves / nullIf(stored_chunks, 0) AS "saves per chunk",
    saves / store AS "share of the store"
FROM
(
    SELECT
        store, data / nullIf(by_column, 0) AS undivided, timelines * undivided / timed_rows AS per_row,
        arrayJoin([
            ('timelines older than 7 days', 'LEGATO_RETENTION_TIMELINES_DAYS=7', per_row * rows_after_7),
            ('timelines older than 30 days', 'LEGATO_RETENTION_TIMELINES_DAYS=30', per_row * rows_after_30),
            ('hold column of the timelines', '(no setting; deleted with the timelines)', holds * undivided),
            ('snapshots that a later one replaced', 'LEGATO_SNAPSHOT_INTERVAL_MS',
                if(stored_chunks = 0, NULL, revs * greatest(0, 1 - stored_chunks / chunks_of_all_revs))),
            ('streams, steps, samples and verdicts older than 30 days', 'LEGATO_RETENTION_DAYS=30', toNullable(toFloat64(raw_after_30))),
            ('rollups older than 90 days', 'LEGATO_RETENTION_ROLLUPS_DAYS=90', toNullable(toFloat64(rollups_after_90)))
        ]) AS lever
    FROM
    (
        SELECT
            sum(bytes_on_disk) AS store, sumIf(bytes_on_disk, {_REVS}) AS revs, sumIf(data_compressed_bytes, {_REVS}) AS data,
            nullIf(sumIf(rows, {_REVS} AND max_time >= now() - toIntervalDay(kept)), 0) AS timed_rows,
            sumIf(rows, {_REVS} AND max_time < now() - INTERVAL 7 DAY AND max_time >= now() - toIntervalDay(kept)) AS rows_after_7,
            sumIf(rows, {_REVS} AND max_time < now() - INTERVAL 30 DAY AND max_time >= now() - toIntervalDay(kept)) AS rows_after_30,
            sumIf(bytes_on_disk, length(partition_id) = 8 AND max_time < now() - INTERVAL 30 DAY) AS raw_after_30,
            sumIf(bytes_on_disk, length(partition_id) = 6 AND max_time < now() - INTERVAL 90 DAY) AS rollups_after_90
        {_PARTS}
    ) AS of_parts
    CROSS JOIN
    (
        SELECT
            sum(data_compressed_bytes) AS by_column, sumIf(data_compressed_bytes, name IN {TIMELINE}) AS timelines,
            sumIf(data_compressed_bytes, name = 'chunk_hold_64us') AS holds
        {_COLUMNS} AND {_REVS}
    ) AS of_columns
    WHERE revs > 0
)
ORDER BY saves DESC NULLS LAST, what"""
