"""Tests of `legato slo`: the results of the alert rules' own statements."""

from __future__ import annotations

import json
import pathlib
import time
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from rich.console import Console

from helpers.servers.reading import reading
from legato_ingest.cli.client import Reader
from legato_ingest.cli.slo import BurnRates, as_json, fetch, render
from legato_ingest.errors import LegatoError
from legato_ingest.objectives import Objective
from legato_ingest.storage import Store
from legato_ingest.storage.objective_rows import apply

DASHBOARDS = pathlib.Path(__file__).resolve().parents[3] / "dashboards"


def minute(store: Store, judged: int, bad: int, service: str = "s\x1b[31m", objective: str = "default") -> None:
    """A rollup of the last minute with this number of bad streams, each of a different end user."""
    now_s = int(time.time()) - 60
    row = {
        "service_name": pa.array([service]),
        "objective": pa.array([objective]),
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


def page(found: BurnRates) -> str:
    """The printed text."""
    console = Console(width=140)
    with console.capture() as capture:
        console.print(render(found), markup=False)
    return capture.get()


def test_a_burning_service_is_first(store: Store) -> None:
    """Its rate, limit, counts and window, and that the rule fires; a budget without bad streams is counted, not listed."""
    minute(store, 200, 100)
    minute(store, 200, 0, service="calm")
    with reading(store) as url:
        found = fetch(Reader(url), DASHBOARDS)
    rows = as_json(found)
    first = rows[0]
    assert (first["rule"], first["severity"], first["firing"], first["burn_rate"]) == ("itl_burn", "page", True, 50)
    assert [int(first[name]) for name in ("bad", "streams", "users_bad", "users")] == [100, 200, 100, 200]
    shown = page(found)
    assert shown.splitlines()[1].rstrip() == "firing: 1 page"
    assert "ITL goodput" in shown and "fires" in shown and "50.00" in shown and "1 h" in shown and "calm" not in shown
    assert "100 of 200 streams were bad in the last 60 minutes (100 of 200 end users)" in " ".join(shown.split())
    begin_s = int(first["from_ms"]) // 1_000
    for words, at_s in (("blame", begin_s), ("incident", begin_s - 600)):
        assert f"\n  legato {words} --from {datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M} --service 's\\u001b[31m'" in shown
    assert "a month's error budget in 14 hours" in " ".join(shown.split()) and "a page of the same service fires" in shown
    assert "\x1b" not in shown and "s\\u001b[31m" in shown and "budgets have no bad streams" in shown
    assert json.loads(json.dumps(rows)) == rows


def test_each_objective_has_budgets(store: Store) -> None:
    """Half of the streams bad is the budget of an objective that allows half, and 50 times that of the default or of a removed one."""
    apply(store, [Objective(name="batch", service="batch-*", target=0.5), Objective(name="default")])
    minute(store, 200, 100, service="batch-1", objective="batch")
    minute(store, 200, 100, service="shop")
    minute(store, 200, 100, service="old", objective="removed-since")
    with reading(store) as url:
        found = fetch(Reader(url), DASHBOARDS)
    rows = found.rows
    rates = {(row["service"], row["objective"]): row["burn_rate"] for row in rows if row["bad"] and row["severity"] == "page"}
    assert rates == {("batch-1", "batch"): 1, ("shop", "default"): 50, ("old", "removed-since"): 50}
    assert {row["service"] for row in rows if row["firing"] and row["severity"] == "page"} == {"shop", "old"}
    shown = page(found)
    assert "batch: 50 % of the streams should be good" in shown and "shop · client · default" in shown


def test_an_empty_store_has_no_burn_rates(store: Store) -> None:
    """The text states it."""
    with reading(store) as url:
        found = fetch(Reader(url), DASHBOARDS)
    assert as_json(found) == [] and page(found).startswith("no stream ended in the last three days: no budget burns")


def test_missing_rules_are_an_error(store: Store, tmp_path: pathlib.Path) -> None:
    """Another folder, or a file that does not read the clock: the error names what was expected."""
    with reading(store) as url:
        with pytest.raises(LegatoError, match="LEGATO_DASHBOARDS_DIR"):
            fetch(Reader(url), tmp_path)
        (tmp_path / "alerts").mkdir()
        (tmp_path / "alerts" / "itl_burn.sql").write_text("SELECT 1")
        with pytest.raises(LegatoError, match="0 lines, expected 1"):
            fetch(Reader(url), tmp_path, at_s=1_700_000_000)


def test_one_service_and_an_earlier_moment(store: Store) -> None:
    """`--service` and `--tenant` leave out others; `--at` shows what the rules saw then: an hour ago nothing had burned."""
    minute(store, 200, 100, service="hot")
    minute(store, 200, 100, service="other")
    with reading(store) as url:
        reader = Reader(url)
        nothing = fetch(reader, DASHBOARDS, service="hot", tenant="acme")
        then = fetch(reader, DASHBOARDS, at_s=int(time.time()) - 3_600)
        soon = fetch(reader, DASHBOARDS, service="hot", at_s=int(time.time()) + 120).rows
    assert then.rows == [] and {row["service"] for row in soon} == {"hot"} and any(row["firing"] for row in soon)
    # A filter or an earlier moment without streams says nothing of the others.
    assert page(nothing).startswith("no stream of the service hot of the tenant acme ended in the last three days: no budget burns")
    (shown,) = {line for line in page(BurnRates(soon, at_s=then.at_s)).splitlines() if "legato blame" in line}
    assert f" --to {datetime.fromtimestamp(then.at_s + 59, UTC):%Y-%m-%dT%H:%M} --service hot" in shown
    moment = f"{datetime.fromtimestamp(then.at_s, UTC):%Y-%m-%d %H:%M:%S}"
    assert page(then).startswith(f"no stream ended in the three days before {moment} UTC: no budget burns")


def test_a_service_is_found_among_thousands(store: Store) -> None:
    """Its rows are the last of 2,200, beyond the limit of a statement."""
    names = [f"svc-{number:04d}" for number in range(1_100)]
    now_s = int(time.time()) // 60 * 60 - 60
    columns = {"service_name": pa.array([*names, "zz 'checkout'"]), "vantage": pa.array(["client"] * 1_101)}
    columns |= {name: pa.array([10] * 1_101, pa.uint32()) for name in ("streams", "judged", "good")}
    columns |= {
        "minute": pa.array([now_s] * 1_101, pa.timestamp("s", "UTC")),
        "rolled_at": pa.array([1] * 1_101, pa.timestamp("ms", "UTC")),
    }
    store.insert("stream_minutes", pa.table(columns))
    with reading(store) as url:
        rows = fetch(Reader(url), DASHBOARDS, service="zz 'checkout'").rows
    assert {row["service"] for row in rows} == {"zz 'checkout'"} and len(rows) == 5
