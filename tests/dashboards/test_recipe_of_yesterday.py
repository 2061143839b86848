"""The query in docs/queries.md about yesterday counts the streams of that day alone."""

from __future__ import annotations

import time

import pyarrow as pa

from helpers.repo.repository import ROOT
from helpers.servers.reading import reading
from legato_ingest.cli.client import Reader
from legato_ingest.storage import Store

TEXT = (ROOT / "docs" / "queries.md").read_text(encoding="utf-8")
RECIPE = TEXT.partition("## Stalled time by cause, yesterday")[2].partition("```sql\n")[2].partition("```")[0]
DAY_S = 86_400


def test_yesterday_is_from_midnight_to_midnight(store: Store) -> None:
    """The first and the last second of the day count, those beside it do not."""
    today_s = int(time.time()) // DAY_S * DAY_S
    starts_s = {"host": today_s - DAY_S, "connection": today_s - 1, "scheduling": today_s, "kv_pressure": today_s - DAY_S - 1}
    charged = pa.array([[(cause, 2 * 10**9)] for cause in starts_s], pa.map_(pa.string(), pa.int64()))
    starts = pa.array([10**9 * start_s for start_s in starts_s.values()]).cast(pa.timestamp("ns", "UTC"))
    store.insert("verdicts", pa.table({"start_time": starts, "cause": pa.array(list(starts_s)), "parts": charged}))
    with reading(store) as url:
        rows = Reader(url).rows(RECIPE)
    assert {row["cause"]: row["stalled_s"] for row in rows} == {"host": 2, "connection": 2}
