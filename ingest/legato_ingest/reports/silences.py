"""The silences of running streams that last now.

The row of a running stream is its newest snapshot, which is often older than its silence. The SDK reports the silence apart from it
(view ``stalled_streams``). This module adds the one to the other; it judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from legato_ingest.reports.rows import Row, Run

__all__ = ["add_silences", "silence_end_us"]

_SILENCES = """
SELECT tenant, lower(hex(trace_id)) AS trace, lower(hex(span_id)) AS span, gap_start_us, silence_us
FROM stalled_streams
WHERE has({traces:Array(String)}, lower(hex(trace_id)))
"""


def add_silences(run: Run, rows: Sequence[dict[str, Any]]) -> None:
    """Add ``silence`` to each recording: its ``gap_start_us`` (0: no content so far) and ``silence_us``, or None.

    The rows have ``tenant``, ``trace``, ``span`` and ``outcome``. Raises what ``run`` raises.
    """
    traces = sorted({row["trace"] for row in rows if row["outcome"] == "running"})
    found = run(_SILENCES, {"traces": traces}) if traces else []
    of = {_key(row): {name: int(row[name]) for name in ("gap_start_us", "silence_us")} for row in found}
    for row in rows:
        row["silence"] = of.get(_key(row)) if row["outcome"] == "running" else None


def silence_end_us(row: Row) -> int:
    """Return the time to which a recording is known to be silent, in µs since its start; 0: it is not silent."""
    silence = row.get("silence")
    return silence["gap_start_us"] + silence["silence_us"] if silence else 0


def _key(row: Row) -> tuple[str, str, str]:
    return row["tenant"], row["trace"], row["span"]
