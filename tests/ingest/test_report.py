"""The report's figures, against the same computed in plain Python from the spans that were sent."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from rich.console import Console, RenderableType

from helpers.serving import served
from helpers.spans import SECOND_NS, native_span, request, scope_of
from legato._timeline import pack
from legato_ingest import read, report
from legato_ingest.figures import count, duration, p99, ratio, share
from legato_ingest.metrics import Metrics
from legato_ingest.reader import Reader
from legato_ingest.rows import Limits, rows_of
from legato_ingest.settings import load
from legato_ingest.store import Store

TEXT = 1


@dataclass
class Told:
    """A stream as it was sent: its content's times, and how it ended."""

    group: tuple[str, str, str]
    times_us: list[int]
    outcome: str
    duration_us: int

    def gaps(self) -> list[int]:
        """Between chunks (all lie more than 5 ms apart), and the open one."""
        found = [b - a for a, b in zip(self.times_us, self.times_us[1:], strict=False)]
        if self.outcome != "complete" and self.times_us:
            found.append(self.duration_us - self.times_us[-1])
        return found

    def good(self) -> bool:
        """By the rule of docs/concepts.md."""
        if self.outcome not in ("complete", "client_cancel"):
            return False
        if any(gap > 400_000 for gap in self.gaps()):
            return False
        if not self.times_us:
            return self.outcome == "client_cancel" and self.duration_us <= 2_000_000
        return self.times_us[0] <= 2_000_000


OUTCOMES = ["complete"] * 6 + ["client_cancel"] * 2 + ["timeout", "upstream_error", "engine_abort", "abandoned"]


def told(rng: random.Random) -> Told:
    """A random stream."""
    vantage, service, model = rng.choice(["client", "server"]), rng.choice(["app", "web"]), rng.choice(["m1", "m2"])
    at, times = rng.choice([200_000, 1_999_999, 2_000_000, 2_000_001, 2_500_000]), []
    for _ in range(rng.choice([0, 1, 2, 30, 150])):
        times.append(at)
        at += rng.choice([6_000, 20_000, 25_000, 33_000, 120_000] * 8 + [250_000, 399_999, 400_000, 400_001, 900_000])
    outcome = rng.choice(OUTCOMES)
    if not times:
        outcome = rng.choice(["client_cancel", "timeout"])
    after = rng.choice([1_000, 100_000, 400_000, 400_001, 1_900_000, 2_000_000, 2_100_000])
    return Told((vantage, service, model), times, outcome, (times[-1] if times else 0) + after)


def store_all(store: Store, streams: list[Told]) -> None:
    """As spans, through the rows, into the store."""
    for service in {each.group[1] for each in streams}:
        body = request({"service.name": service})
        for each in (each for each in streams if each.group[1] == service):
            attributes = {
                "legato.stream.timeline": pack(each.times_us, [5] * len(each.times_us), None, [TEXT] * len(each.times_us)),
                "legato.stream.vantage": each.group[0],
                "legato.stream.outcome": each.outcome,
                "gen_ai.request.model": each.group[2],
            }
            native_span(body, attributes, duration_ns=each.duration_us * 1000, start_ns=time.time_ns() - 300 * SECOND_NS)
        put(store, body)


def put(store: Store, body: Any) -> None:
    """A request's rows into the store."""
    batch = rows_of(body, tenant="", received_at_ns=time.time_ns(), limits=Limits())
    assert batch.rejected.num_rows == 0, batch.rejected.to_pylist()
    store.insert("stream_revs", batch.revs)


def rank(values: list[float], share_: float) -> float:
    """The order statistic at rank ⌈p n⌉."""
    return sorted(values)[math.ceil(share_ * len(values)) - 1]


@pytest.fixture(scope="module")
def url(shared_store: Store) -> Iterator[str]:
    """The read door."""
    with served(read.create_app(load(), shared_store, Metrics())) as address:
        yield address


@pytest.fixture
def reader(store: Store, url: str) -> Iterator[Reader]:
    """A reader of the emptied store."""
    with Reader(url) as made:
        yield made


def text_of(page: RenderableType, width: int = 100) -> str:
    """What a terminal shows."""
    console = Console(width=width, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        console.print(page)
    return captured.get()


@pytest.mark.parametrize("seed", range(3))
def test_the_figures_are_those_of_plain_python(store: Store, reader: Reader, seed: int) -> None:
    """Goodput by the rule, p99 of the p99s, counts, stalls and first tokens, by group, each with its n."""
    rng = random.Random(seed)
    streams = [told(rng) for _ in range(250)]
    store_all(store, streams)
    rows = report.figures(reader, since_s=3600)
    groups = {each.group for each in streams}
    assert {(row["vantage"], row["service_name"], row["model"]) for row in rows} == groups
    assert [row["streams"] for row in rows] == sorted((row["streams"] for row in rows), reverse=True)
    for row in rows:
        mine = [each for each in streams if each.group == (row["vantage"], row["service_name"], row["model"])]
        gaps = [each.gaps() for each in mine]
        p99s: list[float] = [rank(list(map(float, each)), 0.99) for each in gaps if each]
        firsts = [each.times_us[0] for each in mine if each.times_us]
        assert (row["streams"], row["timed"]) == (len(mine), len(mine))
        assert row["good"] == sum(each.good() for each in mine)
        assert row["goodput"] == row["good"] / len(mine)
        assert (row["gap_p99_of_p99_us"], row["gap_p99_n"]) == (rank(p99s, 0.99), len(p99s))
        assert row["gap_worst_us"] == max(gap for each in gaps for gap in each)
        assert row["stalls"] == sum(gap >= 250_000 for each in gaps for gap in each)
        assert row["stalls_excess_us"] == sum(max(0, gap - 250_000) for each in gaps for gap in each)
        assert row["ttft_n"] == len(firsts) and min(firsts) <= row["ttft_p50_us"] <= row["ttft_p95_us"] <= max(firsts)
        assert row["ttft_p50_us"] in (statistics.median_low(firsts), statistics.median_high(firsts))
        assert row["cancelled"] == sum(each.outcome == "client_cancel" for each in mine)
        assert row["failed"] == sum(each.outcome not in ("client_cancel", "complete") for each in mine)
        assert row["chunks_total"] == sum(len(each.times_us) for each in mine)


@pytest.mark.parametrize(("times", "outcome", "duration_us", "good"), [
    ([100, 400_100], "complete", 500_000, True),
    ([100, 400_101], "complete", 500_000, False),
    ([2_000_000], "complete", 2_500_000, True),
    ([2_000_001], "complete", 2_500_000, False),
    ([100], "complete", 9_000_000, True),
    ([100], "client_cancel", 400_100, True),
    ([100], "client_cancel", 400_101, False),
    ([], "client_cancel", 2_000_000, True),
    ([], "client_cancel", 2_000_001, False),
    ([2_000_001], "client_cancel", 2_100_000, False),
    ([100], "timeout", 200_000, False),
    ([100], "upstream_error", 200_000, False),
    ([100], "engine_abort", 200_000, False),
    ([100], "abandoned", 200_000, False),
])  # fmt: skip
def test_a_stream_is_good_by_the_rule(store: Store, reader: Reader, times: list[int], outcome: str, duration_us: int, good: bool) -> None:
    """At each edge: 400 ms and 2 s are still good, one µs more is not; a cancel is judged like the rest; an error never is."""
    each = Told(("client", "app", "m"), times, outcome, duration_us)
    assert each.good() == good
    store_all(store, [each])
    (row,) = report.figures(reader, since_s=3600)
    assert row["goodput"] == float(good)
    (listed,) = report.streams(reader, since_s=3600, model="", service="", outcome="", vantage="", stalled=0, limit=9)
    assert bool(listed["good"]) == good


def test_a_role_only_start_and_late_text_is_a_late_start(store: Store, reader: Reader) -> None:
    """Reasoning may begin in time: what counts is the first text where there is any."""
    body = request()
    native_span(
        body, {"legato.stream.timeline": pack([i * 300_000 for i in range(9)], [5] * 9, None, [2] * 8 + [1])}, duration_ns=3 * SECOND_NS
    )
    put(store, body)
    (row,) = report.figures(reader, since_s=3600)
    assert row["goodput"] == 0


def test_what_runs_is_not_counted_and_what_was_left_is(store: Store, reader: Reader) -> None:
    """A snapshot whose next is not due is running; one that is overdue is an abandoned stream, and not good."""
    body = request()
    for age, due in ((5, 30.0), (300, 30.0)):
        native_span(
            body,
            {"legato.stream.outcome": "running", "legato.stream.span_id": f"{age:016x}", "legato.stream.next_due": due},
            name="legato.stream.snapshot",
            start_ns=time.time_ns() - age * SECOND_NS,
        )
    put(store, body)
    (row,) = report.figures(reader, since_s=3600)
    assert (row["streams"], row["failed"], row["goodput"]) == (1, 1, 0.0)
    listed = report.streams(reader, since_s=3600, model="", service="", outcome="running", vantage="", stalled=0, limit=9)
    assert [each["span"] for each in listed] == [f"{5:016x}"]


def test_gaps_that_nobody_knows_are_a_dash(store: Store, reader: Reader) -> None:
    """A span without a timeline counts as a stream and in no gap figure."""
    body = request()
    native_span(body, drop=["legato.stream.timeline"])
    put(store, body)
    (row,) = report.figures(reader, since_s=3600)
    assert (row["streams"], row["timed"], row["goodput"], row["gap_p99_of_p99_us"], row["jitter_ratio_p50"]) == (1, 0, None, None, None)
    page = text_of(report.render([row]))
    for line in page.splitlines():
        if line.strip().startswith(("goodput at", "p99 of", "jitter ratio", "longest", "stalls")):
            assert line.rstrip().endswith("–"), line


def test_the_filters_filter(store: Store, reader: Reader) -> None:
    """By time, model, service, outcome, vantage and stalls; hostile names are only names."""
    streams = [told(random.Random(i)) for i in range(60)]
    store_all(store, streams)
    assert {row["model"] for row in report.figures(reader, since_s=3600, model="m1")} == {"m1"}
    assert {row["service_name"] for row in report.figures(reader, since_s=3600, service="web")} == {"web"}
    assert report.figures(reader, since_s=60) == [] == report.figures(reader, since_s=3600, model="it's') --")
    every: dict[str, Any] = {"since_s": 3600, "model": "", "service": "", "outcome": "", "vantage": "", "stalled": 0, "limit": 1000}
    assert len(report.streams(reader, **every)) == 60
    assert len(report.streams(reader, **{**every, "limit": 7})) == 7
    stalled = report.streams(reader, **{**every, "stalled": 1})
    assert len(stalled) == sum(any(gap >= 250_000 for gap in each.gaps()) for each in streams)
    cancelled = report.streams(reader, **{**every, "outcome": "client_cancel", "vantage": "server"})
    assert len(cancelled) == sum(each.outcome == "client_cancel" and each.group[0] == "server" for each in streams)


def test_a_filter_may_hold_any_name(store: Store, reader: Reader) -> None:
    """A model with a quote and a backslash in its name is found."""
    name = "it's a \\ model"
    store_all(store, [Told(("client", "app", name), [100], "complete", 1_000)])
    assert [row["model"] for row in report.figures(reader, since_s=3600, model=name)] == [name]


def test_the_pages_are_whole(store: Store, reader: Reader) -> None:
    """Every group and figure stands on the page with its n, in 80 columns; an empty store says what to do."""
    assert "No streams in this time" in text_of(report.render([])) and "No streams" in text_of(report.render_streams([]))
    store_all(store, [told(random.Random(i)) for i in range(80)])
    rows = report.figures(reader, since_s=3600)
    page = text_of(report.render(rows), 80)
    for row in rows:
        assert f"(n={row['timed']})" in page and f"(max, n={row['gap_p99_n']})" in page
    assert all(len(line) <= 80 for line in page.splitlines())
    listed = report.streams(reader, since_s=3600, model="", service="", outcome="", vantage="", stalled=0, limit=5)
    shown = text_of(report.render_streams(listed), 140)
    assert all(row["trace"][:16] in shown for row in listed)


def test_names_are_shown_as_they_are(store: Store, reader: Reader) -> None:
    """Square brackets in a model's name are no markup."""
    store_all(store, [Told(("client", "[bold]app", "[red]m[/red]"), [100], "complete", 1_000)])
    page = text_of(report.render(report.figures(reader, since_s=3600)), 120)
    assert "[bold]app" in page and "[red]m[/red]" in page


def test_figures_are_written_with_units_and_n() -> None:
    """What nobody knows is a dash, never 0."""
    assert [duration(value) for value in (None, 0, 999, 1000, 25_400, 250_000, 1_500_000)] == [
        "–",
        "0 µs",
        "999 µs",
        "1 ms",
        "25.4 ms",
        "250 ms",
        "1.5 s",
    ]
    assert (share(0, 0), share(1, 3), ratio(None), ratio(1.23456), count(None), count(12_345)) == (
        "–",
        "33.3 % (n=3)",
        "–",
        "1.23",
        "–",
        "12,345",
    )
    assert (p99(None, 0), p99(5_000, 100), p99(5_000, 101)) == ("–", "5 ms (max, n=100)", "5 ms (n=101)")
    assert len(scope_of(request()).spans) == 0
