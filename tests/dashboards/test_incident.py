"""The alert rules on the past of the demo: its incident fires one rule, which names the cause; without the incident no rule pages."""

from __future__ import annotations

import pathlib
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from dashboards.alerts.burn import burn
from dashboards.alerts.rules import RULES
from demo.past import placements
from helpers.builders.spans import SECOND_NS
from helpers.dashboards.incident_past import copy_incident, send
from helpers.dashboards.minutes import rule_rows
from helpers.servers.reading import open_store
from legato_ingest.metrics import Metrics
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import EmbeddedStore

Row = dict[str, Any]


# The others show what runs now, by the clock of the store.
OF_PAST = [rule for rule in RULES if rule.name not in ("streams_stalled", "streams_unanswered")]
# The burn-rate rules with their longest window alone.
_TICKET = (("ticket", 1.0, 864, 72),)
THREE_DAYS = [
    burn("bad_service_clients", "shared", _TICKET, "1", "gap_max_us"),
    burn("bad_late_clients", "", _TICKET, "1", "gap_max_us"),
    burn("bad_reader_clients", "private", _TICKET, "1", "gap_max_us"),
]
# What `legato report` counts, over the same minutes.
REPORT = """
SELECT service_name AS service, vantage, count(streams.good) AS judged, countIf(streams.good = 1) AS good
FROM streams
WHERE toStartOfMinute(start_time) > now() - INTERVAL 3 DAY AND toStartOfMinute(start_time) <= now()
GROUP BY service, vantage"""
GAPS = """
SELECT lower(hex(trace_id)) AS trace, max(gap_max_us) AS gap
FROM streams
WHERE start_time > now() - INTERVAL 6 HOUR AND service_name = 'shop' AND vantage = 'client' AND gap_max_us IS NOT NULL
GROUP BY trace"""


@dataclass(frozen=True, slots=True)
class Incident:
    """Rows of the rules on the past of the demo: of each rule at its end, and of the ITL rule by minutes since the incident began.

    ``three_days`` has the rows of all burn-rate rules with a window of 3 days, ``report`` the streams of these days by service and vantage,
    ``gaps`` the longest gap (us) of the shop's client streams of the last 6 hours by trace id.
    """

    rules: Mapping[str, Sequence[Row]]
    minutes: Mapping[int, Sequence[Row]]
    begin_s: int
    three_days: Sequence[Row]
    report: Sequence[Row]
    gaps: Mapping[str, int]


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Incident:
    """The rules on a store with the incident, which is closed again."""
    folder, now_s, begin_s = copy_incident(tmp_path_factory.mktemp("incident") / "built")
    store = EmbeddedStore(folder)
    try:
        (freezing,) = (rule.sql for rule in RULES if rule.name == "itl_burn")
        minutes = {minute: rule_rows(store, freezing, begin_s + 60 * minute) for minute in (-1, 8)}
        rules = {rule.name: rule_rows(store, rule.sql, now_s) for rule in OF_PAST}
        three_days = [row for sql in THREE_DAYS for row in rule_rows(store, sql, now_s)]
        gaps = {row["trace"]: row["gap"] for row in rule_rows(store, GAPS, now_s)}
        return Incident(rules, minutes, begin_s, three_days, rule_rows(store, REPORT, now_s), gaps)
    finally:
        store.close()


def test_the_incident_is_one_alert_with_its_cause(incident: Incident) -> None:
    """`itl_burn` pages once, at the shop's clients because of KV pressure; no other rule fires.

    The gateway's rows of the same streams burn, too, and do not page again.
    """
    assert {name for name, rows in incident.rules.items() if any(row["firing"] for row in rows)} == {"itl_burn"}
    fired = {(row["service"], row["vantage"]): row for row in incident.rules["itl_burn"] if row["firing"]}
    assert {key for key, row in fired.items() if row["severity"] == "page"} == {("shop", "client")}
    (gateway,) = (row for row in incident.rules["itl_burn"] if (row["service"], row["severity"]) == ("shop-gateway", "page"))
    assert gateway["burn_rate"] > 14.4 and gateway["reason"] == "the same streams page at a vantage nearer to the end user"
    assert {service for (service, _), row in fired.items() if row["severity"] == "ticket"} <= {"mobile", "mobile-gateway"}
    page = fired[("shop", "client")]
    assert page["cause"] == "kv_pressure" and page["cause_share"] > 0.5
    assert page["burn_rate"] > 14.4 and page["users_bad"] > 100 and page["bad"] > 100


def test_the_message_says_what_who_since_when_where_and_why(incident: Incident) -> None:
    """Counts of streams and end users, the start of the incident, the budget in time, model, engine and cause, and one of the streams."""
    (page,) = (row for row in incident.rules["itl_burn"] if row["firing"] and row["severity"] == "page")
    found = re.fullmatch(
        r"([\d,]+) of ([\d,]+) streams were bad in the last (60 minutes|6 hours) \(([\d,]+) of ([\d,]+) end users\), most of them since "
        r"([\d: -]+) UTC: a month's error budget in \d+ (hours|days)\. .*Model with most bad streams: \S+ \(\d+ %\)\..*"
        r"Likely cause: [\w -]+ \(kv_pressure\), \d+ % of the stalled time in this window\. Engine with most stalled time: .*",
        page["message"],
    )
    assert found is not None, page["message"]
    counts = [int(found[group].replace(",", "")) for group in (1, 2, 4, 5)]
    assert counts == [page["bad"], page["streams"], page["users_bad"], page["users"]]
    assert abs(page["since"] - incident.begin_s) <= 600, "the start of the incident is known to two slots"
    assert incident.gaps[page["trace"]] == max(incident.gaps.values())


@pytest.mark.parametrize("vantage", ["client", "server"])
def test_the_budgets_bad_streams_are_all_bad_streams(incident: Incident, vantage: str) -> None:
    """The bad streams of the three budgets are those that `legato report` counts, for each service."""
    budgets, judged = Counter[str](), {}
    for row in incident.three_days:
        if row["vantage"] == vantage:
            budgets[row["service"]] += row["bad"]
            judged[row["service"]] = row["streams"]
    report = {row["service"]: row for row in incident.report if row["vantage"] == vantage}
    assert sum(budgets.values()) > 100
    assert {service: (bad, judged[service]) for service, bad in budgets.items()} == {
        service: (row["judged"] - row["good"], row["judged"]) for service, row in report.items()
    }


def test_the_incident_pages_within_minutes(incident: Incident) -> None:
    """The rule does not page before the incident, and pages within 8 minutes."""
    pages = {minute: any(row["firing"] and row["severity"] == "page" for row in rows) for minute, rows in incident.minutes.items()}
    assert not pages[-1] and pages[8], pages


def test_without_the_incident_no_rule_pages(tmp_path: pathlib.Path) -> None:
    """The last six hours of the shop in the demo, with an incident two hours ago: tickets at most."""
    now_ns = time.time_ns()
    with open_store(tmp_path / "store") as store:
        send(store, [each for each in placements(now_ns, "") if each.service == "shop"], now_ns)
        RollupWorker(store, load(), Metrics()).step()
        rows = {rule.name: rule_rows(store, rule.sql, now_ns // SECOND_NS) for rule in OF_PAST}
    assert {row.get("severity", "ticket") for each in rows.values() for row in each if row["firing"]} <= {"ticket"}
    assert len(rows[RULES[0].name]) == 4


def test_a_servers_row_has_the_cause_of_its_clients(incident: Incident) -> None:
    """A server has no verdicts while its clients are recorded. It has those on its clients' stalls that it had, too: none of the path."""
    rows = [row for row in incident.rules["itl_burn"] if row["vantage"] == "server" and row["bad"] and row["burn_rate"] > row["burn_limit"]]
    assert {row["service"] for row in rows} >= {"shop-gateway"}
    burning = [row for row in rows if row["firing"] or "nearer to the end user" in row["reason"]]
    assert burning
    for row in burning:
        # In the demo the app's clients also stall by their connections; all of its server's stalls are prefills.
        assert row["cause"] == {"shop-gateway": "kv_pressure", "mobile-gateway": "scheduling"}[row["service"]], row
        assert "at the clients of these streams" in row["message"] and 0 < row["cause_share"] <= 1
