"""Generate 1-minute rollups of invented services, and compute in plain Python what the burn-rate rules should return for them.

The module shares no SQL with the rules. `expected` aggregates the minutes of one service, with the windows of the SRE workbook's table and
Wilson's formula written out again. Each test case is a service with its own name, so one query evaluates thousands of cases.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dashboards.alerts.burn import END_USERS, ITL, TTFT
from helpers.dashboards.minutes import rows_in
from legato_ingest.storage import Store

__all__ = [
    "ALLOWED",
    "CHANCES",
    "Maps",
    "Minute",
    "NOW_S",
    "RULES",
    "Rule",
    "ask",
    "at_least",
    "burns",
    "chance",
    "enough",
    "expected",
    "firing",
    "incident",
    "insert",
    "made_up",
    "of",
    "table",
    "upper",
]

Row = dict[str, Any]
# The clock of tests (unix s).
NOW_S = int(time.time())
ALLOWED = 0.01
_PAGES = (("page", 14.4, 60, 5), ("page", 6.0, 360, 30))
_TICKET = (("ticket", 1.0, 3 * 1440, 360),)
_CLIENTS = ("bad_service_clients", "bad_connection_clients", "bad_reader_clients", "bad_late_clients")
# The largest probability of so many bad user slots on budget.
CHANCES = {"page": 1e-3, "ticket": 1e-2}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its SQL, the side that it charges, when it charges a failed connection, and its windows (minutes)."""

    sql: str
    own: str
    connection: str
    windows: Sequence[tuple[str, float, int, int]]


RULES = {
    "itl": Rule(ITL, "service", "shared", (*_PAGES, *_TICKET)),
    "ttft": Rule(TTFT, "late", "", (*_PAGES, *_TICKET)),
    "readers": Rule(END_USERS, "reader", "private", (("ticket", 6.0, 360, 30), *_TICKET)),
}


@dataclass(frozen=True, slots=True)
class Minute:
    """A row of `stream_minutes`, ``ago_min`` minutes before the current one, with its bad streams by client (0: unknown).

    ``good``: good streams by client. All other good streams are of unknown clients.
    """

    service: str
    ago_min: int
    judged: int
    service_bad: Mapping[int, int] = field(default_factory=dict)
    connection_bad: Mapping[int, int] = field(default_factory=dict)
    reader_bad: Mapping[int, int] = field(default_factory=dict)
    late_bad: Mapping[int, int] = field(default_factory=dict)
    good: Mapping[int, int] = field(default_factory=dict)
    vantage: str = "client"
    tenant: str = ""
    model: str = ""
    objective: str = "default"

    def bad(self, side: str) -> Mapping[int, int]:
        """The bad streams of one side by client."""
        found: Mapping[int, int] = getattr(self, f"{side}_bad")
        return found

    def seen(self) -> Mapping[int, int]:
        """The judged streams by client."""
        total = dict(self.good)
        for side in ("service", "connection", "reader", "late"):
            for client, streams in self.bad(side).items():
                total[client] = total.get(client, 0) + streams
        total[0] = total.get(0, 0) + self.judged - sum(total.values())
        assert total[0] >= 0, "more bad and good streams than judged ones"
        return {client: streams for client, streams in total.items() if streams}


@dataclass(frozen=True, slots=True)
class Maps:
    """A column of maps: the number of entries of each row, and all keys and values."""

    lengths: NDArray[np.int64]
    clients: NDArray[np.uint64]
    streams: NDArray[np.uint32]

    def array(self) -> pa.Array:
        """The column as an Arrow map array."""
        offsets = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), pa.array(self.clients), pa.array(self.streams))

    def sums(self) -> NDArray[np.int64]:
        """The number of streams of each row."""
        ends: NDArray[Any] = np.concatenate([[0], np.cumsum(self.streams)])[np.concatenate([[0], np.cumsum(self.lengths)])]
        return ends[1:].astype(np.int64) - ends[:-1].astype(np.int64)


def table(at_s: int, service: pa.Array, ago_min: NDArray[Any], judged: NDArray[Any], bad: Mapping[str, Maps], **more: pa.Array) -> pa.Table:
    """Rows of `stream_minutes` as the rollup worker writes them at ``at_s`` (unix s). ``more`` are other columns of the key."""
    none = Maps(np.zeros(len(judged), np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint32))
    maps = {name: bad.get(name, none) for name in _CLIENTS}
    maps["judged_clients"] = bad["judged_clients"]
    late = maps["bad_late_clients"].sums()
    frozen = sum((maps[name].sums() for name in _CLIENTS[:3]), np.zeros(len(judged), np.int64))
    counts = {"streams": judged, "judged": judged, "good": judged - late - frozen, "bad_gap": frozen, "bad_late": late}
    rolled = np.full(len(judged), at_s * 1000, np.int64)
    columns = {
        "minute": pa.array((at_s // 60 - ago_min) * 60, pa.timestamp("s", "UTC")),
        "service_name": service,
        "rolled_at": pa.array(rolled, pa.timestamp("ms", "UTC")),
        **{name: pa.array(values.astype(np.uint32)) for name, values in counts.items()},
        **{name: column.array() for name, column in maps.items()},
    }
    defaults = {"vantage": pa.repeat(pa.scalar("client"), len(judged))}
    return pa.table({**columns, **defaults, **more})


def insert(store: Store, at_s: int, minutes: Sequence[Minute]) -> None:
    """Insert these minutes relative to ``at_s`` (unix s)."""
    names = {name: name.removesuffix("_clients").removeprefix("bad_") for name in _CLIENTS}
    bad = {name: _maps([minute.bad(side) for minute in minutes]) for name, side in names.items()}
    bad["judged_clients"] = _maps([minute.seen() for minute in minutes])
    texts = {
        name: pa.array([getattr(minute, name) for minute in minutes], pa.string()) for name in ("vantage", "tenant", "model", "objective")
    }
    ago, judged = (np.array([getattr(minute, name) for minute in minutes], np.int64) for name in ("ago_min", "judged"))
    store.insert("stream_minutes", table(at_s, pa.array([minute.service for minute in minutes]), ago, judged, bad, **texts))


def _maps(rows: Sequence[Mapping[int, int]]) -> Maps:
    keys = [client for row in rows for client in row]
    values = [streams for row in rows for streams in row.values()]
    return Maps(np.array([len(row) for row in rows], np.int64), np.array(keys, np.uint64), np.array(values, np.uint32))


def ask(store: Store, sql: str, at_s: int | None = None) -> list[Row]:
    """All rows of a rule, with the clock at ``at_s`` (unix s) or else the engine's clock."""
    assert sql.count("now() AS at,") == 1 and sql.endswith("LIMIT 1000\n")
    if at_s is not None:
        sql = sql.replace("now() AS at,", f"toDateTime({at_s}, 'UTC') AS at,")
    return rows_in(store, sql.removesuffix("LIMIT 1000\n"))


def firing(store: Store, sql: str = ITL, at_s: int | None = None) -> set[tuple[str, str]]:
    """The services that fire, with severity, with the clock at ``at_s`` (default: ``NOW_S``)."""
    return {(row["service"], row["severity"]) for row in ask(store, sql, NOW_S if at_s is None else at_s) if row["firing"]}


# Services.


def of(*clients: int, streams: int = 2) -> dict[int, int]:
    """A map with ``streams`` bad streams for each of these clients."""
    return dict.fromkeys(clients, streams)


def made_up(rng: random.Random, service: str) -> list[Minute]:
    """A random service: quiet or busy, with few or many, known or unknown clients, and minutes up to 5 minutes in the future."""
    busy, bad = rng.choice((1, 3, 30, 400)), rng.choice((0.0, 0.01, 0.06, 0.15, 0.5))
    clients = [0, *(rng.randrange(1, 2**64) for _ in range(rng.choice((1, 2, 40))))]
    span_min: int = rng.choice((5, 30, 60, 360, 1500, 4330))
    minutes: list[Minute] = []
    for _ in range(rng.randrange(1, 40)):
        judged = rng.randrange(0, 2 * busy)
        left, sides = judged, list[dict[int, int]]()
        for _ in range(4):
            hit = sum(rng.random() < bad for _ in range(rng.randrange(1 + left)))
            left -= hit
            sides.append(shared_out(rng, hit, clients[: 1 + rng.randrange(len(clients))]))
        ago = rng.randrange(-5, span_min) if rng.random() < 0.8 else rng.choice((0, 4, 5, 59, 60, 359, 1439, 1440, 4319, 4320))
        model = rng.choice(("a", "b"))
        good = shared_out(rng, rng.randrange(1 + left), clients)
        if not any(minute.ago_min == ago and minute.model == model for minute in minutes):
            minutes.append(Minute(service, ago, judged, sides[0], sides[1], sides[2], sides[3], good, model=model))
    return minutes


def shared_out(rng: random.Random, streams: int, clients: Sequence[int]) -> dict[int, int]:
    """Distribute the streams over the clients at random."""
    found: dict[int, int] = defaultdict(int)
    for _ in range(streams):
        found[rng.choice(clients)] += 1
    return dict(found)


def incident(rng: np.random.Generator, service: str, per_hour: int, share: float) -> Iterator[Minute]:
    """Six good hours, then one hour in which this share of streams is bad, with unknown clients."""
    for ago in range(0, 360, 5):
        yield Minute(service, ago, int(rng.poisson(per_hour / 12)))
    for after in range(1, 60):
        if streams := int(rng.poisson(per_hour / 60)):
            yield Minute(service, -after, streams, of(0, streams=bad) if (bad := int(rng.binomial(streams, share))) else {})


# The rules in Python.


def chance(k: int, n: int, share: float = ALLOWED) -> float:
    """An upper bound of the probability of ``k`` or more bad ones among ``n`` on budget: the first term and a geometric series."""
    if k <= n * share:
        return 1.0
    return min(1.0, math.exp(_log_binomial(k, n, share)) / (1 - (n - k) * share / ((k + 1) * (1 - share))))


def burns(k: int, n: int, limit: float, severity: str = "page") -> bool:
    """Whether a long window burns at least ``limit`` times too fast and not by chance, with one stream for each of many end users."""
    return k >= 3 and k / n >= limit * ALLOWED - 1e-9 and chance(k, n) <= CHANCES[severity]


def enough(limit: float) -> int:
    """The number of streams that contain three bad ones with 90 % probability at a burn rate of ``limit``."""
    return math.ceil(5.32 / (limit * ALLOWED))


def expected(rule: Rule, minutes: Iterable[Minute]) -> dict[str, Row]:
    """The expected row of a rule for one service at one vantage, by severity."""
    kept = [minute for minute in minutes if 0 <= minute.ago_min < 3 * 1440 and minute.judged]
    windows = [*rule.windows, *_counted(rule, kept)] if kept else []
    looks: dict[str, list[Row]] = {}
    for severity, limit, long_min, short_min in windows:
        look = _look(rule, kept, severity, limit, long_min, short_min)
        looks.setdefault(severity, []).append(look)
    best = {severity: min(found, key=_worst_first) for severity, found in looks.items()}
    if "ticket" in best and best.get("page", {}).get("firing"):
        best["ticket"]["firing"] = 0
    return best


def _worst_first(look: Row) -> tuple[float, ...]:
    return -look["firing"], -look["burn_limit"] if look["firing"] else -look["burn_rate"] / look["burn_limit"], look["window_s"]


def _counted(rule: Rule, kept: Sequence[Minute]) -> list[tuple[str, float, int, int]]:
    """The window with the last 37 streams, if the last hour has too few for a page."""
    pages = any(severity == "page" for severity, *_ in rule.windows)
    if not pages or sum(minute.judged for minute in kept if minute.ago_min < 60) >= enough(14.4):
        return []
    for end_min in range(5, 1445, 5):
        if sum(minute.judged for minute in kept if minute.ago_min < end_min) >= enough(14.4):
            return [("ticket", 14.4, end_min, end_min)]
    return []


def _look(rule: Rule, kept: Sequence[Minute], severity: str, limit: float, long_min: int, short_min: int) -> Row:
    # A short window without a stream ends at the newest slot with one, if that is less than an hour old.
    newest_min = min((minute.ago_min for minute in kept), default=0) // 5 * 5
    from_min = newest_min if short_min <= newest_min < 60 else 0
    long = [minute for minute in kept if minute.ago_min < long_min]
    short = [minute for minute in kept if from_min <= minute.ago_min < from_min + short_min]
    path = _by_user(long, ["connection"])
    path_users = len({client for _, client in path if client}) + sum(n for (_, client), n in path.items() if not client)
    charged = {"shared": path_users >= 2, "private": path_users < 2, "": False}[rule.connection]
    sides = [rule.own, "connection"] if charged else [rule.own]
    seen, bad = _by_user(long, None), _by_user(long, sides)
    k, k_short = sum(bad.values()), sum(_by_user(short, sides).values())
    n, n_short = (sum(minute.judged for minute in window) for window in (long, short))
    users, users_bad = ({client for _, client in found if client} for found in (seen, bad))
    unknown, unknown_bad = (sum(many for (_, client), many in found.items() if not client) for found in (seen, bad))
    slots, slots_bad = (sum(1 for _, client in found if client) + more for found, more in ((seen, unknown), (bad, unknown_bad)))
    is_long = k > 0 and k / n >= limit * ALLOWED - 1e-9
    is_short = k_short >= 3 and k_short / n_short >= limit * ALLOWED - 1e-9 if n_short >= enough(limit) else k_short >= 1
    is_shared = len(users_bad) + unknown_bad >= 2 and chance(slots_bad, slots) <= CHANCES[severity]
    is_private = severity == "ticket" and len(users_bad) == 1 and not unknown_bad and len(users) * _worst(seen, bad) <= CHANCES["ticket"]
    too_few = severity == "page" and n < enough(limit)
    firing = is_long and is_short and not too_few and k >= 3 and (is_shared or is_private)
    counts = {"users_bad": len(users_bad), "users": len(users), "unknown_bad": unknown_bad, "unknown": unknown}
    figures = {"burn_rate": k / n / ALLOWED if n else 0.0, "burn_limit": limit, "bad": k, "streams": n, "window_s": 60 * long_min}
    return {"firing": int(firing), **figures, **counts}


def _by_user(minutes: Sequence[Minute], sides: Sequence[str] | None) -> dict[tuple[int, int], int]:
    """The bad streams (``sides`` None: all streams) of each slot of five minutes and client."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    for minute in minutes:
        for streams in [minute.seen()] if sides is None else [minute.bad(side) for side in sides]:
            for client, many in streams.items():
                if many:
                    found[minute.ago_min // 5, client] += many
    return found


def _worst(seen: Mapping[tuple[int, int], int], bad: Mapping[tuple[int, int], int]) -> float:
    """The probability on budget of the bad streams of the single known client that has any."""
    ((client, k),) = Counter({who: sum(many for (_, other), many in bad.items() if other == who) for _, who in bad}).items()
    return chance(k, sum(many for (_, other), many in seen.items() if other == client))


def upper(events: int, trials: int, confidence: float = 0.95) -> float:
    """The upper confidence bound of a share, given ``events`` of ``trials`` (Clopper and Pearson, 1934)."""
    low, high = events / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        below = sum(math.exp(_log_binomial(k, trials, middle)) for k in range(events + 1))
        low, high = (middle, high) if below > 1 - confidence else (low, middle)
    return high


def at_least(k: int, n: int, p: float) -> float:
    """The probability of ``k`` or more events in ``n`` trials with the share ``p``, accurate for rare events."""
    total = 0.0
    for each in range(k, n + 1):
        term = math.exp(_log_binomial(each, n, p))
        total += term
        if each > n * p and term < total * 1e-12:
            break
    return total


def _log_binomial(k: int, n: int, p: float) -> float:
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return ways + k * math.log(p) + (n - k) * math.log1p(-p)
