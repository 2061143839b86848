"""`legato objectives show`: the error budgets by objective, tenant, service and vantage."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from helpers.servers.command import read_json, read_text
from helpers.servers.reading import reading
from legato_ingest.objectives import Objective
from legato_ingest.storage import Store
from legato_ingest.storage.objective_rows import apply


def hour(store: Store, tenant: str, judged: int, bad: int, objective: str = "default") -> None:
    """A rollup of an hour of the service "chat" of a tenant."""
    row = {
        "tenant": pa.array([tenant]),
        "service_name": pa.array(["chat"]),
        "objective": pa.array([objective]),
        "vantage": pa.array(["client"]),
        "minute": pa.array([(int(time.time()) - 7_200) // 3_600 * 3_600]).cast(pa.timestamp("s", "UTC")),
        "rolled_at": pa.array([1]).cast(pa.timestamp("ms", "UTC")),
        "streams": pa.array([judged], pa.uint32()),
        "judged": pa.array([judged], pa.uint32()),
        "good": pa.array([judged - bad], pa.uint32()),
    }
    store.insert("stream_hours", pa.table(row))


def test_two_tenants_with_one_service_have_two_budgets(store: Store) -> None:
    """One tenant used up its budget twice; the other one has all of it left."""
    hour(store, "acme", 1_000, 20)
    hour(store, "zeta", 3_000, 0)
    with reading(store) as url:
        rows, page = read_json(url, "objectives", "show"), read_text(url, "objectives", "show")
    assert [(row["stream_tenant"], int(row["streams"]), int(row["bad"])) for row in rows] == [("zeta", 3_000, 0), ("acme", 1_000, 20)]
    assert "acme · chat" in page and "used 2.0 times" in page and "100 %" in page


def test_an_overspent_budget_outlives_its_objective(store: Store) -> None:
    """After a rename, the streams that still count by the earlier name have a row with its target; other removed objectives have none."""
    earlier = [Objective(name=name, service="chat", target=0.9) for name in ("voice", "unused")]
    apply(store, [*earlier, Objective(name="default")])
    apply(store, [Objective(name="voice-eu", service="chat", target=0.9), Objective(name="default")])
    hour(store, "acme", 1_000, 200, "voice")
    with reading(store) as url:
        rows, page = read_json(url, "objectives", "show"), read_text(url, "objectives", "show")
    assert [(row["name"], row["is_removed"], int(row["bad"])) for row in rows] == [("voice-eu", 0, 0), ("default", 0, 0), ("voice", 1, 200)]
    assert rows[-1]["budget_left"] == pytest.approx(-1) and "voice (removed)" in " ".join(page.split()) and "used 2.0 times" in page
