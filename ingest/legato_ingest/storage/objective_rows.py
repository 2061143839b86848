"""The rows of the table `objectives`: the objectives that apply, and a new version when they have changed.

A version is written as a whole, so a reader sees either the earlier objectives or all new ones. The module reads no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from legato_ingest.objectives import Objective
from legato_ingest.storage.sql import unquoted
from legato_ingest.storage.store import Store
from legato_ingest.storage.watermark import now_ms

__all__ = ["applied", "apply"]

_TEXTS = ("tenant", "name", "service", "model", "route")
_APPLIED = f"""
SELECT toUnixTimestamp64Milli(applied_at), target, gap_limit_us, first_output_limit_us, {", ".join(_TEXTS)}
FROM objectives
WHERE applied_at = (SELECT max(applied_at) FROM objectives)
ORDER BY rank"""


def applied(store: Store) -> tuple[Objective, ...]:
    """Return the objectives that apply, in their order; none before the first version."""
    return _read(store)[1]


def apply(store: Store, objectives: Sequence[Objective]) -> bool:
    """Write the objectives as a new version if they differ from those that apply. Return whether they differ."""
    before_ms, present = _read(store)
    # The store has whole µs.
    if present == tuple(each.model_copy(update=_limits(each.gap_limit_us, each.first_output_limit_us)) for each in objectives):
        return False
    count = len(objectives)
    # Later than the version before even if the clock was set back.
    times = pa.array([max(now_ms(), before_ms + 1)] * count, pa.timestamp("ms", "UTC"))
    columns = {
        "applied_at": times,
        "rank": pa.array(range(count), pa.uint16()),
        **{name: [getattr(each, name) for each in objectives] for name in (*_TEXTS, "target")},
        "gap_limit_us": pa.array([each.gap_limit_us for each in objectives], pa.uint64()),
        "first_output_limit_us": pa.array([each.first_output_limit_us for each in objectives], pa.uint64()),
    }
    store.insert("objectives", pa.table(columns))
    return True


def _read(store: Store) -> tuple[int, tuple[Objective, ...]]:
    """Return the time (Unix ms) at which the present version was applied, 0 without one, and its objectives."""
    rows = store.select(_APPLIED)
    return max((int(row[0]) for row in rows), default=0), tuple(_objective(row) for row in rows)


def _objective(row: Sequence[Any]) -> Objective:
    """Return the objective of a row. It is not validated: a newer version may have written what this one would refuse."""
    _, target, gap_us, first_us, *texts = row
    fields: dict[str, Any] = dict(zip(_TEXTS, (str(unquoted(text)) for text in texts), strict=True))
    fields |= {"target": target, **_limits(gap_us, first_us)}
    return Objective.model_construct(**fields)


def _limits(gap_us: int, first_output_us: int) -> dict[str, float]:
    return {"gap_limit_ms": gap_us / 1_000, "first_output_limit_ms": first_output_us / 1_000}
