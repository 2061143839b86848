"""The burn-rate rules: their SQL equals plain Python, and each guard has its case. `test_burn_chance` has the rates of false pages.

To evaluate a rule takes a second of processor time, however few the rows are. So most cases share one store and one evaluation of each
rule. The services of a case have its name and a slash before their own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import pathlib
import pickle
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
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
from helpers.servers.stores import copy_of, empty
from legato_ingest.causes import PARTS
from legato_ingest.metrics import Metrics
from legato_ingest.objectives import Objective
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.objective_rows import apply

Row = dict[str, Any]
# The rows of each rule and second of the minute, by case. Those of the cases with streams have the second 0.
Found = Mapping[tuple[str, int], Mapping[str, Sequence[Row]]]
SECONDS = (0, 59)
MINUTE_S = NOW_S // 60 * 60
# The minutes of the cases; their stalled time (s) by cause, with service, age (min) and vantage; and streams with their service.
CASES: dict[str, list[Minute]] = {}
STALLED: list[tuple[str, dict[str, int], int, str]] = []
STREAMS: list[tuple[str, list[dict[str, Any]]]] = []


@pytest.fixture(scope="module")
def found(unfilled: Store, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What the rules return for the cases of this module. It is kept, because several processes run the tests of this module."""
    texts = [*(rule.sql for rule in RULES.values()), pathlib.Path(__file__).read_text(encoding="utf-8")]
    of_texts = hashlib.sha256("".join(texts).encode()).hexdigest()[:16]
    target = tmp_path_factory.mktemp("burn") / "kept"
    copy_of(f"burn-{of_texts}", lambda folder: _keep(folder, _evaluated(unfilled)), target)
    kept: Found = pickle.loads((target / "found").read_bytes())
    return kept


def _keep(folder: pathlib.Path, found: Found) -> None:
    (folder / "found").write_bytes(pickle.dumps(found))


def _evaluated(store: Store) -> Found:
    empty(store)
    minutes = [replace(minute, service=f"{case}/{minute.service}") for case, minutes in CASES.items() for minute in minutes]
    for name, second in itertools.product(RULES, SECONDS):
        for service, made in random_services(name, second).items():
            minutes += [replace(minute, service=f"{name} {second}/{service}") for minute in made]
    insert(store, MINUTE_S, minutes)
    for service, seconds_by_cause, ago_min, vantage in STALLED:
        stalled(store, service, seconds_by_cause, ago_min, vantage)
    found = {(name, at): _by_case(ask(store, rule.sql, MINUTE_S + at)) for name, rule in RULES.items() for at in SECONDS}
    empty(store)
    for seed, (service, streams) in enumerate(STREAMS):
        streams_in(store, streams, service, seed=seed)
    RollupWorker(store, load(), Metrics()).step()
    return {**found, ("streams", 0): _by_case(ask(store, ITL, int(time.time())))}


def _by_case(rows: Sequence[Row]) -> dict[str, list[Row]]:
    cases: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        case, _, service = row["service"].partition("/")
        cases[case].append({**row, "service": service})
    return dict(cases)


def fired(rows: Sequence[Row]) -> set[tuple[str, str]]:
    """The services that fire, with severity."""
    return {(row["service"], row["severity"]) for row in rows if row["firing"]}


def counted(rows: Sequence[Row], severity: str = "page") -> dict[str, tuple[int, int]]:
    """The bad streams and the known end users with bad streams of each service."""
    return {row["service"]: (row["bad"], row["users_bad"]) for row in rows if row["severity"] == severity}


# Row by row.


@cache
def random_services(name: str, second: int) -> dict[str, list[Minute]]:
    """400 random services for a rule and a second of the minute."""
    rng = random.Random(f"{name} {second}")
    return {f"s{number}": made_up(rng, f"s{number}") for number in range(400)}


@pytest.mark.parametrize("name", list(RULES))
@pytest.mark.parametrize("second", SECONDS)
def test_the_sql_equals_plain_python(found: Found, name: str, second: int) -> None:
    """All figures of 400 random services by severity, evaluated in the first and in the last second of a minute."""
    rows: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in found[name, second][f"{name} {second}"]:
        rows[row["service"]][row["severity"]] = row
    firing = 0
    for service, minutes in random_services(name, second).items():
        should = expected(RULES[name], minutes)
        assert rows[service].keys() == should.keys()
        for severity, look in should.items():
            was = rows[service][severity]
            assert {key: was[key] for key in look} == {**look, "burn_rate": pytest.approx(look["burn_rate"], abs=0.006)}, minutes
            firing += look["firing"]
    assert 20 < firing < 600


# Single cases.


def seen(found: Found, case: str, rule: str = "itl") -> Sequence[Row]:
    """The rows of a case in the last second of the minute; in the first one they have the same figures."""
    first, last = (found[rule, second][case] for second in SECONDS)
    varying = ("to_ms", "from_ms", "since", "message")
    assert [{**row, **dict.fromkeys(varying)} for row in first] == [{**row, **dict.fromkeys(varying)} for row in last]
    return last


def hour(name: str, judged: int = 20, every_min: int = 5, until_min: int = 60, **bad: Any) -> list[Minute]:
    """One minute with streams every 5 minutes. ``bad`` maps sides to clients, or to functions of the minute's age."""

    def at(ago: int) -> dict[str, Any]:
        return {f"{side}_bad": clients(ago) if callable(clients) else clients for side, clients in bad.items()}

    return [Minute(name, ago, judged, **at(ago)) for ago in range(0, until_min, every_min)]


def new(ago: int) -> dict[int, int]:
    """Five bad streams of five clients that occur in no other minute."""
    return of(*range(100 * ago + 1, 100 * ago + 6), streams=1)


CASES["one"] = [
    *hour("at once", service=lambda ago: of(7, streams=20) if ago == 0 else {}),
    *hour("all hour", service=of(7, streams=9)),
    *hour("two, all hour", judged=10, service=of(7, 8, streams=5)),
    *hour("two, at once", service=lambda ago: of(7, 8, streams=10) if ago == 0 else {}),
]


def test_one_end_user_is_at_most_a_ticket(found: Found) -> None:
    """Bad streams of one end user never page. With two end users the rule pages. Every bad stream counts for the burn rate."""
    rows = seen(found, "one")
    assert fired(rows) == {("two, all hour", "page"), ("at once", "ticket"), ("all hour", "ticket")}
    assert counted(rows) == {"at once": (20, 1), "all hour": (108, 1), "two, all hour": (120, 2), "two, at once": (20, 2)}
    reasons = {row["service"]: row["reason"] for row in rows if row["severity"] == "page" and row["reason"]}
    assert reasons == {
        "at once": "all bad streams are of one end user",
        "all hour": "all bad streams are of one end user",
        "two, at once": "so few can be chance",
    }


CASES["models"] = [Minute("s", ago, 10, of(7), model=model) for ago in range(0, 60, 5) for model in ("a", "b")]


def test_an_end_user_of_two_models_counts_once(found: Found) -> None:
    """Rows of one service that differ in model, route or version are merged before end users are counted."""
    assert {(row["bad"], row["users_bad"], row["severity"], row["firing"]) for row in seen(found, "models")} == {
        (48, 1, "page", 0),
        (48, 1, "ticket", 1),
    }


CASES["unknown"] = [*hour("not known", service=of(0, streams=4)), *hour("known", service=of(7, streams=4))]


def test_streams_of_unknown_clients_count_each(found: Found) -> None:
    """Each stream without a known end user counts as one of another end user."""
    rows = seen(found, "unknown")
    assert fired(rows) == {("not known", "page"), ("known", "ticket")}
    (row,) = (row for row in rows if row["service"] == "not known" and row["severity"] == "page")
    assert (row["users_bad"], row["unknown_bad"], row["unknown"]) == (0, 48, 240)


CASES["starts"] = [*hour("late", late=new), *hour("frozen", service=new), *hour("both", service=new, late=new)]


def test_late_starts_burn_their_own_budget(found: Found) -> None:
    """Late starts fire only the rule for late starts, and long gaps do not fire it."""
    assert fired(seen(found, "starts")) == {("frozen", "page"), ("both", "page")}
    assert fired(seen(found, "starts", "ttft")) == {("late", "page"), ("both", "page")}
    assert fired(seen(found, "starts", "readers")) == set()


CASES["readers"] = hour("readers", reader=new)


def test_stalls_charged_to_end_users_do_not_page(found: Found) -> None:
    """Stalls charged to end users burn a separate budget, which gives at most a ticket."""
    assert fired(seen(found, "readers")) == fired(seen(found, "readers", "ttft")) == set()
    assert fired(seen(found, "readers", "readers")) == {("readers", "ticket")}


CASES["connections"] = [
    *(minute for name, clients in {"one": of(7), "two": of(7, 8), "not known": of(0)}.items() for minute in hour(name, connection=clients)),
    *hour("one of three", reader=of(8, 9), connection=of(7)),
]


def test_connections_are_charged_by_the_number_of_clients(found: Found) -> None:
    """Connection stalls of one client count for the end users. Those of two clients, or of unknown ones, count for the shared path."""
    of_readers = seen(found, "connections", "readers")
    assert fired(seen(found, "connections")) == {("two", "page"), ("not known", "page")}
    assert fired(of_readers) == {("one", "ticket"), ("one of three", "ticket")}
    (ticket,) = (row for row in of_readers if row["service"] == "one of three")
    assert (ticket["bad"], ticket["users_bad"]) == (72, 3)


KINDS = {"itl": ("service", "connection"), "readers": ("reader", "connection")}
for name, sides in KINDS.items():
    both = {"itl": of(7, 8), "readers": of(7)}[name]
    CASES[f"kinds {name}"] = [
        *hour("s", 5, 5, 60, **dict.fromkeys(sides, of(7))),
        *hour("t", 8, 5, 60, **{sides[0]: of(7, 8), sides[1]: both}),
    ]


@pytest.mark.parametrize("name", list(KINDS))
def test_an_end_user_with_two_kinds_of_bad_streams_counts_once(found: Found, name: str) -> None:
    """Bad streams on different sides in the same 5 minutes are two bad streams of one end user and of one user slot."""
    own = 24 if name == "itl" else 48  # A connection fault of one end user counts for the end users' budget alone.
    rows = seen(found, f"kinds {name}", name)
    assert counted(rows, "ticket") == {"s": (own, 1), "t": (96 if name == "itl" else 72, 2)}


CASES["replaced"] = [
    *hour("s", service=new),
    *(Minute("s", ago, 2, of(ago + 1, streams=1), vantage="server") for ago in range(0, 60, 10)),
    Minute("s", 3, 500, vantage="server", tenant="other"),
]


def test_a_page_replaces_its_ticket(found: Found) -> None:
    """A page suppresses the ticket of the same tenant, service and vantage; other tickets stay."""
    rows = seen(found, "replaced")
    assert {(row["tenant"], row["vantage"], row["severity"]) for row in rows if row["firing"]} == {
        ("", "client", "page"),
        ("", "server", "ticket"),
    }
    (ticket,) = (row for row in rows if (row["vantage"], row["severity"]) == ("client", "ticket"))
    assert ticket["burn_rate"] > 20 and not ticket["firing"]


CASES["recovered"] = [
    *hour("busy", judged=50, service=lambda ago: new(ago) | new(ago + 1) if ago > 30 else of(ago + 1, streams=1)),
    *hour("quiet", judged=5, service=lambda ago: new(ago) if ago > 30 else {}),
    *hour("still", judged=5, service=lambda ago: new(ago) if ago > 30 or ago == 0 else {}),
]


def test_recovered_services_do_not_page(found: Found) -> None:
    """The long window still burns, the short one has recovered: its rate is low with many streams, or no stream is bad with few."""
    fires = fired(seen(found, "recovered"))
    assert {severity for service, severity in fires if service != "still"} == {"ticket"}
    assert ("still", "page") in fires


OUTAGES = {20: "", 55: "", 65: "no stream of the short window has ended"}
for lasting_min in OUTAGES:
    older = hour("s", judged=50, until_min=360, service=lambda ago: new(ago) | new(ago + 1))
    CASES[f"outage {lasting_min}"] = [minute for minute in older if minute.ago_min >= lasting_min]


@pytest.mark.parametrize(("lasting_min", "reason"), OUTAGES.items())
def test_an_outage_of_long_streams_pages(found: Found, lasting_min: int, reason: str) -> None:
    """All streams take so long, so none that began later has ended. The short windows end at the newest that has, an hour back at most."""
    rows = seen(found, f"outage {lasting_min}")
    assert (("s", "page") in fired(rows)) == (not reason)
    (page,) = (row for row in rows if row["severity"] == "page")
    assert page["reason"] == reason


SLOW = [(0.2, 1, 6, "page", 14.4), (0.08, 6, 6, "page", 6.0), (0.02, 72, 72, "ticket", 1.0)]
for share, bad_hours, hours, *_ in SLOW:
    bad = round(50 * share)
    each = {ago: of(*range(1 + 100 * ago, 1 + 100 * ago + bad), streams=1) for ago in range(60 * bad_hours)}
    CASES[f"slow {share}"] = hour("s", 50, 5, 60 * hours, service=lambda ago, each=each: each.get(ago, {}))


@pytest.mark.parametrize(("share", "severity", "limit"), [(share, severity, limit) for share, _, _, severity, limit in SLOW])
def test_slow_burns_are_detected_by_longer_windows(found: Found, share: float, severity: str, limit: float) -> None:
    """20 times too fast: the 1-hour window; 8 times: the 6-hour window; twice: a ticket from the 3-day window. No other window fires."""
    (row,) = (row for row in seen(found, f"slow {share}") if row["firing"])
    assert (row["severity"], row["burn_limit"], row["burn_rate"]) == (severity, limit, pytest.approx(100 * share))


CASES["few"] = [
    minute
    for name, ago in (("today", 700), ("yesterday", 1_500))
    for minute in (Minute(name, ago, 40, of(*range(1, 13), streams=1)), Minute(name, 2, 4))
]


def test_too_few_streams_for_a_page_are_counted_back_to_37(found: Found) -> None:
    """The last 37 streams within a day can give a ticket, also if the newest few are good."""
    rows = seen(found, "few")
    assert fired(rows) == {("today", "ticket")}
    (row,) = (row for row in rows if row["firing"])
    assert (row["streams"], row["bad"], row["burn_limit"], row["window_s"]) == (44, 12, 14.4, 42_300)


# Several vantages.

NEARER = [("client", "server"), ("client", "gateway"), ("gateway", "server"), ("screen", "client")]
FAILED = {"legato.stream.vantage": "server", "legato.stream.outcome": "upstream_error"}


def frozen(vantage: str, first: int, gaps_ms: Sequence[float] = (900,)) -> list[dict[str, Any]]:
    """60 frozen streams at a vantage, with traces from ``first`` on."""
    return [
        stream(gaps_ms, attributes={"legato.stream.vantage": vantage}, trace_id=(first + n).to_bytes(16), age_s=60.0 + n) for n in range(60)
    ]


for number, (nearer, other) in enumerate(NEARER):
    for vantage in (nearer, other):
        STREAMS.append((f"{nearer} {other}/{vantage}", frozen(vantage, 1 + 1_000 * number, (20,) * 9 + (900,))))
    STREAMS.append((f"{nearer} {other}/apart", frozen(other, 100 + 1_000 * number)))


@pytest.mark.parametrize(("nearer", "other"), NEARER)
def test_of_two_vantages_the_one_nearer_to_the_end_user_pages(found: Found, nearer: str, other: str) -> None:
    """The same frozen streams at two vantages are one page. Streams of other traces at the farther vantage are their own page."""
    rows = found["streams", 0][f"{nearer} {other}"]
    assert fired(rows) == {(nearer, "page"), ("apart", "page")}
    (farther,) = (row for row in rows if (row["service"], row["severity"]) == (other, "page"))
    assert farther["reason"] == "the same streams page at a vantage nearer to the end user"


_TRACES = [n.to_bytes(16) for n in range(10_001, 10_161)]
STREAMS += [
    ("others/app", [stream((20,) * 9 + (900 if n % 2 else 20,), trace_id=each, age_s=60.0 + n) for n, each in enumerate(_TRACES)]),
    (
        "others/api",
        [
            *(stream(attributes={"legato.stream.vantage": "server"}, trace_id=each, age_s=60.0 + n) for n, each in enumerate(_TRACES)),
            *(stream(attributes=FAILED, age_s=60.0 + n) for n in range(80)),
        ],
    ),
]


def test_a_page_for_other_streams_hides_no_page(found: Found) -> None:
    """A server fails for callers that are not recorded, while most of its traffic is of an app that pages for its own connection."""
    assert fired(found["streams", 0]["others"]) == {("app", "page"), ("api", "page")}


for vantage, name in (("client", "app"), ("server", "api"), ("client", "app 2"), ("server", "api 2")):
    STREAMS.append((f"hidden/{name}", frozen(vantage, 20_001 + 1_000 * name.endswith("2"))))
STREAMS.append(("hidden/api", [stream(attributes=FAILED, age_s=60.0 + n) for n in range(40)]))


def test_a_ticket_is_hidden_only_by_the_streams_of_the_page(found: Found) -> None:
    """A server's page gives way to its client's. Its ticket fires if the other bad streams alone burn that budget."""
    assert fired(found["streams", 0]["hidden"]) == {("app", "page"), ("app 2", "page"), ("api", "ticket")}


# Causes.

CASES["causes"] = [minute for name in ("kv", "readers", "old", "elsewhere") for minute in hour(name, service=new, reader=new)]
STALLED += [
    ("causes/kv", {"kv_pressure": 30, "scheduling": 10}, 10, "client"),
    ("causes/kv", {"kv_pressure": 30}, 40, "client"),
    ("causes/kv", {"consumer": 30}, 41, "client"),
    ("causes/readers", {"consumer": 60, "connection": 30, "host": 10}, 10, "client"),
    ("causes/old", {"kv_pressure": 30}, 361, "client"),
    ("causes/elsewhere", {"kv_pressure": 30}, 10, "server"),
]


def stalled(store: Store, service: str, seconds_by_cause: Mapping[str, int], ago_min: int, vantage: str) -> None:
    """Insert stalled time (s) by cause."""
    n = len(seconds_by_cause)
    columns = {
        "minute": pa.array([MINUTE_S - 60 * ago_min] * n, pa.timestamp("s", "UTC")),
        "vantage": pa.array([vantage] * n),
        "service_name": pa.array([service] * n),
        "cause": pa.array(list(seconds_by_cause)),
        "confidence": pa.array(["likely"] * n),
        "rolled_at": pa.array([NOW_S * 1000] * n, pa.timestamp("ms", "UTC")),
        "stalls": pa.array([3] * n, pa.uint32()),
        "excess_us": pa.array([seconds * 10**6 for seconds in seconds_by_cause.values()], pa.uint64()),
    }
    store.insert("stall_minutes", pa.table(columns))


def cause_of(rows: Sequence[Row]) -> dict[str, tuple[str, float]]:
    """The cause and its share in the row of each service with the shortest window."""
    return {row["service"]: (row["cause"], row["cause_share"]) for row in sorted(rows, key=lambda row: -row["window_s"])}


def test_the_likely_cause_is_the_one_with_most_stalled_time(found: Found) -> None:
    """The cause is from the row's own window and vantage. Causes of another budget are left out; without verdicts there is none."""
    nothing = {"elsewhere": ("", 0.0)}
    assert cause_of(seen(found, "causes")) == {
        "kv": ("kv_pressure", 0.6),
        "readers": ("connection", 0.3),
        "old": ("", 0.0),
        **nothing,
    }
    # The end users' budget has tickets only; the 3 days of this row contain the stall that the 6 hours of a page do not.
    assert cause_of(seen(found, "causes", "readers")) == {
        "kv": ("consumer", 0.3),
        "readers": ("consumer", 0.6),
        "old": ("", 0.0),
        **nothing,
    }


def test_every_cause_has_words() -> None:
    """A message has the label and the name of the cause."""
    for name in {*PARTS, "mixed", "unknown"}:
        assert all(f"({name})'" in sql for sql in (ITL, TTFT, END_USERS))


# Cases with a separate store.


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
                begun = [minute for minute in minutes if minute.ago_min + waited_min >= 0]
                later += [replace(minute, service=name, ago_min=minute.ago_min + waited_min) for minute in begun]
    insert(store, NOW_S, later)
    first: dict[str, int] = {}
    for service, severity in firing(store):
        name, _, clock = service.partition("/")
        if severity == "page":
            first[name] = min(first.get(name, LONGEST_MIN), int(clock))
    for (rate, share), (least_min, most_min) in WAITS.items():
        waits = sorted(first.get(f"{rate} {share} {twin}", LONGEST_MIN) for twin in range(TWINS))
        assert least_min <= waits[TWINS // 2] <= most_min and waits[0] >= 3, ((rate, share), waits)
