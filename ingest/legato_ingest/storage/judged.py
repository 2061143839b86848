"""How far the attribution has come: the time of receipt up to which streams are judged, for each shard of them and each tenant.

Several instances that share a server divide the streams into shards (``attribution.load.shards``), and each records the progress of its
own. A tenant that is behind is listed in each row, so one row is the whole progress of its shards. The module judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from legato_ingest.storage.store import Store

__all__ = [
    "ALL_SHARDS",
    "SHARDS",
    "TIMES",
    "Key",
    "Progress",
    "aside_columns",
    "judged_until",
    "judged_until_ms",
    "least_of",
    "newest_runs",
]

SHARDS = 64
"""Number of shards. A set of them is a number: bit b stands for shard b."""
ALL_SHARDS = (1 << SHARDS) - 1
Key = str | int
"""A tenant by its name, or the tenants of a smallest part by its number (``tenant_parts``)."""
TIMES = "arrayMap(each -> toUnixTimestamp64Milli(each), mapValues({}))"
"""The times of a map as an array of Unix ms."""
# Few sets are different: one for each number of instances and each place among them. Of rows with one time the last has the least behind,
# because nothing is put aside without a later time; the clock that gave `ran_at` may have been set.
_PROGRESS = f"""
SELECT shards, toUnixTimestamp64Milli(others_until) AS others_ms, arrayMap(each -> hex(each), mapKeys(aside_tenants)),
    {TIMES.format("aside_tenants")} AS tenants_ms, mapKeys(aside_parts), {TIMES.format("aside_parts")} AS parts_ms
FROM attribution_runs
WHERE (shards, others_until) IN (SELECT shards, max(others_until) FROM attribution_runs GROUP BY shards)
ORDER BY arraySum(each -> others_ms - each, arrayConcat(tenants_ms, parts_ms))
LIMIT 1 BY shards"""
_MOMENT = pa.timestamp("ms", "UTC")


@dataclass(frozen=True, slots=True)
class Progress:
    """Until when (Unix ms) streams are judged: those of the tenants in ``aside`` until theirs, those of all others until ``others_ms``.

    A tenant that is in ``aside`` by its name and with its part is judged until the earlier one.
    """

    others_ms: int = 0
    aside: Mapping[Key, int] = field(default_factory=dict)

    @property
    def least_ms(self) -> int:
        """The time until which the streams of all tenants are judged."""
        return min([self.others_ms, *self.aside.values()])

    @property
    def behind_ms(self) -> int:
        """The sum of what the tenants in ``aside`` are behind the others."""
        return sum(self.others_ms - each for each in self.aside.values())


def newest_runs(store: Store) -> list[tuple[int, Progress]]:
    """Return sets of shards, each with the progress of its newest run (times of receipt). Raises ``StoreError``."""
    runs = []
    for own, others_ms, names, tenants_ms, numbers, parts_ms in store.select(_PROGRESS):
        aside: dict[Key, int] = {bytes.fromhex(str(name)).decode(): int(ms) for name, ms in zip(names, tenants_ms, strict=True)}
        aside |= {int(number): int(ms) for number, ms in zip(numbers, parts_ms, strict=True)}
        runs.append((int(own), Progress(int(others_ms), aside)))
    return runs


def judged_until(store: Store, shards: int = ALL_SHARDS) -> Progress:
    """Return the times of receipt up to which the streams of these shards are judged; 0 before the first run."""
    return least_of(newest_runs(store), shards)


def judged_until_ms(store: Store, shards: int = ALL_SHARDS) -> int:
    """Return the time of receipt (Unix ms) up to which all streams of these shards are judged; 0 before the first run."""
    return judged_until(store, shards).least_ms


def least_of(runs: Iterable[tuple[int, Progress]], shards: int) -> Progress:
    """Return the least progress of these shards. ``runs``: sets of shards, each with the progress of its newest run.

    Of each shard the run counts that came furthest: what it says was judged stays judged.
    """
    found, left = list[Progress](), shards
    for own, progress in sorted(runs, key=lambda run: (-run[1].others_ms, run[1].behind_ms)):
        if own & left:
            found.append(progress)
            left &= ~own
    if left or not found:
        return Progress()
    others_ms = max(0, min(each.others_ms for each in found))
    keys = {key for each in found for key in each.aside}
    aside = {key: max(0, min(each.aside.get(key, each.others_ms) for each in found)) for key in keys}
    return Progress(others_ms, {key: ms for key, ms in aside.items() if ms < others_ms})


def aside_columns(progress: Progress) -> dict[str, pa.Array]:
    """Return the columns of a row with this progress: who is behind."""
    by_name = [(key, ms) for key, ms in progress.aside.items() if isinstance(key, str)]
    by_number = [(key, ms) for key, ms in progress.aside.items() if isinstance(key, int)]
    return {"aside_tenants": _map_of(by_name, pa.string()), "aside_parts": _map_of(by_number, pa.uint32())}


def _map_of(items: list[tuple[Any, int]], key: pa.DataType) -> pa.Array:
    return pa.array([items], pa.map_(key, _MOMENT))
