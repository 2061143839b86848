"""How long rows are kept: raw rows, their chunk timelines, and the rollups.

ClickHouse deletes old rows itself, by the TTL of each table and column; this module sets these TTLs to the values of the settings. Each
part also stores when its rows expire, computed when it was written, and only this counts: neither a shorter nor a longer TTL applies to
stored parts until it is computed again (``_compute_expiry``).

It computes the end of a row's time in 32 bits, which end in 2106, and deletes a row at once if that is later: hence the limits of the
settings. Timelines may be deleted earlier than their streams; the statistics stay. Rollups of minutes with deleted streams are never
computed again, because they would be too low (the rollups use ``kept_since_s``, and after a longer retention was set
`rollup_runs.kept_since`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from legato_ingest.errors import SchemaError
from legato_ingest.quoting import literal
from legato_ingest.settings import Settings
from legato_ingest.storage.store import Store

__all__ = ["kept_since_s", "set_retention"]

_DAY_S = 86_400
# A computation of rollups takes less, and the clock of a server differs by less.
_EXPIRY_S = 3_600
# Tables, with the column that the age of a row is counted from.
_RAW = {
    "stream_revs": "start_time",
    "stream_sockets": "start_time",
    "stream_silences": "recorded_at",
    "engine_steps": "recorded_at",
    "engine_requests": "recorded_at",
    "node_samples": "recorded_at",
    "verdicts": "start_time",
    "replays": "start_time",
}
_ROLLUPS = {
    "stream_minutes": "minute",
    "stall_minutes": "minute",
    "but_for_minutes": "minute",
    "engine_minutes": "minute",
    "stream_hours": "minute",
    "stall_hours": "minute",
    "but_for_hours": "minute",
    "chunking_changes": "changed_at",
}
# Panels read it instead of the samples, so it is kept as long as they are, or as the other rollups.
_SAMPLES = {"node_samples_5min": "minute"}
_TIMELINE = ("dt_us", "chunk_bytes", "chunk_tokens", "chunk_kind", "chunk_hold_64us")
# The mutation reads the column with the time alone, and writes none (a compact part, of 10 MB at most, is written whole).
_RECALCULATE_ONLY = "materialize_ttl_recalculate_only = 1"
# The tables with parts that expire at another time than by the rules: the rule has changed, or the last expiry fits none of a part's times.
# The latter holds of copied parts, of those from versions that did not compute it again, and if the process ended between two statements.
# A column that was deleted has 0.
_OUTDATED = """
WITH replaceRegexpOne(table, '_local$', '') AS name
SELECT DISTINCT name FROM (
    SELECT table, min_time, max_time, delete_ttl_info_max AS expires_at,
        transform(replaceRegexpOne(table, '_local$', ''), {tables}, {days}, 0) * 86400 AS kept_s
    FROM system.parts WHERE database = currentDatabase() AND active AND rows > 0
    UNION ALL
    SELECT table, min_time, max_time, column_ttl_max, if(toUnixTimestamp(column_ttl_max) = 0, 0, {timeline_days}) * 86400
    FROM system.parts_columns
    WHERE {timeline_days} > 0 AND database = currentDatabase() AND active AND rows > 0
        AND table IN ('stream_revs', 'stream_revs_local') AND column IN {timeline}
)
WHERE has({changed}, name)
    OR kept_s > 0 AND NOT ifNull(toUnixTimestamp(expires_at) - kept_s BETWEEN toUnixTimestamp(min_time) AND toUnixTimestamp(max_time), 0)
    AND table NOT IN (
        SELECT table FROM system.mutations WHERE database = currentDatabase() AND NOT is_done AND command LIKE '%MATERIALIZE TTL%'
    )
"""


def set_retention(store: Store, raw_days: int, timeline_days: int = 0, rollup_days: int = 0) -> None:
    """Make the store delete rows after this many days. 0: never; for timelines 0: with their streams.

    A TTL that is right already is left alone, because changing one costs a mutation, which this call does not wait for. A longer one does
    not bring expired rows back, so `rollup_runs.kept_since` records first since when rows are stored. Raises ``SchemaError`` if a table is
    missing.
    """
    _record_expiry(store, raw_days)
    longer_days = max(raw_days, rollup_days) if raw_days and rollup_days else 0
    kept = ((_RAW, raw_days), (_ROLLUPS, rollup_days), (_SAMPLES, longer_days))
    changed = [table for tables, days in kept for table, column in tables.items() if _set_table(store, table, column, days)]
    if any([_set_column(store, "stream_revs", column, timeline_days) for column in _TIMELINE]):
        changed.append("stream_revs")
    for table in _outdated(store, {table: days for tables, days in kept for table in tables}, timeline_days, changed):
        _compute_expiry(store, table)


def kept_since_s(settings: Settings) -> int:
    """Return the time (s since the epoch) since which all raw rows are stored, for another hour at least; 0 if none is ever deleted."""
    return _since_s(settings.retention_days) if settings.retention_days else 0


def _since_s(days: int) -> int:
    return int(time.time()) - days * _DAY_S + _EXPIRY_S


def _record_expiry(store: Store, days: int) -> None:
    """If raw rows are to be kept longer than until now, record since when they are stored."""
    earlier = re.search(r"TTL toDateTime\(start_time\) \+ toIntervalDay\((\d+)\)", _rule_of_table(_declared(store, "stream_revs")[1]))
    if earlier and (not days or int(earlier[1]) < days):
        since = f"toDateTime64({_since_s(int(earlier[1]))}, 3, 'UTC')"
        store.command(f"INSERT INTO rollup_runs (tenant, ran_at, kept_since) SELECT '', now64(3), {since}")


def _set_table(store: Store, table: str, column: str, days: int) -> bool:
    """Set the TTL of a table; return whether it was another one before, or none."""
    table, declared = _declared(store, table)
    declared = _rule_of_table(declared)
    rule = f"TTL toDateTime({column}) + toIntervalDay({days})"
    if days and rule not in declared:
        store.command(f"ALTER TABLE {table} MODIFY {rule} SETTINGS materialize_ttl_after_modify = 0")
        return True
    if not days and f"TTL toDateTime({column})" in declared:
        store.command(f"ALTER TABLE {table} REMOVE TTL")
    return False


def _rule_of_table(declared: str) -> str:
    """Return the part of a declaration with the TTL of the table: it is after the key, the TTLs of columns are before it."""
    return declared.rpartition("ORDER BY")[2]


def _set_column(store: Store, table: str, column: str, days: int) -> bool:
    """Set the TTL of a column; return whether it was another one before, or none."""
    table, declared = _declared(store, table)
    # The declaration of a column ends at the next name in backticks, or at the end of the list of columns.
    declared = re.split(r"`| INDEX |\) ENGINE ", declared.partition(f"`{column}` ")[2])[0]
    rule = f"TTL toDateTime(start_time) + toIntervalDay({days})"
    if days and rule not in declared:
        store.command(f"ALTER TABLE {table} MODIFY COLUMN {column} {rule} SETTINGS materialize_ttl_after_modify = 0")
        return True
    if not days and " TTL " in declared:
        store.command(f"ALTER TABLE {table} MODIFY COLUMN {column} REMOVE TTL")
    return False


def _outdated(store: Store, days: Mapping[str, int], timeline_days: int, changed: Sequence[str]) -> list[str]:
    """Return the tables, of those ``changed`` or others, with parts to compute the expiry of again. ``days``: by table."""
    sql = _OUTDATED.format(
        tables=list(days), days=list(days.values()), timeline_days=timeline_days, timeline=_TIMELINE, changed=list(changed)
    )
    return sorted(str(table) for (table,) in store.select(sql))


def _compute_expiry(store: Store, table: str) -> None:
    """Begin to compute when the stored rows of a table expire. The engine goes on after a restart."""
    table, declared = _declared(store, table)
    if _RECALCULATE_ONLY not in declared:
        # Replicas do not pass settings on, and with different ones they would write different parts.
        on = " ON CLUSTER '{cluster}'" if "ENGINE = Replicated" in declared and " ON CLUSTER " not in table else ""
        store.command(f"ALTER TABLE {table}{on} MODIFY SETTING {_RECALCULATE_ONLY}")
    # The default of chDB is to wait for the mutation.
    store.command(f"ALTER TABLE {table} MATERIALIZE TTL SETTINGS mutations_sync = 0")


def _declared(store: Store, table: str) -> tuple[str, str]:
    """Return the table to alter and its declaration: on a cluster, the table of each shard."""
    rows = store.select(
        "SELECT name, create_table_query FROM system.tables"
        f" WHERE database = currentDatabase() AND name IN ({literal(table)}, {literal(table + '_local')}) ORDER BY name DESC LIMIT 1"
    )
    if not rows:
        raise SchemaError(
            f"the table {table} is missing from the store, but its migration was applied: restore a backup with `legato restore`"
        )
    name, declared = rows[0]
    return (f"{name} ON CLUSTER '{{cluster}}'" if name != table else table), str(declared)
