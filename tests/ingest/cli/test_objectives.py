"""`legato objectives show`: the error budgets by objective, tenant, service and vantage."""

from __future__ import annotations

import time

import pyarrow as pa

from helpers.servers.command import read_json, read_text
from helpers.servers.reading import reading
from legato_ingest.storage import Store


def hour(store: Store, tenant: str, judged: int, bad: int) -> None:
    """A rollup of an hour of the service "chat" of a tenant."""
    row = {
        "tenant": pa.array([tenant]),
        "service_name": pa.array(["chat"]),
        "objective": pa.array(["default"]),
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
