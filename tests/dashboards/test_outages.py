"""Outages of a whole service page: from the spans that the SDK sends of them, through the rollups, to the statements of the rules."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dashboards.alerts.burn import ITL, TTFT
from helpers.builders.batches import received_spans
from helpers.builders.rollup_rows import rollup_worker, snapshot
from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.dashboards.burning import ask, firing
from helpers.servers.stores import empty
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store

# What the SDK sends of a stream of which nothing arrived.
NOTHING: Mapping[str, Any] = {"legato.stream.chunks": 0}
_ARRIVED = ("legato.stream.timeline", "legato.stream.ttfb", "legato.stream.wire_bytes", "gen_ai.usage.output_tokens")


def fail(
    store: Store,
    count: int,
    attributes: Mapping[str, Any],
    *,
    is_running: bool = False,
    seconds: float = 0.1,
    drop: Sequence[str] = _ARRIVED,
    service: str = "test",
) -> None:
    """Store streams of the last four minutes that have these attributes, and roll them up."""
    body, rng = request({"service.name": service}), random.Random(f"{service} {count}")
    for number in range(count):
        start_ns, span_id = time.time_ns() - (30 + number * 200 // count) * SECOND_NS, rng.randbytes(8)
        own = {**attributes, **(snapshot(1_000.0, span_id) if is_running else {})}
        name = "legato.stream.snapshot" if is_running else "chat model-a"
        native_span(body, own, span_id=span_id, start_ns=start_ns, duration_ns=int(seconds * SECOND_NS), drop=drop, rng=rng, name=name)
    batch = received_spans(body, tenant="", now_ns=time.time_ns(), limits=Limits())
    assert batch.revs.num_rows == count, batch.rejected
    store.insert("stream_revs", batch.revs)
    rollup_worker(store).step()


# Outcomes by type of error, which is also the name of a service.
ERRORS = {"http_500": "upstream_error", "httpx.ConnectError": "upstream_error", "timeout": "timeout"}


@pytest.fixture(scope="module")
def fired(unfilled: Store) -> Mapping[str, set[tuple[str, str]]]:
    """What fires where all requests fail, by rule. One evaluation, which takes a second, serves all services."""
    empty(unfilled)
    for error, outcome in ERRORS.items():
        fail(unfilled, 60, {**NOTHING, "legato.stream.outcome": outcome, "error.type": error}, service=error)
    now_s = int(time.time())
    return {"itl": firing(unfilled, ITL, now_s), "ttft": firing(unfilled, TTFT, now_s)}


@pytest.mark.parametrize("error", list(ERRORS))
def test_requests_that_fail_before_their_first_chunk_page(fired: Mapping[str, set[tuple[str, str]]], error: str) -> None:
    """A provider that answers all requests with an error, or none."""
    assert {each for each in fired["itl"] if each[0] == error} == {(error, "page")} and not fired["ttft"]


def test_running_streams_are_not_judged(store: Store) -> None:
    """Neither as good nor as bad: the others are judged only at their end."""
    fail(store, 60, {}, is_running=True, seconds=10.0, drop=())
    fail(store, 60, NOTHING, is_running=True, seconds=20.0)
    assert store.select("SELECT sum(streams), sum(judged) FROM stream_minutes FINAL") == [(120, 0)]


def test_a_stream_with_chunks_but_no_timeline_is_not_judged(store: Store) -> None:
    """What the timeline would say is unknown."""
    fail(store, 60, {"legato.stream.outcome": "upstream_error"})
    assert store.select("SELECT sum(streams), sum(judged) FROM stream_minutes FINAL") == [(60, 0)]


def test_the_message_of_a_failing_service_names_the_error(store: Store) -> None:
    """Neither a cause of stalls, nor a stream that did not fail."""
    fail(store, 5, {}, drop=())
    fail(store, 60, {**NOTHING, "legato.stream.outcome": "upstream_error", "error.type": "http_500"})
    (row,) = (row for row in ask(store, ITL, int(time.time())) if row["firing"])
    assert "60 of 65 streams were bad" in row["message"] and row["message"].endswith(" 60 of them ended in an error, mostly http_500.")
    ((outcome,),) = store.select(f"SELECT outcome FROM streams WHERE trace = '{row['trace']}'")
    assert (outcome, row["cause"]) == ("upstream_error", "")
