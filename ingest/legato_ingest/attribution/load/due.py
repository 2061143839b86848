"""Streams that are due to be judged, and the search for those that were received. `due_again` has those that later evidence is about.

The module reads which streams these are; it loads no stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from legato_ingest.attribution.load.learned_offsets import CLOCKS_APART_NS
from legato_ingest.attribution.load.shards import CELL_NS, CELLS_MAX, is_in_shards
from legato_ingest.storage import Store
from legato_ingest.storage.judged import ALL_SHARDS
from legato_ingest.storage.sql import after_until_ms, between_ns, integers, quoted_all, unquoted

__all__ = ["Due", "due_by_receipt", "joined", "listed", "merged"]

# The first and the last start of the new streams in each stretch of ``CLOCKS_APART_NS``.
_STARTS = f"""
SELECT toUnixTimestamp64Nano(min(start_time)), toUnixTimestamp64Nano(max(start_time)) FROM stream_revs
WHERE {{new}}
GROUP BY intDiv(toUnixTimestamp64Nano(start_time), {CLOCKS_APART_NS})"""
# If there are more stretches with new streams, one query covers all.
_STRETCHES_MAX = 16
_SPANS = """
SELECT tenant, toUnixTimestamp64Nano(start_time) AS start_ns, reinterpretAsUInt64(span_id) AS span FROM stream_revs
WHERE {inside} AND vantage IN ('client', 'server') AND {which}
LIMIT {most}"""
_SPANS_MAX = 16_000
_CELLS = f"""
SELECT DISTINCT intDiv(toUnixTimestamp64Nano(start_time), {CELL_NS}) FROM stream_revs
WHERE {{inside}} AND {{which}}
LIMIT {CELLS_MAX + 1}"""


@dataclass(frozen=True, slots=True)
class Due:
    """Streams that are due: they started between two times (ns, both included), and their rows satisfy conditions in SQL.

    ``keys`` and ``part`` are about columns of the primary key alone, so they may select rows before FINAL. ``part`` is short: ``keys`` may
    be some hundred KB, which all parts of the streams share.
    """

    low_ns: int
    high_ns: int
    which: str = "1"
    keys: str = "1"
    part: str = "1"

    def started(self, around_ns: int = 0) -> str:
        """Return the condition on the start, for streams that started up to ``around_ns`` earlier or later."""
        return between_ns("start_time", self.low_ns - around_ns, self.high_ns + around_ns)

    @property
    def inside(self) -> str:
        """The conditions on the primary key."""
        return f"{self.started()} AND {self.keys} AND {self.part}"

    def only(self, condition: str) -> Due:
        """Return those of the streams that satisfy a short condition on the primary key, such as one on `tenant`."""
        if condition == "1":
            return self
        return replace(self, part=condition if self.part == "1" else f"{self.part} AND {condition}")


def joined(due: Iterable[Due]) -> list[Due]:
    """Return the same streams with those of overlapping times as one, in order of time.

    A stream is then loaded and judged once although it is due for several reasons, and an engine's steps are read once for all its streams.
    """
    groups: list[list[Due]] = []
    end_ns = -1
    for each in sorted(due, key=lambda each: (each.low_ns, each.high_ns)):
        if groups and each.low_ns <= end_ns:
            groups[-1].append(each)
        else:
            groups.append([each])
        end_ns = max(end_ns, each.high_ns)
    return [_as_one(group) for group in groups]


def _as_one(group: Sequence[Due]) -> Due:
    """Return the streams of all. The text grows with the sum of theirs: joined two by two it grew with the square of it."""
    if len(group) == 1:
        return group[0]
    keys = " OR ".join(each.inside for each in group)
    all_rows = all(each.which == "1" for each in group)
    which = "1" if all_rows else "(" + " OR ".join(f"{each.inside} AND {each.which}" for each in group) + ")"
    return Due(min(each.low_ns for each in group), max(each.high_ns for each in group), which, f"({keys})")


def due_by_receipt(store: Store, after_ms: int, until_ms: int, shards: int = ALL_SHARDS, tenants: str = "1") -> list[Due]:
    """Return the streams of these shards with a vantage that was received between these times. ``tenants``: a condition on `tenant`.

    The other streams of their traces are included if they started within ``CLOCKS_APART_NS`` of a new one. A search for the traces among
    all streams took 0.3 s with ten million in the store.
    """
    new = f"{after_until_ms('received_at', after_ms, until_ms)} AND {tenants}"
    starts = ((int(low) - CLOCKS_APART_NS, int(high) + CLOCKS_APART_NS) for low, high in store.select(_STARTS.format(new=new)))
    stretches = merged(starts)
    if len(stretches) > _STRETCHES_MAX:
        stretches = [(stretches[0][0], stretches[-1][1])]
    return [due for low, high in stretches if (due := _of_new_traces(store, new, low, high, shards)) is not None]


def _of_new_traces(store: Store, new: str, low: int, high: int, shards: int) -> Due | None:
    """Return the streams that started between these times and belong to the trace of a new stream that did, too."""
    new_streams = f"FROM stream_revs WHERE {between_ns('start_time', low, high)} AND {new}"
    # The first condition alone decides, unless two tenants have one trace id, and takes a third of the time of the second.
    which = f"trace_id IN (SELECT trace_id {new_streams}) AND (tenant, trace_id) IN (SELECT tenant, trace_id {new_streams})"
    return listed(store, Due(low, high, which), shards)


def listed(store: Store, due: Due, shards: int = ALL_SHARDS) -> Due | None:
    """Return those of these shards by their tenants and span ids, and the times at which they started; ``None`` without any.

    Any stream of ten minutes may be due, and few are. The queries that follow then need neither read ten minutes nor repeat the condition.
    Too many streams for a list stay as they are.
    """
    table = store.select_arrow(_SPANS.format(inside=due.inside, which=due.which, most=_SPANS_MAX + 1))
    if not table.num_rows:
        return None
    is_list = table.num_rows <= _SPANS_MAX
    starts = table["start_ns"].to_pylist()
    tenants = map(unquoted, table["tenant"].unique().to_pylist())
    found = _of_spans(tenants, starts, table["span"].to_pylist()) if is_list else due
    if shards == ALL_SHARDS:
        return found
    cells = {start // CELL_NS for start in starts} if is_list else {int(cell) for (cell,) in store.select(_of(_CELLS, due))}
    if len(cells) > CELLS_MAX:
        return found
    return listed(store, replace(found, which=f"({found.which}) AND {is_in_shards(shards, cells)}"))


def _of(sql: str, due: Due) -> str:
    return sql.format(inside=due.inside, which=due.which)


def _of_spans(tenants: Iterable[str], starts: Sequence[int], spans: Sequence[int]) -> Due:
    """Return these spans. A span id is its sender's choice: another tenant's streams with the same ids are not due."""
    ids = integers(np.array(sorted(set(spans)), np.uint64))
    keys = f"tenant IN ({quoted_all(sorted(tenants))}) AND reinterpretAsUInt64(span_id) IN ({ids})"
    return Due(min(starts), max(starts), keys=keys)


def merged(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the stretches of time in order, overlapping ones as one."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(stretches):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return out
