"""How far the attribution has come: the time of receipt up to which streams are judged, for each shard of them.

Several instances that share a server divide the streams into shards (``attribution.load.shards``), and each records the progress of its
own. The module judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from legato_ingest.storage.store import Store

__all__ = ["ALL_SHARDS", "SHARDS", "judged_until_ms", "least_until_ms"]

SHARDS = 64
"""Number of shards. A set of them is a number: bit b stands for shard b."""
ALL_SHARDS = (1 << SHARDS) - 1
# Few sets are different: one for each number of instances and each place among them.
_PROGRESS = "SELECT shards, toUnixTimestamp64Milli(max(until)) FROM attribution_runs GROUP BY shards"


def judged_until_ms(store: Store, shards: int = ALL_SHARDS) -> int:
    """Return the time of receipt (Unix ms) up to which all streams of these shards are judged; 0 before the first run."""
    return least_until_ms([(int(own), int(until_ms)) for own, until_ms in store.select(_PROGRESS)], shards)


def least_until_ms(runs: Iterable[tuple[int, int]], shards: int) -> int:
    """Return the least progress of these shards. ``runs``: sets of shards, each with the time (ms) up to which it was judged."""
    least, left = None, shards
    for own, until_ms in sorted(runs, key=lambda run: -run[1]):
        if own & left:
            least, left = until_ms, left & ~own
    return max(0, least or 0) if not left else 0
