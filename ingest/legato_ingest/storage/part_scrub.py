"""Find parts of an embedded store with contents that were damaged after they were written.

The engine compares the hash of a block with its contents when a query reads the block, and then every query of the table fails. When it
loads a table it silently leaves out a part that it cannot load. So every part is read again once in a while and compared with its hashes. A
damaged part is detached: it stays on the disk, its rows are no longer shown, and everything else is. ``part_list`` finds what has no hash,
and parts that are missing. The module repairs nothing.
"""

from __future__ import annotations

import logging
import pathlib
import re
import threading
import time
from collections.abc import Sequence

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from legato_ingest.storage.blocks import Blocks, is_covered
from legato_ingest.storage.client_errors import code_of
from legato_ingest.storage.store import PartFault

__all__ = ["DAMAGED", "PartScrub", "set_aside_by_engine"]

_log = logging.getLogger("legato")
DAMAGED = frozenset((40, 107, 226, 228, 246, 271, 432))
"""ClickHouse's codes for data that is not what was written: CHECKSUM_DOESNT_MATCH, FILE_DOESNT_EXIST, NO_FILE_IN_DATA_PART,
BAD_SIZE_OF_FILE_IN_DATA_PART, CORRUPTED_DATA, CANNOT_DECOMPRESS and UNKNOWN_CODEC."""
# Parts that were written since the store was opened are read at this age: younger ones are often merged away before.
_AGE_S = 600
_PARTS = """
SELECT table, name FROM system.parts
WHERE active AND database = currentDatabase() AND (toUnixTimestamp(modification_time) <= {until_s} OR name IN ({suspects}))
ORDER BY name IN ({suspects}) DESC, partition_id DESC, table, name"""
_SET_ASIDE = "SELECT table, name, reason FROM system.detached_parts WHERE database = currentDatabase() ORDER BY table, name"
_ACTIVE = "SELECT table, name FROM system.parts WHERE active AND database = currentDatabase()"
_PART_FOLDER = re.compile(r"while reading from part (/[^\s()]+)")
# Of so many suspects at most the names are kept.
_SUSPECTS_MAX = 64
# The rest of ClickHouse's message is advice.
_ADVICE = "The mismatch is caused by"


class PartScrub:
    """Reads parts again. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checked: set[tuple[str, str]] = set()
        self._suspects: list[str] = []
        self._opened_s = int(time.time())

    def suspect_of_reader(self, message: str) -> bool:
        """Take note of an error of a reader's statement, if it names the folder of a part; return whether it does.

        The text of the error may be the reader's, who does not know the folders.
        """
        names = [each.name for each in map(pathlib.Path, _PART_FOLDER.findall(message)) if Blocks.names_in(each.name) and each.is_dir()]
        if names:
            self.suspect(" ".join(names))
        return bool(names)

    def suspect(self, message: str) -> None:
        """Take note of an error about damaged data: the parts that it names are read next; if it names none, all are read again."""
        with self._lock:
            names = Blocks.names_in(message)
            self._suspects = [*dict.fromkeys([*names, *self._suspects])][:_SUSPECTS_MAX]
            self._checked = {each for each in self._checked if each[1] not in self._suspects} if names else set()

    def run(self, client: Client, seconds: float) -> list[PartFault]:
        """Read suspects, and for so long parts that were not read before, the newest first. Damaged ones are detached and returned."""
        until_s, faults = time.monotonic() + seconds, list[PartFault]()
        suspects, others = self._next(client)
        for table, name in (*suspects, *others):
            if (table, name) not in suspects and time.monotonic() >= until_s:
                break
            try:
                fault = _fault_of(client, table, name)
                if fault is not None:
                    client.command(f"ALTER TABLE {table} DETACH PART '{name}'")
                    faults.append((table, name, fault))
            except ClickHouseError as error:
                # It was merged away, for example; the others are read.
                _log.info("part %s of table %s was not checked: %s", name, table, error)
            with self._lock:
                self._checked.add((table, name))
        return faults

    def _next(self, client: Client) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return the suspects, and the other parts that were not read."""
        with self._lock:
            suspects, self._suspects = self._suspects, []
        listed = ", ".join(f"'{name}'" for name in suspects) or "''"
        sql = _PARTS.format(until_s=max(self._opened_s, int(time.time()) - _AGE_S), suspects=listed)
        parts = [(str(table), str(name)) for table, name in client.query(sql).result_rows]
        with self._lock:
            self._checked.intersection_update(parts)
            unchecked = [each for each in parts if each not in self._checked]
        return [each for each in unchecked if each[1] in suspects], [each for each in unchecked if each[1] not in suspects]


def _fault_of(client: Client, table: str, name: str) -> str | None:
    """Return what is damaged in a part, or ``None``. A part that cannot be read now, or has a strange file, is left in place."""
    rows = client.query(f"CHECK TABLE {table} PART '{name}' SETTINGS check_query_single_value_result = 0").result_rows
    _, passed, message = rows[0]
    if int(passed):
        return None
    if code_of(str(message)) not in DAMAGED:
        _log.warning("part %s of table %s did not pass its check, and is left in place: %s", name, table, message)
        return None
    return str(message).partition(_ADVICE)[0].strip()


def set_aside_by_engine(client: Client, known: Sequence[PartFault]) -> list[PartFault]:
    """Return the detached parts with rows that no active part has, without the ``known`` ones: the engine could not load them.

    A merged part that was not completely written is detached, too, but the parts that it had replaced are then active again.
    """
    detached = [(str(table), str(name), str(reason)) for table, name, reason in client.query(_SET_ASIDE).result_rows]
    new = [each for each in detached if not any(each[0] == table and each[1].endswith(name) for table, name, _ in known)]
    active: dict[str, list[str]] = {}
    for table, name in client.query(_ACTIVE).result_rows if new else ():
        active.setdefault(str(table), []).append(str(name))
    return [(table, name, reason or "detached") for table, name, reason in new if not is_covered(name, active.get(table, ()))]
