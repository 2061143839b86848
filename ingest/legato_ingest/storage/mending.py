"""Undoes what a disk cut short: a table with a part that is not whole is taken away and read anew.

One idea: the engine sets a short part aside when it reads its folder, and takes up the parts that it had replaced, which stay for a while
(`parts.SOURCES_KEPT_S`). A table that is taken away is remembered by all handles of the store until it is back, as a query that still reads
it may keep it away. It finds no fault itself.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from legato_ingest.errors import StoreUnavailable
from legato_ingest.storage.parts import PartFault, Parts

__all__ = ["KILL_ALL", "attach", "folders_of", "mend"]

_log = logging.getLogger("legato")
_FOLDERS = "SELECT name, data_paths FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree'"
KILL_ALL = "KILL QUERY WHERE query NOT LIKE 'KILL QUERY%' ASYNC"
"""Ends every query that runs."""
# How long a table waits for those who read it, and after which share of it they are ended.
_PATIENCE_S, _POLITE_SHARE, _LOOK_S = 20.0, 0.25, 0.1


def folders_of(writer: Client) -> dict[str, list[str]]:
    """The folders of each table that has parts."""
    return {str(name): list(paths) for name, paths in writer.query(_FOLDERS).result_rows}


def mend(writer: Client, parts: Parts, folders: Mapping[str, Sequence[str]], faults: Sequence[PartFault]) -> None:
    """Read the tables of these faults anew. Raises ``StoreUnavailable`` while one cannot be brought back."""
    with parts.mending:
        tables = sorted({table for table, _, _ in faults} - parts.detached)
        for table in tables:
            parts.detached.add(table)
            try:
                writer.command(f"DETACH TABLE {table} SYNC")
            except ClickHouseError as error:
                # Taken away already, or it cannot be: `attach` finds out.
                _log.warning("%s could not be detached: %s", table, error)
        attach(writer, parts)
        for table, name, fault in faults:
            _log.warning("%s's part %s was not whole (%s) and is set aside", table, name, fault)
            for folder in folders[table]:
                parts.forget([folder])
                if os.path.isdir(os.path.join(folder, name)):
                    # The engine read it and found nothing amiss.
                    parts.accept(folder, name)


def attach(writer: Client, parts: Parts) -> None:
    """Bring back what was taken away. Raises ``StoreUnavailable`` while somebody still reads it."""
    with parts.mending:
        until_s, killed = time.monotonic() + _PATIENCE_S, False
        for table in sorted(parts.detached):
            while (said := _attached(writer, table)) is not None:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise StoreUnavailable(f"{table} is being read anew, and is not back yet: {said}")
                if not killed and left_s < (1 - _POLITE_SHARE) * _PATIENCE_S:
                    killed = True
                    writer.command(KILL_ALL)
                time.sleep(_LOOK_S)
            parts.detached.discard(table)
            parts.mended_s = time.monotonic()


def _attached(writer: Client, table: str) -> str | None:
    """Brings one table back; what the engine said where it did not."""
    try:
        if table in folders_of(writer):
            return None
        writer.command(f"ATTACH TABLE {table}")
    except ClickHouseError as error:
        return str(error)
    return None
