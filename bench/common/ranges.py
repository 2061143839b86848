"""The range of a panel that ends now, with points as long as Grafana makes them. The module expands no SQL."""

from __future__ import annotations

import time

from legato_ingest.dashboards.macros import Range

__all__ = ["until_now"]

_POINTS = 300
# The lengths of a point that Grafana rounds to, in s, from a minute on, which is the shortest row of a rollup.
_POINTS_S = (60, 120, 300, 600, 900, 1_200, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)


def until_now(length_s: int) -> Range:
    """Return the last ``length_s`` seconds, at most 300 days, in points of which there are at most some 300."""
    now_ms = time.time_ns() // 1_000_000
    point_s = next(each for each in _POINTS_S if each >= length_s // _POINTS)
    return Range(now_ms - 1000 * length_s, now_ms, 1000 * point_s)
