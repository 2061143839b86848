"""Rows of one response that two instances on one store inserted at the same moment: neither saw the other's row.

Each instance remembers where its rows are and compares them once more after some seconds. The insert that ends last has its second look
after both rows are visible, so no double row stays; until then both count. If both instances supersede a row, they write the same row.
Only an instance that is killed before its second look, and inserted last, leaves a double row. The module writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from legato_ingest.write.one_response import STORED_MAX, Place, Responses
from legato_ingest.write.recordings import Recording, losers

__all__ = ["SecondLook"]

# Rows of one query, which also returns these rows themselves; it returns 20,000 at most.
_PLACES_MAX = 5_000
# Rows that are remembered while the inserts after theirs fail: some 20 MB.
_REMEMBERED_MAX = 10 * STORED_MAX
_COLUMNS = ("tenant", "trace_id", "start_time", "response_id", "span_id")


class SecondLook:
    """The rows that are to be compared again. ``after_s``: how long after their insert; None for a store with one instance only.

    Rows of all tenants are remembered: another instance may know only later that a tenant has a foreign emitter. Used by the committer's
    thread only.
    """

    def __init__(self, responses: Responses, after_s: float | None) -> None:
        self._responses, self._after_s = responses, after_s
        self._rows: list[pa.Table] = []
        self._due_s = 0.0

    def add(self, inserted: Sequence[pa.Table]) -> None:
        """Remember rows that were just inserted. More rows than one comparison takes make it due at once."""
        rows = [each.select(_COLUMNS) for each in inserted if each.num_rows] if self._after_s is not None else []
        if not rows:
            return
        if not self._rows:
            self._due_s = time.monotonic() + (self._after_s or 0.0)
        self._rows += rows
        remembered = sum(each.num_rows for each in self._rows)
        if remembered >= STORED_MAX:
            self._due_s = 0.0
        if remembered > _REMEMBERED_MAX:
            self._keep_newest()

    def due_in_s(self) -> float | None:
        """Return in how many seconds the rows should be compared; None without any."""
        return max(0.0, self._due_s - time.monotonic()) if self._rows else None

    def postpone(self) -> None:
        """Compare the newest rows later: the store does not answer."""
        if self._rows:
            self._keep_newest()
        self._due_s = time.monotonic() + (self._after_s or 0.0)

    def _keep_newest(self) -> None:
        rows = pa.concat_tables(self._rows)
        self._rows = [rows.slice(max(0, rows.num_rows - STORED_MAX))]

    def forget(self) -> None:
        """Begin anew: the rows were compared, or the store refuses the comparison."""
        self._rows = []

    def lost(self) -> list[tuple[Recording, Recording]]:
        """Return (loser, winner) of each response that has several rows in the store. Raises ``StoreError``."""
        rows = pa.concat_tables(self._rows)
        rows = rows.filter(pc.is_in(rows["tenant"], pa.array(sorted(self._responses.foreign_tenants()), pa.string())))
        starts_ns = rows["start_time"].cast(pa.int64()).to_pylist()
        columns = (rows[name].to_pylist() for name in ("tenant", "trace_id", "response_id"))
        places = [Place(tenant, trace, start_ns, response) for tenant, trace, response, start_ns in zip(*columns, starts_ns, strict=True)]
        parts = (places[first : first + _PLACES_MAX] for first in range(0, len(places), _PLACES_MAX))
        # The rows of one response may be in several parts.
        stored = {each.key: each for part in parts for each in self._responses.stored(part)}
        return losers(stored.values())

    def counted(self, lost: Sequence[tuple[Recording, Recording]]) -> list[tuple[Recording, Recording]]:
        """Return the pairs with a loser that this instance inserted: the instance that did counts it."""
        keys = {
            key for rows in self._rows for key in zip(*(rows[name].to_pylist() for name in ("tenant", "trace_id", "span_id")), strict=True)
        }
        return [pair for pair in lost if pair[0].key in keys] if lost else []
