"""The alert rules on the past of the demo: its incident fires one rule, which names the cause; without the incident no rule pages."""

from __future__ import annotations

import pathlib
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dashboards.alerts.rules import RULES
from demo.past import Placement, bodies, placements
from helpers.builders.batches import received_spans
from helpers.builders.spans import SECOND_NS
from helpers.dashboards.minutes import rule_rows
from helpers.servers.reading import open_store
from helpers.servers.stores import copy_of, migrated
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.causes import NAMES
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import EmbeddedStore, Store

Row = dict[str, Any]
AGE_S_MAX = 3_600
# The longest window of a rule over streams is three days; older streams cannot change what a rule returns.
RULES_SEE_NS = (3 * 86_400 + 3_600) * SECOND_NS


@dataclass(frozen=True, slots=True)
class Incident:
    """Rows of the rules on the past of the demo: of each rule at its end, and of the ITL rule by minutes since the incident began."""

    rules: Mapping[str, Sequence[Row]]
    minutes: Mapping[int, Sequence[Row]]


def send(store: Store, made: Sequence[Placement], now_ns: int) -> None:
    """Store a past as the ingest does, with one insert for each table."""
    requests = (ExportTraceServiceRequest.FromString(body) for body, _ in bodies(made))
    batch = Batch.joined([received_spans(each, tenant="", now_ns=now_ns, limits=Limits()) for each in requests])
    assert not batch.rejected.num_rows
    for table, rows in (("stream_revs", batch.revs), ("engine_steps", batch.steps), ("engine_requests", batch.requests)):
        store.insert(table, rows)


def _build(folder: pathlib.Path) -> None:
    """Write the folder `store` with the past of the demo and a KV incident until now, judged and rolled up; and the file `times`."""
    now_ns = time.time_ns()
    made = [each for each in placements(now_ns, "kv") if now_ns - each.begin_ns < RULES_SEE_NS]
    migrated(folder / "store")
    store = EmbeddedStore(folder / "store")
    try:
        send(store, made, now_ns)
        AttributionWorker(store, load(attribute_grace_s=0), Metrics()).again(0)
        RollupWorker(store, load(), Metrics()).step()
    finally:
        store.close()
    begin_ns = min(each.begin_ns for each in made if each.name == "kv")
    (folder / "times").write_bytes(pickle.dumps((now_ns // SECOND_NS, begin_ns // SECOND_NS)))


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Incident:
    """The rules on a store with the incident, which is closed again."""
    folder = tmp_path_factory.mktemp("incident") / "built"
    copy_of("incident", _build, folder, AGE_S_MAX)
    now_s, begin_s = pickle.loads((folder / "times").read_bytes())
    store = EmbeddedStore(folder / "store")
    try:
        (freezing,) = (rule.sql for rule in RULES if rule.name == "itl_burn")
        minutes = {minute: rule_rows(store, freezing, begin_s + 60 * minute) for minute in (-1, 2, 4, 6, 8)}
        return Incident({rule.name: rule_rows(store, rule.sql, now_s) for rule in RULES}, minutes)
    finally:
        store.close()


def test_the_incident_is_one_alert_with_its_cause(incident: Incident) -> None:
    """`itl_burn` pages for the shop, at its clients because of KV pressure, and at its gateway; no other rule fires."""
    assert {name for name, rows in incident.rules.items() if any(row["firing"] for row in rows)} == {"itl_burn"}
    fired = {(row["service"], row["vantage"]): row for row in incident.rules["itl_burn"] if row["firing"]}
    assert {key for key, row in fired.items() if row["severity"] == "page"} == {("shop", "client"), ("shop-gateway", "server")}
    assert {service for (service, _), row in fired.items() if row["severity"] == "ticket"} <= {"mobile", "mobile-gateway"}
    page = fired[("shop", "client")]
    assert NAMES[page["cause_number"] - 1] == "kv_pressure" and page["cause_share"] > 0.5
    assert page["burn_rate"] > 14.4 and page["clients"] > 100 and page["bad"] > 100


def test_the_incident_pages_within_minutes(incident: Incident) -> None:
    """The rule does not page before the incident or in its first 2 minutes, and pages after 8 minutes."""
    pages = {minute: any(row["firing"] and row["severity"] == "page" for row in rows) for minute, rows in incident.minutes.items()}
    assert not pages[-1] and not pages[2] and pages[8], pages


def test_without_the_incident_no_rule_pages(tmp_path: pathlib.Path) -> None:
    """The last six hours of the shop in the demo, with an incident two hours ago: tickets at most."""
    now_ns = time.time_ns()
    with open_store(tmp_path / "store") as store:
        send(store, [each for each in placements(now_ns, "") if each.service == "shop"], now_ns)
        RollupWorker(store, load(), Metrics()).step()
        rows = {rule.name: rule_rows(store, rule.sql, now_ns // SECOND_NS) for rule in RULES}
    assert {row.get("severity", "ticket") for each in rows.values() for row in each if row["firing"]} <= {"ticket"}
    assert len(rows[RULES[0].name]) == 4
