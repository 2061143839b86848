"""The dashboard `now`, and what `legato live` and the rule on stalled streams say of the same running streams.

The views that they read show the last seconds, so the streams are stored when the tests run.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import httpx
import pytest
from rich.console import Console

from dashboards.alerts.running import STALLED, UNANSWERED
from helpers.builders.batches import received_points, received_spans
from helpers.builders.points import gauge, metrics_request
from helpers.builders.rollup_rows import rollup_worker
from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.dashboards.panels import Asked, Past, panels
from helpers.dashboards.running import in_flight, silent
from helpers.servers.reading import open_store, reading
from helpers.servers.stores import empty
from legato._timeline import pack
from legato_ingest.cli.client import Reader
from legato_ingest.cli.live import render
from legato_ingest.otlp.batch import Limits
from legato_ingest.reports.live import LiveQuery, as_json, count_listed, count_stalled, fetch
from legato_ingest.storage import Store

Out = TypeVar("Out")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the schema, for this module."""
    with open_store(tmp_path_factory.mktemp("now") / "store") as opened:
        yield opened


@pytest.fixture
def store(shared: Store) -> Store:
    """The store of the module, emptied."""
    empty(shared)
    return shared


def rows(store: Store, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a statement."""
    return [json.loads(line) for line in store.query_bytes(sql, fmt="JSONEachRow").decode().splitlines()]


def answered(
    store: Store,
    count: int,
    ttft_s: float,
    *,
    hours_ago: float = 2,
    service: str = "shop",
    tenant: str = "",
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Store streams that had their first content after so long. They count once they are rolled up."""
    body = request({"service.name": service})
    at_us = round(ttft_s * 1e6)
    own = {"legato.stream.timeline": pack([at_us, at_us + 1_000], [3, 3], [1, 1], [1, 1]), **(attributes or {})}
    start_ns = time.time_ns() - round(hours_ago * 3600 * SECOND_NS)
    for number in range(count):
        native_span(body, own, start_ns=start_ns, duration_ns=(at_us + 2_000) * 1_000, rng=random.Random(f"{number} {ttft_s}"))
    store.insert("stream_revs", received_spans(body, tenant=tenant, now_ns=time.time_ns(), limits=Limits()).revs)


def waiting(store: Store, count: int = 5, **more: Any) -> None:
    """Store reports of streams that have waited for their first content for 90 s."""
    for number in range(1, count + 1):
        silent(store, number, 90, since_us=0, **more)


def roll_up(store: Store) -> None:
    """Compute the rollups of all streams."""
    rollup_worker(store).again(0)


def firing(store: Store, sql: str = UNANSWERED) -> list[str]:
    """Return the services of the rows that fire, in their order."""
    return [row["service"] for row in rows(store, sql) if row["firing"]]


def stalled(store: Store) -> set[int]:
    """Return the numbers of the streams in the view."""
    return {
        int(row["number"]) for row in rows(store, "SELECT reinterpretAsUInt8(substring(trace_id, 1, 1)) AS number FROM stalled_streams")
    }


@pytest.mark.parametrize(
    ("silence_s", "received_s", "due_s", "shown"),
    [
        (2, 0, None, True),
        (2, 8, None, True),
        (2, 10, None, False),
        (8, 24, None, True),
        (8, 26, None, False),
        (30, 60, None, True),
        (30, 64, None, False),
        (90, 182, None, True),
        (90, 184, None, False),
        (90, 62, 60, True),
        (90, 64, 60, False),
        (2, 20, 18, True),
        (2, 2, -1, True),  # at the report it was due already
        (2, 4, -1, False),
    ],
)
def test_a_silence_is_shown_until_its_next_report_is_overdue(
    store: Store, silence_s: float, received_s: float, due_s: float | None, shown: bool
) -> None:
    """By 3 s: so many seconds after the report, as it says, or else at 8 s, 30 s, and then at three times the length."""
    due = {} if due_s is None else {"legato.stream.next_due": 1 + silence_s + due_s}
    for _ in range(20):
        began_s = time.monotonic()
        silent(store, 1, silence_s, received_s=received_s, attributes=due)
        found = stalled(store)
        if time.monotonic() - began_s < 0.9:
            break
        # A busy machine: the report may have been overdue in between.
        empty(store)
    assert found == ({1} if shown else set())


def test_a_stream_that_goes_on_or_ends_is_shown_no_more(store: Store) -> None:
    """By a report that it goes on, or by its span. The newest report counts, in whatever order they arrive."""
    start_ns, began_s = time.time_ns() - 14 * SECOND_NS, time.monotonic()
    silent(store, 1, 12, start_ns=start_ns, attributes={"legato.stream.resumed": True})
    for number in (1, 2, 3):
        silent(store, number, 8, received_s=5, start_ns=start_ns)
    body = request()
    native_span(body, trace_id=bytes([2]) * 16, span_id=bytes([2]) * 8, start_ns=time.time_ns() - 14 * SECOND_NS, rng=random.Random(1))
    store.insert("stream_revs", received_spans(body, tenant="", now_ns=time.time_ns(), limits=Limits()).revs)
    assert stalled(store) == {3}
    ((silence_us, reported_us),) = store.select("SELECT silence_us, reported_us FROM stalled_streams")
    most_us = 13_100_000 + 1e6 * (time.monotonic() - began_s)
    assert reported_us == 8_000_000 and 12_900_000 < silence_us < most_us, "the open gap grows"


def test_the_newest_sample_of_each_process_counts(store: Store) -> None:
    """Two processes of a service add up; a process without a sample for 15 s has none in flight."""
    in_flight(store, 9, ago_s=6)
    in_flight(store, 5)
    in_flight(store, 7, process="b")
    in_flight(store, 3, process="gone", ago_s=16)
    in_flight(store, 2, service="other")
    found = store.select("SELECT service_name, vantage, model, streams FROM streams_in_flight ORDER BY service_name")
    assert [tuple(row) for row in found] == [("other", "client", "model-a", 2), ("shop", "client", "model-a", 12)]


@pytest.mark.parametrize(
    ("count", "running", "silence_s", "since_us", "fires"),
    [
        (3, 30, 8, 1_000_000, True),
        (3, 31, 8, 1_000_000, False),  # fewer than a tenth
        (2, 2, 30, 1_000_000, False),  # too few
        (5, 5, 2, 1_000_000, False),  # not long enough
        (5, 5, 30, 0, False),  # they wait for their first output
        (5, 0, 8, 1_000_000, True),  # the number in flight is not known
    ],
)
def test_running_streams_that_stand_still_fire(
    store: Store, count: int, running: int, silence_s: float, since_us: int, fires: bool
) -> None:
    """Three streams and a tenth of those in flight, silent for 8 s or more after their text has begun."""
    for number in range(count):
        silent(store, number + 1, silence_s, since_us=since_us)
    if running:
        in_flight(store, running)
    assert firing(store, STALLED) == (["shop"] if fires else [])
    if fires:
        (row,) = rows(store, STALLED)
        assert (row["stalled"], row["in_flight"]) == (count, max(running, count)) and row["longest_s"] >= silence_s


# The number of streams, of those in flight, silence (s), since when (us), the usual time (s), and whether the rule fires.
WAITING = [
    (3, 7, 30, 0, 2, True),
    (3, 8, 30, 0, 2, False),  # fewer than 40 %
    (2, 2, 90, 0, 2, False),  # too few
    (5, 5, 8, 0, 2, False),  # not long enough
    (5, 5, 90, 1_000_000, 2, False),  # their text has begun
    (5, 5, 90, 0, 50, False),  # the model thinks for so long
    (5, 5, 90, 0, 40, True),
    (5, 0, 90, 0, 2, False),  # the number in flight is not known
    (5, 3, 90, 0, 2, True),  # of a process there is no sample
    (5, 2, 90, 0, 2, False),  # most of them ran in a process that was killed
]
# The samples of the number in flight while five streams wait: process, number and age (s); and whether the rule fires.
SAMPLED: list[tuple[list[tuple[str, int, float]], bool]] = [
    ([("a", 5, 30)], False),  # whether they still run is not known
    ([("a", 5, 1), ("b", 100, 30)], False),
    ([("a", 5, 1), ("a", 5, 10), ("b", 100, 30)], True),
]


@pytest.fixture(scope="module")
def unanswered(shared: Store) -> list[dict[str, Any]]:
    """The rows of the rule for these cases, from one evaluation: each is a service. What grows old is stored last."""
    empty(shared)
    for place, (*_, usual_s, _) in enumerate(WAITING):
        answered(shared, 20, usual_s, hours_ago=24 * 7 - 1, service=f"waiting {place}")
        answered(shared, 100, 300, hours_ago=24 * 7 + 1, service=f"waiting {place}")
    for place in range(len(SAMPLED)):
        answered(shared, 20, 2, service=f"sampled {place}")
    roll_up(shared)
    for place, (count, _, silence_s, since_us, *_) in enumerate(WAITING):
        for number in range(count):
            silent(shared, 1 + 10 * place + number, silence_s, since_us=since_us, service=f"waiting {place}")
    for place in range(len(SAMPLED)):
        for number in range(5):
            silent(shared, 200 + 10 * place + number, 90, since_us=0, service=f"sampled {place}")
    for place, (_, running, *_) in enumerate(WAITING):
        if running:
            in_flight(shared, running, service=f"waiting {place}")
    for place, (samples, _) in enumerate(SAMPLED):
        for process, streams, ago_s in samples:
            in_flight(shared, streams, process=process, ago_s=ago_s, service=f"sampled {place}")
    return rows(shared, UNANSWERED)


@pytest.mark.parametrize("place", range(len(WAITING)))
def test_running_streams_without_content_fire(unanswered: list[dict[str, Any]], place: int) -> None:
    """Three streams and 40 % of those in flight, which have waited for 30 s and for twice the time that is usual for their model."""
    count, running, silence_s, _, _, fires = WAITING[place]
    found = [row for row in unanswered if row["service"] == f"waiting {place}"]
    assert [row["service"] for row in found if row["firing"]] == ([f"waiting {place}"] if fires else [])
    if fires:
        (row,) = found
        assert (row["stalled"], row["in_flight"]) == (count, max(running, count)) and row["longest_s"] >= silence_s


@pytest.mark.parametrize(
    ("samples", "fires"),
    [
        ([("a", 10_000, 30)], False),  # `legato serve` has restarted, and the process has not reported yet
        ([("a", 10_000, 100)], False),
        ([("a", 10_000, 125)], True),  # its last number is too old
        ([("a", 5, 1), ("b", 10_000, 30)], False),  # one of the processes has reported
        ([("a", 5, 14), ("b", 10_000, 17)], False),  # none has reported for so long that all others would count as ended
        ([("a", 5, 1), ("a", 5, 10), ("b", 10_000, 30)], True),  # the other one has ended
        ([("a", 5, 30), ("b", 10_000, 50)], True),  # it had ended before the restart
        ([("a", 0, 20), ("a", 10_000, 30)], True),  # all others had ended
    ],
)
def test_a_restart_of_serve_is_no_fall_of_the_number_in_flight(store: Store, samples: list[tuple[str, int, float]], fires: bool) -> None:
    """Five silent streams: until each process has reported again, the last known number of streams counts for two minutes."""
    for number in range(1, 6):
        silent(store, number, 90)
    for process, streams, ago_s in samples:
        in_flight(store, streams, process=process, ago_s=ago_s)
    in_flight(store, 10_000, service="other", ago_s=30)
    in_flight(store, 10_000, vantage="server", ago_s=30)
    assert firing(store, STALLED) == (["shop"] if fires else [])


@pytest.mark.parametrize("place", range(len(SAMPLED)))
def test_after_a_restart_of_serve_few_waiting_streams_do_not_fire(unanswered: list[dict[str, Any]], place: int) -> None:
    """Only streams of which the number in flight is reported now, and a share of all that were in flight."""
    fired = [row["service"] for row in unanswered if row["firing"] and row["service"].startswith("sampled")]
    assert (f"sampled {place}" in fired) == SAMPLED[place][1]


def test_only_the_usual_time_of_the_same_streams_counts(store: Store) -> None:
    """Not that of another tenant, service, vantage or model; and neither does another tenant's number in flight."""
    answered(store, 20, 2)
    answered(store, 100, 300, tenant="other")
    answered(store, 100, 300, service="other")
    answered(store, 100, 300, attributes={"legato.stream.vantage": "server"})
    answered(store, 100, 300, attributes={"gen_ai.request.model": "thinking"})
    roll_up(store)
    in_flight(store, 5)
    in_flight(store, 50, tenant="other")
    waiting(store)
    (row,) = rows(store, UNANSWERED)
    assert (row["tenant"], row["service"], row["vantage"], row["firing"]) == ("", "shop", "client", 1)


def test_a_stream_of_an_unknown_model_waits_for_the_longest_usual_time(store: Store) -> None:
    """A server does not know the model before the first content."""
    server = {"legato.stream.vantage": "server"}
    answered(store, 95, 2, attributes=server)
    roll_up(store)
    in_flight(store, 5, vantage="server")
    waiting(store, vantage="server", attributes={"gen_ai.request.model": ""})
    assert firing(store) == ["shop"]
    answered(store, 5, 50, attributes={**server, "gen_ai.request.model": "thinking"})
    roll_up(store)
    in_flight(store, 5, vantage="server")
    assert firing(store) == []


def test_without_a_usual_time_no_wait_is_too_long(store: Store) -> None:
    """A model of which fewer than 20 streams had a content in the last days, whatever is usual for others."""
    answered(store, 19, 0.1)
    answered(store, 100, 0.1, attributes={"gen_ai.request.model": "model-b"})
    roll_up(store)
    in_flight(store, 5)
    waiting(store)
    assert not rows(store, UNANSWERED)
    answered(store, 20, 0.1)
    roll_up(store)
    in_flight(store, 5)
    assert [row["firing"] for row in rows(store, UNANSWERED)] == [1]


def test_a_wait_of_clients_without_a_usual_time_pages_at_their_server(store: Store) -> None:
    """The clients' row, which does not fire, covers nothing. A stream that goes on is none of those that wait."""
    answered(store, 20, 2, service="engine", attributes={"legato.stream.vantage": "server"})
    roll_up(store)
    in_flight(store, 3)
    in_flight(store, 3, service="engine", vantage="server")
    waiting(store, 3)
    start_ns = time.time_ns() - 93 * SECOND_NS
    waiting(store, 3, service="engine", vantage="server", start_ns=start_ns)
    assert firing(store) == ["engine"]
    resumed = {"legato.stream.resumed": True}
    silent(store, 3, 91, since_us=0, service="engine", vantage="server", start_ns=start_ns, attributes=resumed)
    assert firing(store) == []


def judge(store: Store, which: str, earlier_us: int) -> None:
    """Store a verdict on the open gap of these streams, or on one that began so much earlier."""
    key = "tenant, start_time, trace_id, span_id"
    store.command(
        f"INSERT INTO verdicts ({key}, gap_start_us, cause, confidence, judged_at) "
        f"SELECT {key}, gap_start_us - {earlier_us}, 'kv_pressure', 'likely', now64(3) FROM stalled_streams WHERE {which}"
    )


def test_the_cause_so_far_is_that_of_the_open_gap(store: Store) -> None:
    """Not that of an earlier gap of the stream, for the board and the command; a server's stream has the cause of its client's."""
    silent(store, 1, 40)
    silent(store, 1, 45, vantage="server", service="engine")
    silent(store, 2, 35)
    judge(store, "substring(trace_id, 1, 1) = char(1) AND vantage = 'client'", 0)
    judge(store, "substring(trace_id, 1, 1) = char(2)", 500_000)
    with reading(store) as url, httpx.Client(timeout=60) as client:
        asked = Asked(Past(time.time_ns(), "", {}), store, url, client)
        listed = asked.panel("now", "Stalled now", asked.past.view("", 1, 60)).as_rows()
        found = fetch(Reader(url).rows, LiveQuery())
    assert [(row["stream"][:2], row["vantage"], row["cause so far"]) for row in listed] == [
        ("01", "server", "kv_pressure"), ("01", "client", "kv_pressure"), ("02", "client", "not judged yet"),
    ]  # fmt: skip
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render(found, LiveQuery()))
    assert capture.get().count("kv_pressure") == 2 and capture.get().count("not judged yet") == 1
    assert [(row["trace"][:2], row["cause"], row["confidence"]) for row in as_json(found)["stalled"]] == [
        ("01", "kv_pressure", "likely"), ("01", "kv_pressure", "likely"), ("02", "", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("service", ["", "engine"])
def test_the_cause_of_another_call_is_none_of_a_stream(store: Store, service: str) -> None:
    """Of two clients of a trace, and of their servers, for the board and the command, which may show one service alone."""
    silent(store, 1, 40)
    judge(store, "1", 0)
    silent(store, 1, 33)
    silent(store, 1, 36, vantage="server", service="engine")
    with reading(store) as url, httpx.Client(timeout=60) as client:
        asked = Asked(Past(time.time_ns(), "", {}), store, url, client)
        listed = asked.panel("now", "Stalled now", asked.past.view("", 1, 60)).as_rows()
        found = as_json(fetch(Reader(url).rows, LiveQuery(service)))["stalled"]
    assert [(row["vantage"], row["cause so far"]) for row in listed] == [
        ("client", "kv_pressure"), ("server", "not judged yet"), ("client", "not judged yet"),
    ]  # fmt: skip
    expected = [("client", "kv_pressure"), ("server", ""), ("client", "")]
    assert [(row["vantage"], row["cause"]) for row in found] == [each for each in expected if not service or each[0] == "server"]


@pytest.mark.parametrize("processes", [1, 20])
def test_a_process_counts_as_long_as_it_has_streams(store: Store, processes: int) -> None:
    """Two streams run at a time, in one process or in twenty after each other: each sends samples only while it has streams."""
    end_ns = time.time_ns() // (3_600 * SECOND_NS) * 3_600 * SECOND_NS
    body = metrics_request({"service.name": "shop"})
    for number in range(720):
        named = {"legato.stream.vantage": "client", "service.instance.id": str(number * processes // 720)}
        gauge(body, "legato.stream.in_flight", 2, end_ns - (5 * number + 1) * SECOND_NS, attributes=named)
    store.insert("node_samples", received_points(body, tenant="", now_ns=end_ns, limits=Limits()).samples)
    with reading(store) as url, httpx.Client(timeout=60) as client:
        asked = Asked(Past(end_ns, "", {}), store, url, client)
        shown = asked.panel("now", "Streams in flight", asked.past.view("", 1, 3_600)).as_rows()
    assert [row["in flight"] for row in shown] == [2.0]


def test_parallel_streams_of_a_trace_count_each(store: Store) -> None:
    """An agent's calls at once: one trace, and a stream each. A stream that a server sees, too, counts once; all views agree."""
    for number in (1, 2, 3):
        silent(store, number, 42 - number, trace=1)
    for number in (1, 2):
        silent(store, number, 42 - number, trace=1, vantage="server", service="engine")
    silent(store, 4, 30, vantage="server", service="engine")
    with reading(store) as url, httpx.Client(timeout=60) as client:
        asked = Asked(Past(time.time_ns(), "", {}), store, url, client)
        view = asked.past.view("", 1, 60)
        in_flight(store, 4)
        (flying,) = asked.panel("now", "In flight now", view).as_rows()
        (longest,) = asked.panel("now", "Longest open gap", view).as_rows()
        of_servers = asked.panel("now", "Longest open gap", asked.past.view("", 1, 60, {"vantage": "server"})).as_rows()
        run = Reader(url).rows
        counted = count_stalled(run), count_listed(fetch(run, LiveQuery()).stalled)
    assert (flying["stalled for 2 s or more"], flying["for 8 s or more"], longest["n"], *counted) == (4, 4, 4, 4, 4)
    assert [row["n"] for row in of_servers] == [3]


def test_one_incident_pages_once(store: Store) -> None:
    """The server's row of the same streams does not fire; a server without clients does."""
    for number in (1, 2, 3):
        silent(store, number, 8)
        silent(store, number, 8, vantage="server", service="engine")
        silent(store, number + 10, 8, vantage="server", service="alone")
    assert {(row["service"], row["vantage"], row["firing"]) for row in rows(store, STALLED)} == {
        ("shop", "client", 1), ("engine", "server", 0), ("alone", "server", 1),
    }  # fmt: skip


def test_a_frozen_backend_behind_a_larger_client_pages(store: Store) -> None:
    """The client has too few of these streams for a page, so its row covers none."""
    in_flight(store, 100)
    in_flight(store, 5, service="backend", vantage="server")
    for number in range(1, 6):
        silent(store, number, 8)
        silent(store, number, 8, vantage="server", service="backend")
    assert {(row["service"], row["firing"], row["covered"]) for row in rows(store, STALLED)} == {("shop", 0, 0), ("backend", 1, 0)}


def test_the_board_and_the_command_show_the_same(store: Store) -> None:
    """In flight, stalled with the engine that the server knows, and the share; a filter applies to both."""

    def asked_soon(ask: Callable[[], Out]) -> Out:
        """Ask right after new samples: on a busy machine all the queries together take longer than a sample counts."""
        in_flight(store, 4)
        in_flight(store, 4, service="engine", vantage="server")
        return ask()

    # Reports of 30 s and more, which are shown for a minute.
    silent(store, 1, 40)
    silent(store, 1, 40, vantage="server", service="engine", attributes={"legato.engine.id": "gpu-1"})
    silent(store, 2, 30, since_us=0)
    with reading(store) as url, httpx.Client(timeout=60) as client:
        asked = Asked(Past(time.time_ns(), "", {}), store, url, client)
        view = asked.past.view("", 1, 60)
        shown = {title: asked_soon(partial(asked.panel, "now", title, view)).as_rows() for title in panels("now")}
        found, filtered = (asked_soon(partial(fetch, Reader(url).rows, LiveQuery(service))) for service in ("", "engine"))
        longest, streams = fetch(Reader(url).rows, LiveQuery(), 2), count_stalled(Reader(url).rows)
    live, console = as_json(found), Console(width=160)
    with console.capture() as capture:
        console.print(render(found, LiveQuery()))
    text = capture.get()
    assert [tuple(row.values()) for row in shown["In flight now"]] == [(4, None, 4, 2, 2)]
    assert [(row["stream"][:2], row["vantage"], row["engine"], row["cause so far"]) for row in shown["Stalled now"]] == [
        ("01", "client", "gpu-1", "not judged yet"),
        ("01", "server", "gpu-1", "not judged yet"),
        ("02", "client", "", "waits for its first output"),
    ]
    assert [(row["trace"][:2], row["vantage"], row["engine"]) for row in live["stalled"]] == [
        ("01", "client", "gpu-1"), ("01", "server", "gpu-1"), ("02", "client", ""),
    ]  # fmt: skip
    assert {(row["service"], int(row["in_flight"])) for row in live["in_flight"]} == {("shop", 4), ("engine", 4)}
    assert [row["service"] for row in filtered.stalled] == ["engine"]
    assert [row["vantage"] for row in longest.stalled] == ["client", "server"] and streams == 2
    assert "Stalled now" in text and "50.0 %" in text and "waits for its first output" in text
