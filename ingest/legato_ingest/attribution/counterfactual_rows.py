"""From judged gaps to rows of `replays`: each stalled stream replayed without each cause that took part in its stalls.

One idea: only where the server's sends and the engine's steps are known is there something to replay; other streams have no row, and
readers say of how many. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from legato_ingest.attribution.model.charge import CAUSES
from legato_ingest.attribution.model.counterfactual import DELAYS, ENGINE, Delay, replay
from legato_ingest.attribution.verdict_rows import Judged

__all__ = ["replay_rows"]

# A cause took part in a stall with this share of what was beyond its base.
_PART = 0.1
_SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("start_time", pa.timestamp("ns", "UTC")),
        ("trace_id", pa.binary(16)),
        ("span_id", pa.binary(8)),
        ("cause", pa.string()),
        ("judged_at", pa.timestamp("ms", "UTC")),
        ("engine_id", pa.string()),
        ("stalls", pa.uint32()),
        ("stalls_min", pa.uint32()),
        ("stalls_max", pa.uint32()),
        ("stalled_us", pa.uint64()),
        ("stalled_min_us", pa.uint64()),
        ("stalled_max_us", pa.uint64()),
    ]
)


def replay_rows(judged: Judged, worth: Sequence[int], stall_ns: int, judged_at_ns: int) -> pa.Table:
    """The rows of the streams that the gaps ``worth`` telling are of."""
    by_stream: dict[int, list[int]] = {}
    for row in worth:
        by_stream.setdefault(int(judged.owners[row]), []).append(row)
    rows = [row for owner, own in by_stream.items() for row in _of_stream(judged, owner, own, stall_ns, judged_at_ns)]
    return pa.Table.from_pylist(rows, _SCHEMA)


def _of_stream(judged: Judged, owner: int, own: list[int], stall_ns: int, judged_at_ns: int) -> Iterator[dict[str, Any]]:
    stream, engine = judged.streams[owner], judged.engine
    if engine is None or stream.server is None or engine.shift_ns is None:
        return
    beyond = np.maximum(judged.verdicts.excess_ns[own], 1)
    took_part = {name: judged.verdicts.parts[own, CAUSES.index(name)] >= _PART * beyond for name in (*ENGINE, *DELAYS)}
    gaps = judged.gaps
    delays = [
        Delay(name, int(gaps.start_ns[row]), int(gaps.end_ns[row]))
        for name in DELAYS
        for row, took in zip(own, took_part[name], strict=True)
        if took
    ]
    causes = [name for name, took in took_part.items() if took.any()]
    result = replay(stream.client, stream.server, engine.shift_ns + engine.shift_error_ns, engine.charges, causes, delays, stall_ns)
    if result is None:
        return
    stalls, stalled_ns, left = result
    for each in left:
        yield {
            "tenant": stream.tenant,
            "start_time": stream.start_ns,
            "trace_id": stream.trace_id,
            "span_id": stream.span_id,
            "cause": each.cause,
            "judged_at": judged_at_ns // 1_000_000,
            "engine_id": stream.engine_id,
            "stalls": stalls,
            "stalls_min": each.stalls_min,
            "stalls_max": each.stalls_max,
            "stalled_us": stalled_ns // 1000,
            "stalled_min_us": each.stalled_min_ns // 1000,
            "stalled_max_us": each.stalled_max_ns // 1000,
        }
