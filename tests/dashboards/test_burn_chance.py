"""The burn-rate rules on thousands of services: rates of false pages on budget and of detections, for any mix of end users."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dashboards.alerts.burn import ITL
from helpers.dashboards.burning import (
    ALLOWED,
    CHANCES,
    NOW_S,
    Maps,
    Minute,
    ask,
    at_least,
    burns,
    chance,
    enough,
    firing,
    insert,
    table,
    upper,
)  # fmt: skip
from helpers.servers.stores import copy_of, empty
from legato_ingest.storage import Store

FALSE_PAGES_MAX = 1e-3
Outcome = tuple[int, int, int, int]
Row = dict[str, Any]


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
# So many services are evaluated at once: the rule compares each minute with each service that is in doubt.
SERVICES_MAX = 9_000
# The largest probability of a page on budget, at 100 streams; computed below.
WORST = 0.000535


def simulated(rng: np.random.Generator, name: str, group: Group, size: int) -> pa.Table:
    """Minutes of services with end users at random times. Each has ``size`` streams, which are all bad with the group's bad share.

    End users with one stream are unknown: a rule counts each of their streams as an end user.
    """
    n, share, spread_min, parts, services = group
    readers = rng.multinomial(n, [1 / parts] * parts, size=services)
    bad = rng.binomial(readers, share)
    at = readers > 0
    ago = (spread_min // parts * np.arange(parts) + rng.integers(0, 5, (services, parts)))[at]
    hit, seen = (_clients(rng, counts[at], size) for counts in (bad, readers))
    if size > 1:
        # The bad ones are among all that were seen.
        firsts = np.concatenate([[0], np.cumsum(seen.lengths)[:-1]])
        inside = np.arange(int(hit.lengths.sum())) - np.repeat(np.concatenate([[0], np.cumsum(hit.lengths)[:-1]]), hit.lengths)
        hit = replace(hit, clients=seen.clients[np.repeat(firsts, hit.lengths) + inside])
    numbers = pa.array(np.broadcast_to(np.arange(services)[:, None], at.shape)[at].astype(np.int32))
    names = pa.DictionaryArray.from_arrays(numbers, pa.array([f"{name}/{each}" for each in range(services)])).cast(pa.string())
    return table(NOW_S, names, ago, readers[at] * size, {"bad_service_clients": hit, "judged_clients": seen})


def _clients(rng: np.random.Generator, counts: NDArray[np.int64], size: int) -> Maps:
    """Maps with this many end users of ``size`` streams; with one stream each, they are unknown."""
    if size == 1:
        return Maps((counts > 0).astype(np.int64), np.zeros(int((counts > 0).sum()), np.uint64), counts[counts > 0].astype(np.uint32))
    total = int(counts.sum())
    return Maps(counts, rng.integers(1, 2**63, total, np.int64).astype(np.uint64), np.full(total, size, np.uint32))


@pytest.fixture(scope="module")
def outcomes(unfilled: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """For each group the number of services, of pages, of tickets, and of pages that a rule without guards would raise.

    The result depends on the rule and on this module alone. It is kept, because several processes run the tests of this module.
    """
    of = hashlib.sha256((ITL + pathlib.Path(__file__).read_text(encoding="utf-8")).encode()).hexdigest()[:16]
    target = tmp_path_factory.mktemp("chance") / "kept"
    copy_of(f"burn-chance-{of}", lambda folder: _keep(folder, _simulated_outcomes(unfilled)), target)
    kept = json.loads((target / "outcomes.json").read_text(encoding="utf-8"))
    return {name: (services, pages, tickets, naive) for name, (services, pages, tickets, naive) in kept.items()}


def _keep(folder: pathlib.Path, found: dict[str, Outcome]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "outcomes.json").write_text(json.dumps(found), encoding="utf-8")


def _simulated_outcomes(unfilled: Store) -> dict[str, Outcome]:
    rng, found = np.random.default_rng(7), dict[str, Outcome]()
    for groups in _at_once():
        empty(unfilled)
        for name, group in groups.items():
            unfilled.insert("stream_minutes", simulated(rng, name, group, 20 if name in CLUSTERS else 1))
        found |= _counted(unfilled, groups)
    return found


def _at_once() -> Iterator[dict[str, Group]]:
    """The groups, so many at a time as have at most ``SERVICES_MAX`` services."""
    taken = dict[str, Group]()
    for name, group in (GROUPS | CLUSTERS).items():
        if sum(services for *_, services in (*taken.values(), group)) > SERVICES_MAX:
            yield taken
            taken = {}
        taken[name] = group
    yield taken


def _counted(store: Store, groups: Mapping[str, Group]) -> dict[str, Outcome]:
    """Evaluate the rule on the services of these groups, which the store contains."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in ask(store, ITL, NOW_S):
        found[row["service"].split("/")[0]][("page", "ticket").index(row["severity"])] += row["firing"]
    naive = f"""
        SELECT splitByChar('/', service_name)[1], countIf(bad >= 6 * {ALLOWED} * n)
        FROM (SELECT service_name, sum(judged) AS n, sum(judged - good) AS bad FROM stream_minutes FINAL GROUP BY service_name)
        GROUP BY 1"""
    for name, services in store.select(naive):
        found[str(name)][2] = int(services)
    assert found.keys() == groups.keys()
    return {name: (group[-1], found[name][0], found[name][1], found[name][2]) for name, group in groups.items()}


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
        first = next(k for k in range(lowest, n + 1) if any(burns(k, n, limit) for limit in limits))
        chances[n] = at_least(first, n, ALLOWED)
    worst = max(chances, key=lambda n: chances[n])
    assert (worst, round(chances[worst], 6)) == (100, WORST) and WORST < FALSE_PAGES_MAX


@pytest.mark.parametrize("name", list(CLUSTERS))
def test_clusters_of_one_end_user_do_not_page(outcomes: Mapping[str, Outcome], name: str) -> None:
    """On budget with bad streams in groups of 20: a rate without guards pages in more than 1 % of the evaluations, the rule in none.

    A service in which all streams of one end user are bad gets a ticket.
    """
    services, pages, tickets, naive = outcomes[name]
    p = 1 - (1 - ALLOWED) ** CLUSTERS[name][0]
    assert pages == 0 and naive > services / 100
    assert abs(tickets / services - p) <= 4 * (p * (1 - p) / services) ** 0.5


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
    for seen, p in zip((pages, pages + tickets), DETECTED[name], strict=True):
        assert abs(seen / services - p) <= 4 * (p * (1 - p) / services) ** 0.5 + 0.01, (seen, services)


def test_the_bound_of_the_tail_is_close_and_never_too_small() -> None:
    """At most 12 % above the exact binomial tail where a page or a ticket is decided."""
    for n in (2, 5, 20, 100, 1_000, 10_000):
        for k in range(1, min(n, 200) + 1):
            exact = at_least(k, n, ALLOWED)
            assert chance(k, n) >= exact * (1 - 1e-6)
            assert exact > CHANCES["ticket"] or chance(k, n) <= 1.12 * exact


# Mixes of 1 to 10,000 end users with 1 to 10,000 streams each.


def mix(rng: np.random.Generator, users_max: int, streams_max: int) -> NDArray[np.int64]:
    """The number of streams of each end user: both the number of end users and the streams of each are log-uniform."""
    users = int(np.exp(rng.uniform(0, np.log(users_max))))
    top = np.exp(rng.uniform(0, np.log(streams_max)))
    return np.exp(rng.uniform(0, np.log(top), users)).astype(np.int64)


def spread(
    rng: np.random.Generator, service: str, streams: NDArray[np.int64], bad: NDArray[np.int64], minutes: int, *, known: bool = True
) -> list[Minute]:
    """Minutes of a service: each end user's streams, of which ``bad`` are bad, in one to three of the last ``minutes``."""
    found: list[tuple[dict[int, int], dict[int, int]]] = [({}, {}) for _ in range(minutes)]
    agos = rng.integers(0, minutes, (len(streams), 3))
    parts = rng.multinomial(streams, [1 / 3] * 3)
    # The bad ones are drawn without replacement: from the first part, then from the second, and the others are in the third.
    first = rng.hypergeometric(parts[:, 0], parts[:, 1] + parts[:, 2], bad)
    second = rng.hypergeometric(parts[:, 1], parts[:, 2], bad - first)
    bads = np.stack([first, second, bad - first - second], axis=1)
    for user, of_user in enumerate(zip(agos.tolist(), bads.tolist(), (parts - bads).tolist(), strict=True), 1):
        client = user if known else 0
        for at, *counts in zip(*of_user, strict=True):
            for side, count in enumerate(counts):
                if count:
                    found[at][side][client] = found[at][side].get(client, 0) + count
    return [
        Minute(service, ago, sum(wrong.values()) + sum(good.values()), wrong, good=good)
        for ago, (wrong, good) in enumerate(found)
        if wrong or good
    ]


def clustered(rng: np.random.Generator, service: str, streams: NDArray[np.int64], minutes: int) -> list[Minute]:
    """Minutes of a service in which all streams of an end user in five minutes are bad, or none, with the share of the budget."""
    hit = rng.random((minutes // 5, len(streams) + 1)) < ALLOWED
    found = []
    for minute in spread(rng, service, streams, 0 * streams, minutes):
        sides: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for user, many in minute.good.items():
            sides[0 if hit[minute.ago_min // 5, user] else 1][user] = many
        found.append(replace(minute, service_bad=sides[0], good=sides[1]))
    return found


@pytest.mark.parametrize("is_clustered", [False, True], ids=["single streams", "user slots"])
def test_a_mix_on_budget_hardly_ever_pages(store: Store, is_clustered: bool) -> None:
    """At most 1 of 1,000 evaluations (95 % confidence), whether single streams are bad or all of an end user's streams in 5 minutes."""
    rng, services = np.random.default_rng(12), 3_000
    minutes = list[Minute]()
    for number in range(services):
        streams, name = mix(rng, 300, 300), f"s{number}"
        minutes += clustered(rng, name, streams, 60) if is_clustered else spread(rng, name, streams, rng.binomial(streams, ALLOWED), 60)
    insert(store, NOW_S, minutes)
    pages = sum(severity == "page" for _, severity in firing(store))
    assert upper(pages, services) <= FALSE_PAGES_MAX, pages


def all_bad(rng: np.random.Generator) -> dict[str, NDArray[np.int64]]:
    """The numbers of streams of the end users of services in which every stream is bad."""
    mixes = {"two at once": np.array([19, 18]), "six heavy": np.full(6, 200), "many light": np.ones(10_000, np.int64)}
    return mixes | {f"mix {number}": mix(rng, 10_000, 10_000) for number in range(150)}


# Streams of each end user, for services with one bad end user of fifty-one, and with half of the streams of six end users bad.
ONE_BAD = (3, 40, 1_000)
HALF_BAD = (8, 200, 5_000)


@pytest.fixture(scope="module")
def judged(unfilled: Store) -> Sequence[Row]:
    """The rows of the services of the tests below, from one evaluation: what precedes the slash in a name is the test's."""
    minutes, rng = list[Minute](), np.random.default_rng(11)
    for name, streams in all_bad(rng).items():
        minutes += spread(rng, f"all/{name}", streams, streams, int(rng.integers(1, 16)))
    rng = np.random.default_rng(13)
    for per_user in ONE_BAD:
        streams = np.full(51, per_user)
        minutes += spread(rng, f"one/{per_user} each", streams, streams * (np.arange(51) == 7), 60)
    for kind in ("half of each", "half of them"):
        rng = np.random.default_rng(14)
        for per_user in HALF_BAD:
            streams = np.full(6, per_user)
            bad = streams // 2 if kind == "half of each" else streams * (np.arange(6) < 3)
            minutes += spread(rng, f"{kind}/{per_user} each", streams, bad, 15)
    empty(unfilled)
    insert(unfilled, NOW_S, minutes)
    return ask(unfilled, ITL, NOW_S)


def _of(judged: Sequence[Row], test: str) -> list[Row]:
    return [{**row, "service": row["service"].partition("/")[2]} for row in judged if row["service"].partition("/")[0] == test]


def test_a_service_with_every_stream_bad_pages(judged: Sequence[Row]) -> None:
    """Of two or more end users and 37 or more streams, within 15 minutes. The burn rate is that of the streams: 1 / (1 - objective)."""
    mixes = all_bad(np.random.default_rng(11))
    rows = {row["service"]: row for row in _of(judged, "all") if row["severity"] == "page"}
    assert rows.keys() == mixes.keys()
    for name, streams in mixes.items():
        row, total = rows[name], int(streams.sum())
        assert row["burn_rate"] == pytest.approx(1 / ALLOWED) and row["bad"] == row["streams"] == total
        assert row["users_bad"] == row["users"] == len(streams)
        assert row["firing"] == (len(streams) >= 2 and total >= 37), (name, row)


def test_one_bad_end_user_of_fifty_is_one_ticket(judged: Sequence[Row]) -> None:
    """No page, and one ticket of a single end user, whatever the number of streams."""
    fired = [row for row in _of(judged, "one") if row["firing"]]
    assert {(row["service"], row["severity"]) for row in fired} == {(f"{per_user} each", "ticket") for per_user in ONE_BAD}
    assert {row["users_bad"] for row in fired} == {1}


@pytest.mark.parametrize("kind", ["half of each", "half of them"])
def test_half_of_all_streams_bad_at_six_end_users_pages(judged: Sequence[Row], kind: str) -> None:
    """Whether each of six end users has half of its streams bad, or three have all of them bad."""
    paging = {row["service"] for row in _of(judged, kind) if row["firing"] and row["severity"] == "page"}
    assert paging == {f"{per_user} each" for per_user in HALF_BAD}
