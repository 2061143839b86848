"""The burn-rate rules: rates of false pages and of detections on thousands of services, and a test of each guard."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dashboards.alerts.burn import END_USERS, ITL, TTFT
from helpers.dashboards.burning import (
    ALLOWED,
    RULES,
    Maps,
    Minute,
    ask,
    at_least,
    burns,
    enough,
    expected,
    incident,
    insert,
    least,
    made_up,
    of,
    table,
    upper,
)  # fmt: skip
from helpers.servers.reading import open_store
from helpers.servers.stores import empty
from legato_ingest.causes import NAMES, PARTS
from legato_ingest.storage import Store

NOW_S = int(time.time())
FALSE_PAGES_MAX = 1e-3
Outcome = tuple[int, int, int, int]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the schema, for this module."""
    with open_store(tmp_path_factory.mktemp("burn") / "store") as opened:
        yield opened


@pytest.fixture
def store(shared: Store, outcomes: Mapping[str, Outcome]) -> Store:
    """The store, emptied."""
    empty(shared)
    return shared


# Thousands of services, each with separate traffic.

BUDGET = (5, 10, 20, 50, 100, 500, 1_000, 5_000, 10_000)
# Number of streams, bad share, minutes that they cover, parts of that time, number of services.
Group = tuple[int, float, int, int, int]
GROUPS: dict[str, Group] = {f"budget {n} 1 h": (n, ALLOWED, 60, 12 if n < 100 else 6, 3_000) for n in BUDGET}
GROUPS |= {f"budget {n} 6 h": (n, ALLOWED, 360, 24, 3_000) for n in (20, 100)}
GROUPS |= {f"30 % {n}": (n, 0.3, 60, 12 if n < 500 else 6, 1_000) for n in (10, 20, 37, 100, 1_000)}
GROUPS |= {f"14.4 % {n}": (n, 0.144, 60, 12 if n < 500 else 6, 1_000) for n in (37, 100, 1_000)}
# Each end user has 20 streams in 5 minutes, and either all or none of them are bad.
CLUSTERS: dict[str, Group] = {f"clusters {n}": (n // 20, ALLOWED, 60, 12, 1_000) for n in (100, 400)}
# The largest probability of a page on budget, at 100 streams; computed below.
WORST = 0.000535


def simulated(rng: np.random.Generator, name: str, group: Group, size: int) -> pa.Table:
    """Minutes of services with end users at random times. Each has ``size`` streams, which are all bad with the group's bad share."""
    n, share, spread_min, parts, services = group
    readers = rng.multinomial(n, [1 / parts] * parts, size=services)
    bad = rng.binomial(readers, share)
    at = readers > 0
    ago = (spread_min // parts * np.arange(parts) + rng.integers(0, 5, (services, parts)))[at]
    hit = int(bad.sum())
    clients = Maps(bad[at], rng.integers(1, 2**63, hit, np.int64).astype(np.uint64), np.full(hit, size, np.uint32))
    numbers = pa.array(np.broadcast_to(np.arange(services)[:, None], at.shape)[at].astype(np.int32))
    names = pa.DictionaryArray.from_arrays(numbers, pa.array([f"{name}/{each}" for each in range(services)])).cast(pa.string())
    return table(NOW_S, names, ago, readers[at] * size, {"bad_service_clients": clients})


@pytest.fixture(scope="module")
def outcomes(shared: Store) -> dict[str, Outcome]:
    """For each group the number of services, of pages, of tickets, and of pages that a rule without guards would raise."""
    rng = np.random.default_rng(7)
    for groups, size in ((GROUPS, 1), (CLUSTERS, 20)):
        for name, group in groups.items():
            shared.insert("stream_minutes", simulated(rng, name, group, size))
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in ask(shared, ITL, NOW_S):
        found[row["service"].split("/")[0]][("page", "ticket").index(row["severity"])] += row["firing"]
    naive = f"""
        SELECT splitByChar('/', service_name)[1], countIf(bad >= 6 * {ALLOWED} * n)
        FROM (SELECT service_name, sum(judged) AS n, sum(judged - good) AS bad FROM stream_minutes FINAL GROUP BY service_name)
        GROUP BY 1"""
    for name, services in shared.select(naive):
        found[str(name)][2] = int(services)
    return {name: (group[-1], found[name][0], found[name][1], found[name][2]) for name, group in (GROUPS | CLUSTERS).items()}


@pytest.mark.parametrize("name", [name for name in GROUPS if name.startswith("budget")])
def test_a_service_on_budget_hardly_ever_pages(outcomes: Mapping[str, Outcome], name: str) -> None:
    """Exactly on budget, at most 1 of 1,000 evaluations pages (95 % confidence). At 100 streams the rate is the computed one."""
    services, pages, _, naive = outcomes[name]
    if GROUPS[name][0] == 100:
        assert at_least(pages, services, WORST) > 0.01, (pages, services)
    else:
        assert upper(pages, services) <= FALSE_PAGES_MAX, (pages, services)
    assert GROUPS[name][0] > 50 or naive > services / 100, "a rate without guards was expected to page"


def test_no_number_of_streams_pages_by_chance() -> None:
    """The computed probability for each number of streams up to 10,000: the largest is at 100, with 5.3 pages in 10,000 evaluations."""
    chances = {}
    for n in range(enough(14.4), 10_001):
        limits = [limit for limit in (14.4, 6.0) if n >= enough(limit)]
        lowest = max(3, int(min(limits) * ALLOWED * n))
        first = next(k for k in range(lowest, n + 1) if any(burns(k, n, k, limit) for limit in limits))
        chances[n] = at_least(first, n, ALLOWED)
    worst = max(chances, key=lambda n: chances[n])
    assert (worst, round(chances[worst], 6)) == (100, WORST) and WORST < FALSE_PAGES_MAX


@pytest.mark.parametrize("name", list(CLUSTERS))
def test_clusters_of_one_end_user_do_not_page(outcomes: Mapping[str, Outcome], name: str) -> None:
    """On budget with bad streams in groups of 20: a rate without guards pages in more than 1 % of the evaluations, the rule in none."""
    services, pages, tickets, naive = outcomes[name]
    assert (pages, tickets) == (0, 0) and naive > services / 100


# Probabilities of a page, and of a page or a ticket. With 10 streams at 30 %, three or more are bad with probability 0.617, which is a
# ticket. With 37 streams at 14.4 %, six bad ones (0.451) are a page if one of them is from the last 5 minutes, and three (0.911) are a
# ticket. A missed burn may be detected at the next evaluation.
DETECTED = {
    "30 % 10": (0.0, 0.617),
    "30 % 20": (0.0, 0.965),
    "30 % 37": (0.605, 1.0),
    "30 % 100": (1.0, 1.0),
    "30 % 1000": (1.0, 1.0),
    "14.4 % 37": (0.217, 0.911),
    "14.4 % 100": (0.995, 1.0),
    "14.4 % 1000": (1.0, 1.0),
}


@pytest.mark.parametrize("name", list(DETECTED))
def test_burns_are_detected(outcomes: Mapping[str, Outcome], name: str) -> None:
    """Pages and tickets have the probabilities that the algorithm implies; too few streams give a ticket."""
    services, pages, tickets, _ = outcomes[name]
    for seen, chance in zip((pages, pages + tickets), DETECTED[name], strict=True):
        assert abs(seen / services - chance) <= 4 * (chance * (1 - chance) / services) ** 0.5 + 0.01, (seen, services)


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


def test_wilsons_bound_solves_its_equation() -> None:
    """The lower bound p solves (p̂ - p)² = z² p (1 - p) / n and is below the observed share p̂."""
    for k, n in ((3, 10), (6, 100), (53, 370), (1, 1), (9_999, 10_000)):
        bound = least(k, n)
        assert (k / n - bound) ** 2 == pytest.approx(2.3263478740408408**2 * bound * (1 - bound) / n) and bound < k / n


# Single cases.


def firing(store: Store, sql: str = ITL, at_s: int | None = NOW_S) -> set[tuple[str, str]]:
    """The services that fire, with severity."""
    return {(row["service"], row["severity"]) for row in ask(store, sql, at_s) if row["firing"]}


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


def test_rules_use_the_engines_clock(store: Store) -> None:
    """The unchanged rule pages for a current burn and ignores minutes in the future."""
    insert(store, int(time.time()), hour("now", service=new))
    insert(store, int(time.time()) + 7_200, hour("later", service=new))
    rows = store.select(ITL)
    assert [row[1:5] for row in rows if row[4]] == [("now", "client", "page", 1)] and {row[1] for row in rows} == {"now"}


def test_one_end_user_is_not_an_incident(store: Store) -> None:
    """Bad streams of one end user never fire. With two end users the rule fires; each counts once in 5 minutes."""
    insert(store, NOW_S, hour("one, at once", service=lambda ago: of(7, streams=20) if ago == 0 else {}))
    insert(store, NOW_S, hour("one, all hour", service=of(7, streams=9)))
    insert(store, NOW_S, hour("two, all hour", judged=10, service=of(7, 8, streams=5)))
    insert(store, NOW_S, hour("two, at once", service=lambda ago: of(7, 8, streams=10) if ago == 0 else {}))
    assert firing(store) == {("two, all hour", "page")}
    counted = {row["service"]: (row["bad"], row["clients"]) for row in ask(store, ITL, NOW_S) if row["severity"] == "page"}
    assert counted == {"one, at once": (1, 1), "one, all hour": (12, 1), "two, all hour": (24, 2), "two, at once": (2, 2)}


def test_an_end_user_of_two_models_counts_once(store: Store) -> None:
    """Rows of one service that differ in model, route or version are merged before clients are counted."""
    insert(store, NOW_S, [Minute("s", ago, 10, of(7), model=model) for ago in range(0, 60, 5) for model in ("a", "b")])
    assert {(row["bad"], row["clients"], row["firing"]) for row in ask(store, ITL, NOW_S)} == {(12, 1, 0)}


def test_streams_of_unknown_clients_count_each(store: Store) -> None:
    """Each stream without a known client counts as a separate client, so three are enough to fire; those of one known client are not."""
    insert(store, NOW_S, hour("not known", service=of(0, streams=4)))
    insert(store, NOW_S, hour("known", service=of(7, streams=4)))
    assert firing(store) == {("not known", "page")}


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
    assert firing(store) == {("two", "page"), ("not known", "page")} and firing(store, END_USERS) == set()
    insert(store, NOW_S, hour("one of three", reader=of(8, 9), connection=of(7)))
    assert ("one of three", "ticket") in firing(store, END_USERS)
    (ticket,) = (row for row in ask(store, END_USERS, NOW_S) if row["service"] == "one of three")
    assert (ticket["bad"], ticket["clients"]) == (36, 3)


@pytest.mark.parametrize(("name", "sides"), [("itl", ("service", "connection")), ("readers", ("reader", "connection"))])
def test_a_client_with_two_kinds_of_bad_streams_counts_once(store: Store, name: str, sides: tuple[str, str]) -> None:
    """Two bad streams of a client on different sides in the same 5 minutes count as one bad stream and one client."""
    insert(store, NOW_S, hour("s", 5, 5, 60, **dict.fromkeys(sides, of(7))))
    assert {(row["bad"], row["clients"], row["firing"]) for row in ask(store, RULES[name].sql, NOW_S)} == {(12, 1, 0)}
    both = {"itl": of(7, 8), "readers": of(7)}[name]
    insert(store, NOW_S, hour("t", 5, 5, 60, **{sides[0]: of(7, 8), sides[1]: both}))
    assert {(row["bad"], row["clients"]) for row in ask(store, RULES[name].sql, NOW_S) if row["service"] == "t"} == {(24, 2)}


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


def test_recovered_services_do_not_page(store: Store) -> None:
    """The long window still burns, the short one has recovered: its rate is low with many streams, or no stream is bad with few."""
    insert(store, NOW_S, hour("busy", judged=50, service=lambda ago: new(ago) | new(ago + 1) if ago > 30 else of(ago + 1, streams=1)))
    insert(store, NOW_S, hour("quiet", judged=5, service=lambda ago: new(ago) if ago > 30 else {}))
    assert {severity for _, severity in firing(store)} == {"ticket"}
    insert(store, NOW_S, hour("still", judged=5, service=lambda ago: new(ago) if ago > 30 or ago == 0 else {}))
    assert ("still", "page") in firing(store)


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


# Delay of pages.

WAITS = {(600, 1.0): (8, 12), (600, 0.5): (16, 22), (600, 0.3): (26, 34), (60, 1.0): (6, 12), (60, 0.5): (12, 24), (60, 0.3): (22, 42)}
TWINS = 15
LONGEST_MIN = 60


def test_how_long_it_takes_to_page(store: Store) -> None:
    """Medians over 15 services. 14.4 % of an hour's streams must be bad: 8.6 minutes if all fail, 29 minutes if 30 % fail."""
    rng = np.random.default_rng(5)
    for rate, share in WAITS:
        insert(store, NOW_S, [minute for twin in range(TWINS) for minute in incident(rng, f"{rate} {share} {twin}", rate, share)])
    first: dict[str, int] = {}
    for waited_min in range(0, LONGEST_MIN, 3):
        for service, severity in firing(store, at_s=NOW_S + 60 * waited_min):
            if severity == "page":
                first.setdefault(service, waited_min)
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
    """The cause and its share in each service's row."""
    return {row["service"]: (["", *NAMES][row["cause_number"]], row["cause_share"]) for row in ask(store, sql, NOW_S)}


def test_the_likely_cause_is_the_one_with_most_stalled_time(store: Store) -> None:
    """The cause is from the last hour and the same vantage. Causes of another budget are left out; without verdicts there is none."""
    insert(store, NOW_S, [minute for name in ("kv", "readers", "old", "elsewhere") for minute in hour(name, service=new, reader=new)])
    stalled(store, "kv", {"kv_pressure": 30, "scheduling": 10})
    stalled(store, "kv", {"kv_pressure": 30}, ago_min=40)
    stalled(store, "kv", {"consumer": 30}, ago_min=41)
    stalled(store, "readers", {"consumer": 60, "connection": 30, "host": 10})
    stalled(store, "old", {"kv_pressure": 30}, ago_min=61)
    stalled(store, "elsewhere", {"kv_pressure": 30}, vantage="server")
    nothing = {"old": ("", 0.0), "elsewhere": ("", 0.0)}
    assert cause_of(store, ITL) == {"kv": ("kv_pressure", 0.6), "readers": ("connection", 0.3), **nothing}
    assert cause_of(store, END_USERS) == {"kv": ("consumer", 0.3), "readers": ("consumer", 0.6), **nothing}


def test_every_cause_that_attribution_names_has_a_number() -> None:
    """Rules carry causes as numbers. A cause without a number would be reported as unknown."""
    listed = f"indexOf([{', '.join(repr(name) for name in NAMES)}], cause) AS cause_number"
    assert {*PARTS, "mixed", "unknown"} <= set(NAMES) and all(listed in sql for sql in (ITL, TTFT, END_USERS))
