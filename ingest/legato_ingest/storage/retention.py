"""How long rows are kept, by kind: raw rows, their timelines, and the minutes and hours that were added up of them.

One idea: ClickHouse drops what is old by itself, by a rule that stands with the table; this only makes the rules say what the settings say.
Raw timelines may go before the streams that they are of: the statistics stay. What has been dropped is never computed again from what is
left (`roller` asks ``kept_since_s``).
"""

from __future__ import annotations

import re
import time

from legato_ingest.settings import Settings
from legato_ingest.storage.chdb import Store

__all__ = ["kept_since_s", "set_retention"]

_DAY_S = 86_400
_RAW = {
    "stream_revs": "start_time",
    "stream_sockets": "start_time",
    "engine_steps": "recorded_at",
    "engine_requests": "recorded_at",
    "node_samples": "recorded_at",
    "verdicts": "start_time",
    "replays": "start_time",
}
_ROLLED = {
    "stream_minutes": "minute",
    "stall_minutes": "minute",
    "but_for_minutes": "minute",
    "engine_minutes": "minute",
    "stream_hours": "minute",
    "stall_hours": "minute",
    "but_for_hours": "minute",
    "chunking_changes": "changed_at",
}
_TIMELINE = ("dt_us", "chunk_bytes", "chunk_tokens", "chunk_kind", "chunk_hold_64us")


def set_retention(store: Store, raw_days: int, timeline_days: int = 0, rolled_days: int = 0) -> None:
    """Make the store drop what happened more than so many days ago (0: never; of timelines: with their streams).

    Only says so where it says otherwise now.
    """
    for tables, days in ((_RAW, raw_days), (_ROLLED, rolled_days)):
        for table, column in tables.items():
            _set_table(store, table, column, days)
    for column in _TIMELINE:
        _set_column(store, "stream_revs", column, timeline_days)


def kept_since_s(settings: Settings) -> int:
    """Since when (unix s) all streams are there: minutes before that may have been computed from more than there is now."""
    return int(time.time()) - (settings.retention_days - 1) * _DAY_S if settings.retention_days else 0


def _set_table(store: Store, table: str, column: str, days: int) -> None:
    table, declared = _declared(store, table)
    # The table's own rule comes after its key; a column's stands before.
    declared = declared.rpartition("ORDER BY")[2]
    rule = f"TTL toDateTime({column}) + toIntervalDay({days})"
    if days and rule not in declared:
        store.command(f"ALTER TABLE {table} MODIFY {rule} SETTINGS materialize_ttl_after_modify = 0")
    if not days and f"TTL toDateTime({column})" in declared:
        store.command(f"ALTER TABLE {table} REMOVE TTL")


def _set_column(store: Store, table: str, column: str, days: int) -> None:
    table, declared = _declared(store, table)
    # A column's declaration goes on to the next name in backticks, or to the end of them all.
    declared = re.split(r"`| INDEX |\) ENGINE ", declared.partition(f"`{column}` ")[2])[0]
    rule = f"TTL toDateTime(start_time) + toIntervalDay({days})"
    if days and rule not in declared:
        store.command(f"ALTER TABLE {table} MODIFY COLUMN {column} {rule} SETTINGS materialize_ttl_after_modify = 0")
    if not days and " TTL " in declared:
        store.command(f"ALTER TABLE {table} MODIFY COLUMN {column} REMOVE TTL")


def _declared(store: Store, table: str) -> tuple[str, str]:
    """Where the table's rows are, and how that is declared: on a cluster, in the shards' own tables."""
    rows = store.select(
        "SELECT name, create_table_query FROM system.tables"
        f" WHERE database = currentDatabase() AND name IN ('{table}', '{table}_local') ORDER BY name DESC LIMIT 1"
    )
    name, declared = rows[0]
    return (f"{name} ON CLUSTER '{{cluster}}'" if name != table else table), str(declared)
