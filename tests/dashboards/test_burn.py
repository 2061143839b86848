"""The burn-rate rules: their SQL equals plain Python, and each guard has its case. `test_burn_chance` has the rates of false pages."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dashboards.alerts.burn import END_USERS, ITL, TTFT
from helpers.dashboards.burning import (
    NOW_S,
    RULES,
    Minute,
    ask,
    expected,
    firing,
    incident,
    insert,
    made_up,
    of,
)  # fmt: skip
from helpers.servers.reading import stream, streams_in
from legato_ingest.causes import PARTS
from legato_ingest.metrics import Metrics
from legato_ingest.objectives import Objective
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.objective_rows import apply

# Row by row.


@pytest.mark.parametrize("name", list(RULES))
@pytest.mark.parametrize("second", [0, 59])
def test_the_sql_equals_plain_python(store: Store, name: str, second: int) -> None:
    """All figures of 400 random services by severity, evaluated in the first and in the last second of a minute."""
    rng, at_s = random.Random(f"{name} {second}"), NOW_S // 60 * 60 + second
    services = {f"s{number}": made_up(rng, f"s{number}") for number in range(400)}
    insert(store, at_s, [minute for minutes in services.values() for minute in minutes])
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in ask(store, RULES[name].sql, at_s):
        found[row["service"]][row["severity"]] = row
    firing = 0
    for service, minutes in services.items():
        should = expected(RULES[name], minutes)
        assert found[service].keys() == should.keys()
        for severity, look in should.items():
            was = found[service][severity]
            assert {key: was[key] for key in look} == {**look, "burn_rate": pytest.approx(look["burn_rate"], abs=0.006)}, minutes
            firing += look["firing"]
    assert 20 < firing < 600


# Single cases.


def hour(name: str, judged: int = 20, every_min: int = 5, until_min: int = 60, **bad: Any) -> list[Minute]:
    """One minute with streams every 5 minutes. ``bad`` maps sides to clients, or to functions of the minute's age."""

    def at(ago: int) -> dict[str, Any]:
        return {f"{side}_bad": clients(ago) if callable(clients) else clients for side, clients in bad.items()}

    return [Minute(name, ago, judged, **at(ago)) for ago in range(0, until_min, every_min)]


def new(ago: int) -> dict[int, int]:
    """Five bad streams of five clients that occur in no other minute."""
    return of(*range(100 * ago + 1, 100 * ago + 6), streams=1)


def test_empty_stores_give_no_rows(store: Store) -> None:
    """The rules return no rows for an empty store and for one without judged streams."""
    insert(store, NOW_S, [Minute("running", 1, 0)])
    assert [ask(store, rule.sql) for rule in RULES.values()] == [[], [], []]


def test_a_rule_reads_the_minutes_three_times(store: Store) -> None:
    """For the windows, the end users and the models. A fourth time only where these do not say whether the bad streams can be chance."""
    calm = [Minute(f"s{number}", ago, 20, of(ago + 1, streams=1)) for number in range(5) for ago in range(0, 2_000, 100)]
    insert(store, NOW_S, [*calm, *hour("paging", service=new)])
    rows = len(calm) + 12

    def read(sql: str) -> int:
        sql = sql.replace("now() AS at,", f"toDateTime({NOW_S}, 'UTC') AS at,")
        return int(json.loads(store.query_bytes(sql, fmt="JSON"))["statistics"]["rows_read"])

    assert [read(rule.sql) <= 3 * rows + 50 for rule in RULES.values()] == [True] * 3
    insert(store, NOW_S, [Minute("doubtful", ago, 100, of(7, 8, streams=2)) for ago in range(10)])
    assert 3 * rows + 50 < read(ITL) <= 4 * (rows + 10) + 50


def test_rules_use_the_engines_clock(store: Store) -> None:
    """The unchanged rule pages for a current burn and ignores minutes in the future."""
    insert(store, int(time.time()), hour("now", service=new))
    insert(store, int(time.time()) + 7_200, hour("later", service=new))
    rows = store.select(ITL)
    assert [row[1:7] for row in rows if row[6]] == [("now", "client", "default", 0.99, "page", 1)] and {row[1] for row in rows} == {"now"}


def counted(store: Store, sql: str = ITL, severity: str = "page") -> dict[str, tuple[int, int]]:
    """The bad streams and the known end users with bad streams of each service."""
    return {row["service"]: (row["bad"], row["users_bad"]) for row in ask(store, sql, NOW_S) if row["severity"] == severity}


def test_one_end_user_is_at_most_a_ticket(store: Store) -> None:
    """Bad streams of one end user never page. With two end users the rule pages. Every bad stream counts for the burn rate."""
    insert(store, NOW_S, hour("one, at once", service=lambda ago: of(7, streams=20) if ago == 0 else {}))
    insert(store, NOW_S, hour("one, all hour", service=of(7, streams=9)))
    insert(store, NOW_S, hour("two, all hour", judged=10, service=of(7, 8, streams=5)))
    insert(store, NOW_S, hour("two, at once", service=lambda ago: of(7, 8, streams=10) if ago == 0 else {}))
    assert firing(store) == {("two, all hour", "page"), ("one, at once", "ticket"), ("one, all hour", "ticket")}
    assert counted(store) == {"one, at once": (20, 1), "one, all hour": (108, 1), "two, all hour": (120, 2), "two, at once": (20, 2)}
    reasons = {row["service"]: row["reason"] for row in ask(store, ITL, NOW_S) if row["severity"] == "page" and row["reason"]}
    assert reasons == {
        "one, at once": "all bad streams are of one end user",
        "one, all hour": "all bad streams are of one end user",
        "two, at once": "so few can be chance",
    }


def test_an_end_user_of_two_models_counts_once(store: Store) -> None:
    """Rows of one service that differ in model, route or version are merged before end users are counted."""
    insert(store, NOW_S, [Minute("s", ago, 10, of(7), model=model) for ago in range(0, 60, 5) for model in ("a", "b")])
    assert {(row["bad"], row["users_bad"], row["severity"], row["firing"]) for row in ask(store, ITL, NOW_S)} == {
        (48, 1, "page", 0),
        (48, 1, "ticket", 1),
    }


def test_streams_of_unknown_clients_count_each(store: Store) -> None:
    """Each stream without a known end user counts as one of another end user."""
    insert(store, NOW_S, hour("not known", service=of(0, streams=4)))
    insert(store, NOW_S, hour("known", service=of(7, streams=4)))
    assert firing(store) == {("not known", "page"), ("known", "ticket")}
    (row,) = (row for row in ask(store, ITL, NOW_S) if row["service"] == "not known" and row["severity"] == "page")
    assert (row["users_bad"], row["unknown_bad"], row["unknown"]) == (0, 48, 240)


def test_late_starts_burn_their_own_budget(store: Store) -> None:
    """Late starts fire only the rule for late starts, and long gaps do not fire it."""
    insert(store, NOW_S, [*hour("late", late=new), *hour("frozen", service=new), *hour("both", service=new, late=new)])
    assert firing(store) == {("frozen", "page"), ("both", "page")}
    assert firing(store, TTFT) == {("late", "page"), ("both", "page")}
    assert firing(store, END_USERS) == set()


def test_stalls_charged_to_end_users_do_not_page(store: Store) -> None:
    """Stalls charged to end users burn a separate budget, which gives at most a ticket."""
    insert(store, NOW_S, hour("readers", reader=new))
    assert firing(store) == firing(store, TTFT) == set()
    assert firing(store, END_USERS) == {("readers", "ticket")}


def test_connections_are_charged_by_the_number_of_clients(store: Store) -> None:
    """Connection stalls of one client count for the end users. Those of two clients, or of unknown ones, count for the shared path."""
    for name, clients in {"one": of(7), "two": of(7, 8), "not known": of(0)}.items():
        insert(store, NOW_S, hour(name, connection=clients))
    assert firing(store) == {("two", "page"), ("not known", "page")} and firing(store, END_USERS) == {("one", "ticket")}
    insert(store, NOW_S, hour("one of three", reader=of(8, 9), connection=of(7)))
    assert ("one of three", "ticket") in firing(store, END_USERS)
    (ticket,) = (row for row in ask(store, END_USERS, NOW_S) if row["service"] == "one of three")
    assert (ticket["bad"], ticket["users_bad"]) == (72, 3)


@pytest.mark.parametrize(("name", "sides"), [("itl", ("service", "connection")), ("readers", ("reader", "connection"))])
def test_an_end_user_with_two_kinds_of_bad_streams_counts_once(store: Store, name: str, sides: tuple[str, str]) -> None:
    """Bad streams on different sides in the same 5 minutes are two bad streams of one end user and of one user slot."""
    insert(store, NOW_S, hour("s", 5, 5, 60, **dict.fromkeys(sides, of(7))))
    both = {"itl": of(7, 8), "readers": of(7)}[name]
    insert(store, NOW_S, hour("t", 8, 5, 60, **{sides[0]: of(7, 8), sides[1]: both}))
    sql = RULES[name].sql
    own = 24 if name == "itl" else 48  # A connection fault of one end user counts for the end users' budget alone.
    assert counted(store, sql, "ticket") == {"s": (own, 1), "t": (96 if name == "itl" else 72, 2)}


def test_a_page_replaces_its_ticket(store: Store) -> None:
    """A page suppresses the ticket of the same tenant, service and vantage; other tickets stay."""
    insert(store, NOW_S, hour("s", service=new))
    quiet = [Minute("s", ago, 2, of(ago + 1, streams=1), vantage="server") for ago in range(0, 60, 10)]
    insert(store, NOW_S, [*quiet, Minute("s", 3, 500, vantage="server", tenant="other")])
    rows = ask(store, ITL, NOW_S)
    assert {(row["tenant"], row["vantage"], row["severity"]) for row in rows if row["firing"]} == {
        ("", "client", "page"),
        ("", "server", "ticket"),
    }
    (ticket,) = (row for row in rows if (row["vantage"], row["severity"]) == ("client", "ticket"))
    assert ticket["burn_rate"] > 20 and not ticket["firing"]


@pytest.mark.parametrize(("nearer", "other"), [("client", "server"), ("client", "gateway"), ("gateway", "server"), ("screen", "client")])
def test_of_two_vantages_the_one_nearer_to_the_end_user_pages(store: Store, nearer: str, other: str) -> None:
    """The same frozen streams at two vantages are one page. Streams of other traces at the farther vantage are their own page."""
    for seed, vantage in enumerate((nearer, other)):
        frozen = [
            stream((20,) * 9 + (900,), attributes={"legato.stream.vantage": vantage}, trace_id=n.to_bytes(16), age_s=60.0 + n)
            for n in range(1, 61)
        ]
        streams_in(store, frozen, vantage, seed=seed)
    apart = [stream((900,), attributes={"legato.stream.vantage": other}, trace_id=n.to_bytes(16)) for n in range(100, 160)]
    streams_in(store, apart, "apart", seed=9)
    RollupWorker(store, load(), Metrics()).step()
    rows = ask(store, ITL, int(time.time()))
    assert {(row["service"], row["severity"]) for row in rows if row["firing"]} == {(nearer, "page"), ("apart", "page")}
    (farther,) = (row for row in rows if (row["service"], row["severity"]) == (other, "page"))
    assert farther["reason"] == "the same streams page at a vantage nearer to the end user"


def test_a_page_for_other_streams_hides_no_page(store: Store) -> None:
    """A server fails for callers that are not recorded, while most of its traffic is of an app that pages for its own connection."""
    gateway = {"legato.stream.vantage": "server"}
    traces = [n.to_bytes(16) for n in range(1, 161)]
    app = [stream((20,) * 9 + (900 if n % 2 else 20,), trace_id=trace, age_s=60.0 + n) for n, trace in enumerate(traces)]
    streams_in(store, app, "app", seed=1)
    through = [stream(attributes=gateway, trace_id=trace, age_s=60.0 + n) for n, trace in enumerate(traces)]
    failed = stream(attributes={**gateway, "legato.stream.outcome": "upstream_error"})
    streams_in(store, [*through, *({**failed, "age_s": 60.0 + n} for n in range(80))], "api", seed=2)
    RollupWorker(store, load(), Metrics()).step()
    assert firing(store, ITL, int(time.time())) == {("app", "page"), ("api", "page")}


def test_a_ticket_is_hidden_only_by_the_streams_of_the_page(store: Store) -> None:
    """A server's page gives way to its client's. Its ticket fires if the other bad streams alone burn that budget."""
    for seed, (vantage, name) in enumerate((("client", "app"), ("server", "api"), ("client", "app 2"), ("server", "api 2"))):
        first = 1 + 1_000 * name.endswith("2")
        frozen = [stream((900,), attributes={"legato.stream.vantage": vantage}, trace_id=(first + n).to_bytes(16)) for n in range(60)]
        streams_in(store, frozen, name, seed=seed)
    failed = {"legato.stream.vantage": "server", "legato.stream.outcome": "upstream_error"}
    streams_in(store, [stream(attributes=failed, age_s=60.0 + n) for n in range(40)], "api", seed=9)
    RollupWorker(store, load(), Metrics()).step()
    assert firing(store, ITL, int(time.time())) == {("app", "page"), ("app 2", "page"), ("api", "ticket")}


def test_recovered_services_do_not_page(store: Store) -> None:
    """The long window still burns, the short one has recovered: its rate is low with many streams, or no stream is bad with few."""
    insert(store, NOW_S, hour("busy", judged=50, service=lambda ago: new(ago) | new(ago + 1) if ago > 30 else of(ago + 1, streams=1)))
    insert(store, NOW_S, hour("quiet", judged=5, service=lambda ago: new(ago) if ago > 30 else {}))
    assert {severity for _, severity in firing(store)} == {"ticket"}
    insert(store, NOW_S, hour("still", judged=5, service=lambda ago: new(ago) if ago > 30 or ago == 0 else {}))
    assert ("still", "page") in firing(store)


@pytest.mark.parametrize(("lasting_min", "reason"), [(20, ""), (55, ""), (65, "no stream of the short window has ended")])
def test_an_outage_of_long_streams_pages(store: Store, lasting_min: int, reason: str) -> None:
    """All streams take so long, so none that began later has ended. The short windows end at the newest that has, an hour back at most."""
    older = hour("s", judged=50, until_min=360, service=lambda ago: new(ago) | new(ago + 1))
    insert(store, NOW_S, [minute for minute in older if minute.ago_min >= lasting_min])
    assert (("s", "page") in firing(store)) == (not reason)
    (page,) = (row for row in ask(store, ITL, NOW_S) if row["severity"] == "page")
    assert page["reason"] == reason


SLOW = [(0.2, 1, 6, "page", 14.4), (0.08, 6, 6, "page", 6.0), (0.02, 72, 72, "ticket", 1.0)]


@pytest.mark.parametrize(("share", "bad_hours", "hours", "severity", "limit"), SLOW)
def test_slow_burns_are_detected_by_longer_windows(
    store: Store, share: float, bad_hours: int, hours: int, severity: str, limit: float
) -> None:
    """20 times too fast: the 1-hour window; 8 times: the 6-hour window; twice: a ticket from the 3-day window. No other window fires."""
    first, bad = 60 * bad_hours, round(50 * share)
    clients = {ago: of(*range(1 + 100 * ago, 1 + 100 * ago + bad), streams=1) for ago in range(first)}
    insert(store, NOW_S, hour("s", 50, 5, 60 * hours, service=lambda ago: clients.get(ago, {})))
    (row,) = (row for row in ask(store, ITL, NOW_S) if row["firing"])
    assert (row["severity"], row["burn_limit"], row["burn_rate"]) == (severity, limit, pytest.approx(100 * share))


def test_too_few_streams_for_a_page_are_counted_back_to_37(store: Store) -> None:
    """The last 37 streams within a day can give a ticket, also if the newest few are good."""
    for name, ago in (("today", 700), ("yesterday", 1_500)):
        insert(store, NOW_S, [Minute(name, ago, 40, of(*range(1, 13), streams=1)), Minute(name, 2, 4)])
    assert firing(store) == {("today", "ticket")}
    (row,) = (row for row in ask(store, ITL, NOW_S) if row["firing"])
    assert (row["streams"], row["bad"], row["burn_limit"], row["window_s"]) == (44, 12, 14.4, 42_300)


def test_a_stricter_target_fires_wherever_a_laxer_one_does(store: Store) -> None:
    """The same outages under three targets: all or half of the streams, up to 4 hours, of services with 24 to 2,040 streams per hour."""
    targets = {"0.99": 0.99, "0.999": 0.999, "0.9999": 0.9999}
    apply(store, [*(Objective(name=name, target=target) for name, target in targets.items()), Objective(name="default")])
    minutes = list[Minute]()
    for judged, part, until_min in itertools.product((2, 4, 8, 20, 170), (1, 2), (15, 30, 60, 240)):
        bad = {ago: of(*range(1_000 * ago + 1, 1_000 * ago + 1 + judged // part), streams=1) for ago in range(0, until_min, 5)}
        one = hour(f"{judged} {part} {until_min}", judged, until_min=720, service=lambda ago, bad=bad: bad.get(ago, {}))
        minutes += [replace(minute, service=f"{name}/{minute.service}", objective=name) for name in targets for minute in one]
    insert(store, NOW_S, minutes)
    fired = defaultdict[str, set[tuple[str, str]]](set)
    for row in ask(store, ITL, NOW_S):
        # A page replaces its ticket.
        fired[row["objective"]] |= {(row["service"].partition("/")[2], each) for each in {row["severity"], "ticket"} if row["firing"]}
    assert {("4 1 60", "page"), ("8 1 30", "page"), ("170 1 15", "page")} <= fired["0.99"] <= fired["0.999"] <= fired["0.9999"]


# Delay of pages.

WAITS = {(600, 1.0): (8, 12), (600, 0.5): (16, 22), (600, 0.3): (26, 34), (60, 1.0): (6, 12), (60, 0.5): (12, 24), (60, 0.3): (22, 42)}
TWINS = 15
LONGEST_MIN = 45


def test_how_long_it_takes_to_page(store: Store) -> None:
    """Medians over 15 services. 14.4 % of an hour's streams must be bad: 8.6 minutes if all fail, 29 minutes if 30 % fail."""
    rng = np.random.default_rng(5)
    later = list[Minute]()
    # A clock that is later by some minutes is the same as minutes that are older by as many: one query evaluates all clocks.
    clocks = range(0, LONGEST_MIN, 3)
    for rate, share in WAITS:
        for twin in range(TWINS):
            minutes = list(incident(rng, "", rate, share))
            for waited_min in clocks:
                name = f"{rate} {share} {twin}/{waited_min}"
                later += [replace(minute, service=name, ago_min=minute.ago_min + waited_min) for minute in minutes]
    insert(store, NOW_S, later)
    first: dict[str, int] = {}
    for service, severity in firing(store):
        name, _, clock = service.partition("/")
        if severity == "page":
            first[name] = min(first.get(name, LONGEST_MIN), int(clock))
    for (rate, share), (least_min, most_min) in WAITS.items():
        waits = sorted(first.get(f"{rate} {share} {twin}", LONGEST_MIN) for twin in range(TWINS))
        assert least_min <= waits[TWINS // 2] <= most_min and waits[0] >= 3, ((rate, share), waits)


# Causes.


def stalled(store: Store, service: str, seconds_by_cause: Mapping[str, int], ago_min: int = 10, vantage: str = "client") -> None:
    """Insert stalled time (s) by cause."""
    n = len(seconds_by_cause)
    columns = {
        "minute": pa.array([(NOW_S // 60 - ago_min) * 60] * n, pa.timestamp("s", "UTC")),
        "vantage": pa.array([vantage] * n),
        "service_name": pa.array([service] * n),
        "cause": pa.array(list(seconds_by_cause)),
        "confidence": pa.array(["likely"] * n),
        "rolled_at": pa.array([NOW_S * 1000] * n, pa.timestamp("ms", "UTC")),
        "stalls": pa.array([3] * n, pa.uint32()),
        "excess_us": pa.array([seconds * 10**6 for seconds in seconds_by_cause.values()], pa.uint64()),
    }
    store.insert("stall_minutes", pa.table(columns))


def cause_of(store: Store, sql: str) -> dict[str, tuple[str, float]]:
    """The cause and its share in the row of each service with the shortest window."""
    rows = sorted(ask(store, sql, NOW_S), key=lambda row: -row["window_s"])
    return {row["service"]: (row["cause"], row["cause_share"]) for row in rows}


def test_the_likely_cause_is_the_one_with_most_stalled_time(store: Store) -> None:
    """The cause is from the row's own window and vantage. Causes of another budget are left out; without verdicts there is none."""
    insert(store, NOW_S, [minute for name in ("kv", "readers", "old", "elsewhere") for minute in hour(name, service=new, reader=new)])
    stalled(store, "kv", {"kv_pressure": 30, "scheduling": 10})
    stalled(store, "kv", {"kv_pressure": 30}, ago_min=40)
    stalled(store, "kv", {"consumer": 30}, ago_min=41)
    stalled(store, "readers", {"consumer": 60, "connection": 30, "host": 10})
    stalled(store, "old", {"kv_pressure": 30}, ago_min=361)
    stalled(store, "elsewhere", {"kv_pressure": 30}, vantage="server")
    nothing = {"elsewhere": ("", 0.0)}
    assert cause_of(store, ITL) == {"kv": ("kv_pressure", 0.6), "readers": ("connection", 0.3), "old": ("", 0.0), **nothing}
    # The end users' budget has tickets only; the 3 days of this row contain the stall that the 6 hours of a page do not.
    assert cause_of(store, END_USERS) == {"kv": ("consumer", 0.3), "readers": ("consumer", 0.6), "old": ("", 0.0), **nothing}


def test_every_cause_has_words() -> None:
    """A message has the label and the name of the cause."""
    for name in {*PARTS, "mixed", "unknown"}:
        assert all(f"({name})'" in sql for sql in (ITL, TTFT, END_USERS))
