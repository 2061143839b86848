"""Tests of `legato slo`: the results of the alert rules' own statements."""

from __future__ import annotations

import json
import pathlib
import time

import pyarrow as pa
import pytest
from rich.console import Console

from helpers.servers.reading import reading
from legato_ingest.cli.client import Reader
from legato_ingest.cli.slo import fetch, render
from legato_ingest.errors import LegatoError
from legato_ingest.storage import Store

DASHBOARDS = pathlib.Path(__file__).resolve().parents[3] / "dashboards"


def minute(store: Store, judged: int, bad: int, service: str = "s\x1b[31m") -> None:
    """A rollup of the last minute with this number of bad streams, each of a different end user."""
    now_s = int(time.time()) - 60
    row = {
        "service_name": pa.array([service]),
        "vantage": pa.array(["client"]),
        "minute": pa.array([now_s // 60 * 60]).cast(pa.timestamp("s", "UTC")),
        "rolled_at": pa.array([1]).cast(pa.timestamp("ms", "UTC")),
        "streams": pa.array([judged], pa.uint32()),
        "judged": pa.array([judged], pa.uint32()),
        "good": pa.array([judged - bad], pa.uint32()),
        "judged_clients": pa.array([[(reader + 1, 1) for reader in range(judged)]], pa.map_(pa.uint64(), pa.uint32())),
        "bad_service_clients": pa.array([[(reader + 1, 1) for reader in range(bad)]], pa.map_(pa.uint64(), pa.uint32())),
    }
    store.insert("stream_minutes", pa.table(row))


def page(rows: list[dict[str, object]], objective: float = 0.99) -> str:
    """The printed text."""
    console = Console(width=140)
    with console.capture() as capture:
        console.print(render(rows, objective), markup=False)
    return capture.get()


def test_a_burning_service_is_first(store: Store) -> None:
    """Its rate, limit, counts and window, and that the rule fires; a budget without bad streams is counted, not listed."""
    minute(store, 200, 100)
    minute(store, 200, 0, service="calm")
    with reading(store) as url:
        rows = fetch(Reader(url), DASHBOARDS, 0.99)
    first = rows[0]
    assert (first["rule"], first["severity"], first["firing"], first["burn_rate"]) == ("itl_burn", "page", True, 50)
    assert [int(first[name]) for name in ("bad", "streams", "users_bad", "users")] == [100, 200, 100, 200]
    shown = page(rows)
    assert "ITL goodput" in shown and "fires" in shown and "50.00" in shown and "1 h" in shown and "calm" not in shown
    assert "100 of 200 streams were bad in the last 60 minutes (100 of 200 end users)" in " ".join(shown.split())
    assert "a month's error budget in 14 hours" in " ".join(shown.split()) and "a page of the same service fires" in shown
    assert "\x1b" not in shown and "s�[31m" in shown and "budgets have no bad streams" in shown
    assert json.loads(json.dumps(rows)) == rows


def test_the_objective_is_an_option(store: Store) -> None:
    """Half of the streams bad is one budget when half may be bad."""
    minute(store, 200, 100)
    with reading(store) as url:
        rows = fetch(Reader(url), DASHBOARDS, 0.5)
    assert max(row["burn_rate"] for row in rows) == 1 and not [row for row in rows if row["firing"] and row["severity"] == "page"]


def test_an_empty_store_has_no_burn_rates(store: Store) -> None:
    """The text states it."""
    with reading(store) as url:
        rows = fetch(Reader(url), DASHBOARDS, 0.99)
    assert rows == [] and "no budget burns" in page(rows)


def test_missing_rules_are_an_error(store: Store, tmp_path: pathlib.Path) -> None:
    """Another folder, or a file without an objective: the error names what was expected."""
    with reading(store) as url:
        with pytest.raises(LegatoError, match="LEGATO_DASHBOARDS_DIR"):
            fetch(Reader(url), tmp_path, 0.99)
        (tmp_path / "alerts").mkdir()
        (tmp_path / "alerts" / "itl_burn.sql").write_text("SELECT 1")
        with pytest.raises(LegatoError, match="0 lines, expected 1"):
            fetch(Reader(url), tmp_path, 0.99)
