"""Tests of the SLO's rule and the report's figures against plain Python, on a real store."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from helpers.servers.reading import open_store, reading, stream, streams_in
from legato_ingest.cli.client import Reader
from legato_ingest.cli.report import ReportQuery, as_json, fetch
from legato_ingest.reports.queries import STREAMS
from legato_ingest.reports.time_range import TimeRange
from legato_ingest.storage import Store

CANCEL = {"legato.stream.outcome": "client_cancel"}
NO_TIMELINE = ("legato.stream.timeline", "legato.stream.ttfb", "legato.stream.chunks")


def snapshot(next_due_s: float, gaps_ms: Sequence[float] = (20.0,) * 9) -> dict[str, Any]:
    """A stream with only a snapshot."""
    attributes = {"legato.stream.span_id": f"{random.Random(next_due_s).getrandbits(64):016x}", "legato.stream.rev": 1}
    attributes |= {"legato.stream.next_due": next_due_s, "legato.stream.outcome": "running"}
    return stream(gaps_ms, attributes=attributes, name="legato.stream.snapshot", age_s=120)


# Each stream and its result by the rule: 1 good, 0 bad, None not judged.
CASES: dict[str, tuple[dict[str, Any], int | None]] = {
    "steady": (stream(), 1),
    "a gap of just the limit": (stream((400,)), 1),
    "a gap over it": (stream((400.001,)), 0),
    "first output just in time": (stream(first_ms=2_000), 1),
    "late": (stream(first_ms=2_000.001), 0),
    "text late after early reasoning": (stream((1_950, 20), first_ms=100, kinds=(2, 1, 1)), 0),
    "reasoning fills the wait, text is late": (stream((390,) * 6 + (20,), first_ms=100, kinds=(2,) * 6 + (1, 1)), 0),
    "only tool calls": (stream((20,), first_ms=100, kinds=(3, 3)), 1),
    "one chunk, no gap": (stream(()), 1),
    "an error": (stream(attributes={"legato.stream.outcome": "upstream_error"}), 0),
    "a time-out": (stream(attributes={"legato.stream.outcome": "timeout"}), 0),
    "aborted by the engine": (stream(attributes={"legato.stream.outcome": "engine_abort"}), 0),
    "cancelled while it flowed": (stream(attributes=CANCEL, end_ms=30), 1),
    "cancelled after a wait over the limit": (stream(attributes=CANCEL, end_ms=400.001), 0),
    "cancelled after an earlier stall": (stream((20, 500, 20), attributes=CANCEL, end_ms=30), 0),
    "cancelled after a late start": (stream(first_ms=2_100, attributes=CANCEL, end_ms=30), 0),
    "cancelled before anything came, soon": (stream((), first_ms=1_000, kinds=(0,), attributes=CANCEL, end_ms=900), 1),
    "cancelled before anything came, late": (stream((), first_ms=1_000, kinds=(0,), attributes=CANCEL, end_ms=1_100), 0),
    "a keep-alive does not end a freeze": (stream((300, 300), kinds=(1, 5, 1)), 0),
    "its end took long, and that is no gap": (stream(end_ms=5_000), 1),
    "running": (snapshot(1_000.0), None),
    "running, with a stall already": (snapshot(1_001.0, (900,)), None),
    "its application died": (snapshot(20.0), 0),
    "only a summary": ({**stream(), "drop": NO_TIMELINE}, None),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One stream of each case, with its name as the model, and many random streams of one service."""
    with open_store(tmp_path_factory.mktemp("queries") / "store") as opened:
        for number, (name, (made, _)) in enumerate(CASES.items()):
            attributes = {**made["attributes"], "gen_ai.request.model": name}
            streams_in(opened, [{**made, "attributes": attributes}], service="cases", seed=number)
        rng = random.Random(11)
        streams_in(opened, [random_stream(rng) for _ in range(237)], service="many", seed=1_000)
        streams_in(opened, [stream(age_s=7_200)], service="old", seed=1_001)
        yield opened


def random_stream(rng: random.Random) -> dict[str, Any]:
    """A stream of random length and outcome, with stalls; some have only a summary."""
    gaps = [rng.lognormvariate(3, 1) if rng.random() < 0.95 else rng.uniform(250, 900) for _ in range(rng.choice((0, 3, 30, 140)))]
    outcome = rng.choice(("complete",) * 6 + ("client_cancel", "timeout"))
    attributes = {"legato.stream.outcome": outcome, "legato.stream.vantage": rng.choice(("client", "server"))}
    made = stream(gaps, first_ms=rng.uniform(50, 2_500), attributes=attributes, end_ms=rng.uniform(1, 600))
    return {**made, "drop": NO_TIMELINE} if rng.random() < 0.1 else made


@pytest.fixture(scope="module")
def reader(store: Store) -> Iterator[Reader]:
    """A reader of a real endpoint over it."""
    with reading(store) as url:
        yield Reader(url)


@pytest.mark.parametrize("name", CASES)
def test_the_rule(reader: Reader, name: str) -> None:
    """Good, bad or not judged, the same in the list and in the report."""
    expected = CASES[name][1]
    query = ReportQuery(model=name, service="cases")
    (listed,) = reader.rows(STREAMS, {**query.parameters(), "outcome": "", "stalled": 0})
    assert listed["good"] == expected
    (group,) = as_json(fetch(reader, query), query)["groups"]
    assert (group["goodput"]["n"], group["goodput"]["good"]) == ({1: (1, 1), 0: (1, 0), None: (0, 0)}[expected])
    assert group["goodput"]["value"] == expected


def test_the_limits_are_parameters(reader: Reader) -> None:
    """Other limits give another result."""
    for name, gap_ms, first_ms, good in (
        ("a gap over it", 401, 2_000, 1),
        ("steady", 19, 2_000, 0),
        ("late", 400, 2_001, 1),
        ("steady", 400, 399, 0),
    ):
        query = ReportQuery(model=name, service="cases", gap_ms=gap_ms, first_ms=first_ms)
        assert as_json(fetch(reader, query), query)["groups"][0]["goodput"]["good"] == good


def rank(values: Sequence[Any], share: float) -> Any:
    """The order statistic at rank ⌈share n⌉ of the known values."""
    ordered = sorted(value for value in values if value is not None)
    return ordered[math.ceil(round(share * len(ordered), 6)) - 1] if ordered else None


def expected_group(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The report's figures in plain Python."""
    over = [row for row in rows if row["outcome"] != "running"]
    timed = [row for row in over if row["content_chunks"] is not None]
    gaps = [row["gap_p99_us"] for row in over if row["gap_p99_us"] is not None]
    ttft = [row["ttft_us"] for row in over]
    jitter = [row["jitter_ratio"] for row in over if row["jitter_ratio"] is not None]
    good = sum(
        (row["gap_max_us"] or 0) <= 400_000
        and next(t for t in (row["ttfo_us"], row["ttft_us"], row["duration_ns"] // 1_000) if t is not None) <= 2_000_000
        and row["outcome"] in ("complete", "client_cancel")
        for row in timed
    )
    return {
        "streams": len(rows),
        "running": len(rows) - len(over),
        "goodput": {"value": good / len(timed), "good": good, "n": len(timed)},
        "gap_p99_of_p99_ms": {
            "value": (max(gaps) if len(gaps) <= 100 else rank(gaps, 0.99)) / 1_000,
            "n": len(gaps),
            "label": "max" if len(gaps) <= 100 else "p99",
        },
        "gap_max_ms": {"value": max(row["gap_max_us"] or 0 for row in over) / 1_000, "n": len(gaps)},
        "jitter_ratio_p50": {"value": pytest.approx(rank(jitter, 0.5)), "n": len(jitter)},
        "ttft_ms": {"p50": rank(ttft, 0.5) / 1_000, "p95": rank(ttft, 0.95) / 1_000, "n": sum(t is not None for t in ttft)},
        "stalls_250ms": {
            "value": sum(row["stalls_250ms"] or 0 for row in over),
            "streams": sum((row["stalls_250ms"] or 0) > 0 for row in over),
            "n": len(timed),
        },
        "excess_250ms_ms": {"value": sum(row["excess_250ms_us"] or 0 for row in over) / 1_000, "n": len(timed)},
        "outcomes": {name: sum(row["outcome"] == name for row in rows) for name in {row["outcome"] for row in rows}},
    }


def test_the_figures_equal_plain_python(reader: Reader, store: Store) -> None:
    """Every figure and every n of every group of 237 random streams, and of the cases."""
    columns = (
        "model, service_name, vantage, outcome, duration_ns, content_chunks, ttft_us, ttfo_us, gap_max_us, gap_p99_us, jitter_ratio, "
        "stalls_250ms, excess_250ms_us"
    ).split(", ")
    rows = [dict(zip(columns, row, strict=True)) for row in store.select(f"SELECT {', '.join(columns)} FROM streams")]
    query = ReportQuery(TimeRange(0), groups_max=100)
    report = as_json(fetch(reader, query), query)
    assert len(report["groups"]) == len(CASES) + 3 and not report["more_groups"]
    compared = 0
    for group in report["groups"]:
        mine = [
            row
            for row in rows
            if (row["model"], row["service_name"], row["vantage"]) == (group["model"], group["service"], group["vantage"])
        ]
        if any(row["content_chunks"] is not None and row["gap_p99_us"] is not None and row["outcome"] != "running" for row in mine):
            if group["service"] == "many" or group["jitter_ratio_p50"]["n"]:
                assert {key: group[key] for key in expected_group(mine)} == expected_group(mine)
                compared += 1
    assert compared >= 5
    both = sum(group["gap_p99_of_p99_ms"]["n"] for group in report["groups"] if group["service"] == "many")
    assert both > 150


def test_rank_is_the_order_statistic(reader: Reader) -> None:
    """quantileExact just below the level is rank ⌈share n⌉, for integer and other 0.99 n."""
    for n in (1, 2, 99, 100, 101, 199, 200, 1_000, 12_345):
        for share in (0.5, 0.95, 0.99):
            (row,) = reader.rows(f"SELECT quantileExact({share - 1e-9:.9f})(number + 1) AS q FROM numbers({n})")
            assert row["q"] == math.ceil(round(share * n, 6))


def test_unknown_figures(reader: Reader) -> None:
    """A group of summaries only: every gap figure is null with n = 0, never 0; figures of the summary are known."""
    query = ReportQuery(model="only a summary")
    (group,) = as_json(fetch(reader, query), query)["groups"]
    assert group["streams"] == 1 and group["goodput"] == {"value": None, "good": 0, "n": 0}
    for name in ("gap_p99_of_p99_ms", "gap_max_ms", "jitter_ratio_p50", "stalls_250ms", "excess_250ms_ms"):
        assert (group[name]["value"], group[name]["n"]) == (None, 0)


def test_since_and_filters(reader: Reader) -> None:
    """The last hour leaves out earlier streams; each filter keeps its matches."""
    services = {since: {g["service"] for g in fetch(reader, ReportQuery(TimeRange(since)))} for since in (3_600, 10_000, 0)}
    assert services == {3_600: {"cases", "many"}, 10_000: {"cases", "many", "old"}, 0: {"cases", "many", "old"}}
    assert {g["vantage"] for g in fetch(reader, ReportQuery(vantage="server"))} == {"server"}
    assert fetch(reader, ReportQuery(model="' OR 1 = 1 --")) == []
    assert len(fetch(reader, ReportQuery(groups_max=3))) == 4
