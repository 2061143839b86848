"""Query the panels of the dashboards in tests and compare the answers with expected rows.

The SQL of the panels is taken from the built dashboards, expanded as Grafana does it, and sent to the read endpoint. The expected rows are
computed in plain loops over the raw rows of one store, without SQL. The expectations of the single panels are in the test modules.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

import httpx
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import boards
from legato_ingest.dashboards.macros import Range, expand
from legato_ingest.errors import StoreError
from legato_ingest.storage import Store

__all__ = [
    "ALL",
    "BOARDS",
    "DIMENSIONS",
    "ENGINE",
    "NODES",
    "Answer",
    "Asked",
    "Expected",
    "Past",
    "Row",
    "View",
    "by",
    "check",
    "dashboard",
    "gap_quantile",
    "grouped",
    "none",
    "panels",
    "panels_in",
    "quantile",
    "ratio",
    "same",
    "shown",
    "statements",
    "views",
    "weighted_quantile",
]

Row = dict[str, Any]
Each = TypeVar("Each")
ALL = "$__all"
BOARDS = ("streams", "now", "itl", "attribution", "compare", "nodes", "chunking", "cost", "stream", "runbook", "self")
# The column that each variable filters.
DIMENSIONS = {
    "tenant": "tenant",
    "service": "service_name",
    "release": "service_version",
    "model": "model",
    "provider": "provider",
    "route": "route",
    "vantage": "vantage",
    "transport": "transport",
}
ENGINE = {"tenant": "tenant", "engine": "engine_id"}
NODES = {"tenant": "tenant", "service": "service_name", "model": "model", "engine": "engine_id", "host": "host"}


# Dashboards and views.


@lru_cache(maxsize=16)
def dashboard(name: str) -> Any:
    """The JSON of a dashboard, by the name of its module."""
    return json.loads(json.dumps(getattr(boards, name).board().build(), cls=JSONEncoder))


def panels_in(name: str) -> list[Any]:
    """All panels of a dashboard, also those inside rows, without the rows' headings."""
    nested = ([panel, *panel.get("panels", ())] for panel in dashboard(name)["panels"])
    return [panel for group in nested for panel in group if panel["type"] != "row"]


def panels(name: str) -> dict[str, str]:
    """The SQL of every panel that has a query, by its title."""
    asking = [panel for panel in panels_in(name) if panel.get("targets")]
    assert all(len(panel["targets"]) == 1 for panel in asking)
    made = {panel["title"]: panel["targets"][0]["rawSql"] for panel in asking}
    assert len(made) == len(asking), "two panels of one dashboard have the same title"
    return made


def statements(name: str) -> dict[str, str]:
    """The SQL of a dashboard's panels, annotations and variables, by their names."""
    built = dashboard(name)
    marks = built.get("annotations", {}).get("list", ())
    made = {f"annotation {mark['name']}": mark["target"]["rawSql"] for mark in marks if mark.get("target", {}).get("rawSql")}
    for variable in built.get("templating", {}).get("list", ()):
        if variable["type"] == "query":
            made[f"variable {variable['name']}"] = variable["query"]["rawSql"]
    return {**panels(name), **made}


@dataclass(frozen=True)
class View:
    """A view of a dashboard: time range, interval of a point, and values of the variables (default "All")."""

    name: str
    span: Range
    values: Mapping[str, str | Sequence[str]] = field(default_factory=dict)

    def chosen(self, variable: str) -> list[str]:
        """The selected values of a variable."""
        given = self.values.get(variable, ALL)
        return [given] if isinstance(given, str) else list(given)

    def shows(self, row: Row, columns: Mapping[str, str] = DIMENSIONS) -> bool:
        """Whether the row matches the selected values of all variables."""
        pairs = ((self.chosen(variable), row[column] or "(none)") for variable, column in columns.items())
        return all("" in chosen or ALL in chosen or value in chosen for chosen, value in pairs)

    def has_minute(self, minute_s: int) -> bool:
        """Whether a minute (unix s) begins in the range. The plugin truncates the range to seconds."""
        return self.span.from_ms // 1000 <= minute_s < self.span.to_ms // 1000

    def _whole_minutes(self) -> tuple[int, int]:
        return -(-(self.span.from_ms // 1000) // 60) * 60, self.span.to_ms // 1000 // 60 * 60

    def has_whole_minute(self, at_s: float) -> bool:
        """Whether a time (unix s) lies in a minute that is complete in the range: rates leave out the others."""
        low, high = self._whole_minutes()
        return low <= at_s < high

    def seconds_of(self, point: int) -> int:
        """The length in s of the complete minutes in a point."""
        low, high = self._whole_minutes()
        return min(point + self.point_s, high) - max(point, low)

    def has_ns(self, at_ns: int) -> bool:
        """Whether a time (unix ns) lies in the range."""
        return self.span.from_ms * 10**6 <= at_ns <= self.span.to_ms * 10**6

    @property
    def point_s(self) -> int:
        """The interval of a point in s."""
        return max(1, self.span.interval_ms // 1000)

    def point(self, at_s: int) -> int:
        """The start (unix s) of the point that contains a time (unix s)."""
        return at_s // self.point_s * self.point_s


@dataclass(frozen=True)
class Past:
    """The content of a filled store: all rows of every raw table, and the time of filling."""

    now_ns: int
    tenant: str
    tables: Mapping[str, list[Row]]

    def __getattr__(self, name: str) -> list[Row]:
        try:
            return self.tables[name]
        except KeyError:
            raise AttributeError(name) from None

    def view(self, name: str, hours: float, point_s: int, values: Mapping[str, str | Sequence[str]] | None = None) -> View:
        """The last hours and the next 10 minutes, because filling takes time. The start is not a full minute."""
        from_ms = self.now_ns // 10**6 - round(hours * 3_600_000) + 17_123
        return View(name, Range(from_ms, self.now_ns // 10**6 + 600_000, point_s * 1000), values or {})


def views(past: Past, board: str = "") -> list[View]:
    """Views for a board: ranges of hours and weeks, several intervals, and variables with one, several and missing values."""
    # One ends with a minute in the past: the next minute does not belong to it.
    recent = past.view("recent", 1.5, 600)
    recent = replace(recent, span=replace(recent.span, to_ms=(past.now_ns // 60_000_000_000 - 3) * 60_000))
    ranges = [past.view("weeks", 15 * 24, 3600), past.view("hours", 3.3, 60), recent]
    tenants = past.view("tenants", 4, 600, {"tenant": past.tenant, "release": ["0.9", "1.0"], "transport": ["http/2", "iterator"]})
    if board == "nodes":
        chosen = {"engine": ["shop-gpu-1", "spec-1"], "host": ["node-3", "(none)"], "service": ["shop"]}
        return [*ranges, tenants, *(past.view(name, 3.3, 300, {name: values}) for name, values in chosen.items())]
    if board == "self":
        return ranges
    return [
        *ranges,
        tenants,
        past.view("services", 4, 300, {"service": ["shop", "mobile"], "vantage": "client"}),
        past.view("models", 4, 300, {"model": "demo-7b", "provider": "vllm", "route": ["/v1/mobile", "(none)"]}),
        past.view("nameless", 4, 3600, {"provider": "(none)", "tenant": "(none)", "service": ["no-such-service", ""]}),
    ]


# Answers.


@dataclass(frozen=True)
class Answer:
    """A status with an error message, or columns and rows. Times are in unix s (DateTime) or ns (DateTime64)."""

    status: int
    message: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()

    def as_rows(self) -> list[Row]:
        """The rows as dictionaries by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


Expected = Callable[[Past, View], list[Row]]


class Asked:
    """The read endpoint over a store with the content ``past``. Answers are cached in ``answers`` by text, so the store must not change.

    The first query of a statement goes over HTTP, through the guard of the endpoint. Later queries of the same statement, for other views,
    go to the store directly: the guard would parse the same statement again, which takes longer than to run it.
    """

    def __init__(self, past: Past, store: Store, url: str, client: httpx.Client, answers: dict[str, Answer] | None = None) -> None:
        self.past, self.store = past, store
        self._url, self._client = url, client
        self._answers = {} if answers is None else answers
        self._accepted = set[str]()

    def over_http(self, sql: str, view: View) -> Answer:
        """The endpoint's answer to a statement that is expanded for a view, with any status."""
        text = expand(sql, view.span, view.values)
        reply = self._client.post(self._url, params={"default_format": "JSONCompact"}, content=text.encode())
        return _answer(reply.content) if reply.status_code == 200 else Answer(reply.status_code, reply.text)

    def try_sql(self, sql: str, view: View) -> Answer:
        """The answer to a statement that is expanded for a view, with any status. It may come from the cache or the store."""
        text = expand(sql, view.span, view.values)
        if text not in self._answers:
            found = self._directly(text) if sql in self._accepted else None
            self._answers[text] = found or self.over_http(sql, view)
        answer = self._answers[text]
        if answer.status == 200:
            self._accepted.add(sql)
        return answer

    def _directly(self, text: str) -> Answer | None:
        with contextlib.suppress(StoreError):
            return _answer(self.store.query_bytes(text, fmt="JSONCompact"))
        # The endpoint decides on the status.
        return None

    def sql(self, sql: str, view: View) -> Answer:
        """The answer to a statement that must have the status 200."""
        answer = self.try_sql(sql, view)
        assert answer.status == 200, answer.message
        return answer

    def panel(self, board: str, title: str, view: View) -> Answer:
        """The answer to a panel's query."""
        return self.sql(panels(board)[title], view)


def _answer(content: bytes) -> Answer:
    body = json.loads(content)
    kinds = [_kind(column["type"]) for column in body["meta"]]
    rows = tuple(tuple(_cell(kind, cell) for kind, cell in zip(kinds, row, strict=True)) for row in body["data"])
    return Answer(200, "", tuple(column["name"] for column in body["meta"]), rows)


def _kind(name: str) -> str:
    for wrapper in ("Nullable(", "LowCardinality(", "SimpleAggregateFunction("):
        if name.startswith(wrapper):
            return _kind(name[len(wrapper) : -1])
    return name


def _cell(kind: str, cell: Any) -> Any:
    if cell is None:
        return None
    if kind.startswith("DateTime"):
        whole, _, rest = cell.partition(".")
        seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
        return seconds * 10**9 + int(rest.ljust(9, "0")) if kind.startswith("DateTime64") else seconds
    if kind.startswith(("Int", "UInt")):
        return int(cell)
    return float(cell) if kind.startswith("Float") else cell


def same(answer: Answer, expected: Sequence[Row], where: str = "") -> None:
    """Assert that an answer has exactly the expected columns and rows, in order; floats within 1e-9."""
    found = answer.as_rows()
    if expected:
        assert list(answer.columns) == list(expected[0]), where
    for number, (row, should) in enumerate(zip(found, expected, strict=False)):
        wrong = {name: (row[name], value) for name, value in should.items() if not _close(row[name], value)}
        assert not wrong, f"{where}, row {number} of {len(found)}: (found, expected) {wrong} in {should}"
    assert len(found) == len(expected), f"{where}: {len(found)} rows, expected {len(expected)}"


def check(asked: Asked, board: str, title: str, expected: Expected, settings: Mapping[str, str] | None = None) -> None:
    """Assert that a panel gives the expected rows in every view, and that one view at least is not empty.

    ``settings`` are the values of text boxes.
    """
    compared = False
    for view in views(asked.past, board):
        view = replace(view, values={**view.values, **(settings or {})})
        answer = asked.panel(board, title, view)
        should = expected(asked.past, view)
        same(answer, should, f"{title}, {view.name}")
        compared |= any(value not in (None, 0) for row in should for value in row.values())
    assert compared, f"{title}: no view shows anything, so nothing was compared"


def shown(rows: Iterable[Row], view: View, columns: Mapping[str, str] = DIMENSIONS) -> list[Row]:
    """The rows in the view's range that match its variables."""
    return [row for row in rows if view.has_minute(row["minute"]) and view.shows(row, columns)]


def _close(found: Any, should: Any) -> bool:
    if isinstance(should, float) or isinstance(found, float):
        numbers = isinstance(found, float | int) and isinstance(should, float | int)
        return numbers and math.isclose(found, should, rel_tol=1e-9, abs_tol=1e-12)
    return bool(found == should)


def none(answer: Answer) -> bool:
    """Whether an answer is empty: no rows, or only NULL and 0."""
    return all(cell in (None, 0) for row in answer.rows for cell in row)


# Expected figures.


def by(rows: Iterable[Each], key: Callable[[Each], Hashable]) -> dict[Any, list[Each]]:
    """Group rows by key, with ascending keys."""
    groups: dict[Any, list[Each]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(sorted(groups.items()))


def grouped(rows: Iterable[Row], key: Callable[[Row], Hashable], made: Callable[[Any, list[Row]], Row]) -> list[Row]:
    """One row for each key, with ascending keys."""
    return [made(name, group) for name, group in by(rows, key).items()]


def ratio(above: float, below: float) -> float | None:
    """The quotient, or None if the divisor is 0."""
    return above / below if below else None


def quantile(values: Iterable[float | None], level: float) -> float | None:
    """The middle of the bucket (16 per doubling) of the value at rank ⌈level n⌉, which is within 2.3 % of the value."""
    return _order_statistic(values, level, 16, 0.023)


def gap_quantile(values: Iterable[float | None], level: float) -> float | None:
    """The middle of the bucket (4 per doubling) of the gap at rank ⌈level n⌉, which is within 9.1 % of the gap."""
    return _order_statistic(values, level, 4, 0.091)


def _order_statistic(values: Iterable[float | None], level: float, per_doubling: int, within: float) -> float | None:
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    exact = ordered[math.ceil(round(level * len(ordered), 6)) - 1]
    middle = _middle(_bucket(exact, per_doubling), per_doubling)
    assert abs(middle - exact) <= within * max(exact, 1) or exact < 1, f"{middle} is not within {within} of {exact}"
    return middle


def weighted_quantile(gaps: Sequence[float], level: float) -> float | None:
    """The time-weighted quantile of gaps: the middle of the first bucket (4 per doubling) up to which gaps fill ``level`` of all time.

    Each gap counts as the middle of its bucket.
    """
    counts = Counter(_bucket(gap, 4) for gap in gaps)
    total = math.fsum(count * _middle(bucket, 4) for bucket, count in counts.items())
    seen = 0.0
    for bucket, count in sorted(counts.items()):
        seen += count * _middle(bucket, 4)
        if seen >= level * total * (1 - 1e-9):
            return _middle(bucket, 4)
    return None


def _bucket(value: float, per_doubling: int) -> int:
    return math.floor(math.log2(max(value, 1)) * per_doubling)


def _middle(bucket: int, per_doubling: int) -> float:
    return float(2 ** ((bucket + 0.5) / per_doubling))
