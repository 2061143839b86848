"""The chunking worker on a real store: one row of `chunking_changes` per change, withdrawn if late data disproves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from legato_ingest.chunking.worker import ChunkingWorker
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store

DAY_S = 86_400
BEGIN_S = 1_790_000_000 // DAY_S * DAY_S
CHANGED_S = BEGIN_S + 9 * DAY_S + 5 * 3_600


def minutes(store: Store, days: int, *, service: str = "s", after: float = 0.4, known_rates: bool = True, since_s: int = BEGIN_S) -> None:
    """Insert one minute in ten with 20 streams. Their share of multi-token chunks is 0.1, and ``after`` from the change on."""
    rng = np.random.default_rng(3)
    at = np.arange(since_s, BEGIN_S + days * DAY_S, 600)
    streams = np.full(len(at), 20)
    share = np.where(at < CHANGED_S, 0.1, after) + rng.normal(0, 0.01, len(at))
    rates = streams if known_rates else np.zeros(len(at), np.int64)
    table = {
        "service_name": pa.array([service] * len(at)),
        "model": pa.array(["m"] * len(at)),
        "provider": pa.array(["p'x"] * len(at)),
        "vantage": pa.array(["client"] * len(at)),
        "minute": pa.array(at).cast(pa.timestamp("s", "UTC")),
        "rolled_at": pa.array([1] * len(at)).cast(pa.timestamp("ms", "UTC")),
        "streams": pa.array(streams, pa.uint32()),
        "share_streams": pa.array(streams, pa.uint32()),
        "multi_token_share_sum": pa.array(streams * share),
        "token_chunks": pa.array(streams * 100, pa.uint64()),
        "tokens": pa.array(np.round(streams * 100 * (1 + share)), pa.uint64()),
        "log_rate_streams": pa.array(rates, pa.uint32()),
        "log_rate_sum": pa.array(rates * 3.0),
        "log_rate_sq_sum": pa.array(rates * 9.0004),
    }
    store.insert("stream_minutes", pa.table(table))


def worker(store: Store) -> ChunkingWorker:
    """Return a worker that runs only on ``step()``."""
    return ChunkingWorker(store, load(), Metrics())


def changes(store: Store) -> list[Sequence[Any]]:
    """Return the changes that queries see."""
    return store.select(
        "SELECT service_name, provider, toUnixTimestamp(changed_at), kind, direction, round(share_before, 1), round(share_after, 1)"
        " FROM chunking_changes FINAL WHERE found ORDER BY service_name, changed_at"
    )


def test_a_change_is_found_and_dated(store: Store) -> None:
    """In its stratum, within the hour, with the kind by its token rate; a stratum without a change has no row."""
    minutes(store, 12)
    minutes(store, 12, service="steady", after=0.1)
    minutes(store, 12, service="unknown", known_rates=False)
    assert worker(store).step() == 2
    rows = changes(store)
    assert [(row[0], row[1], *row[3:]) for row in rows] == [
        ("s", "p'x", "chunking change", "coarser", 0.1, 0.4),
        ("unknown", "p'x", "rate unknown", "coarser", 0.1, 0.4),
    ]
    assert all(abs(row[2] - CHANGED_S) <= 3_600 for row in rows)


def test_a_repeated_run_finds_the_same_row(store: Store) -> None:
    """Also with more data and final numbers: one row per change, under its first date."""
    minutes(store, 10)
    worker(store).step()
    first = changes(store)
    worker(store).step()
    assert changes(store) == first
    minutes(store, 14, since_s=BEGIN_S + 10 * DAY_S)
    worker(store).step()
    assert [row[2] for row in changes(store)] == [row[2] for row in first]


def test_a_change_is_withdrawn(store: Store) -> None:
    """If late data disproves a change, queries no longer see it; its row remains with ``found`` = false."""
    minutes(store, 11)
    worker(store).step()
    assert len(changes(store)) == 1
    store.command("TRUNCATE TABLE stream_minutes")
    minutes(store, 11, after=0.1)
    worker(store).step()
    assert changes(store) == []
    ((found,),) = store.select("SELECT found FROM chunking_changes FINAL")
    assert not found


@pytest.mark.parametrize("days", [0, 1])
def test_too_little_data_has_no_changes(store: Store, days: int) -> None:
    """An empty store and a stratum of one day have no changes."""
    if days:
        minutes(store, days)
    assert worker(store).step() == 0 and changes(store) == []


def test_many_strata_are_tested_separately(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """More strata than one query reads, half of them with a change: each of these has one row. One with an impossible value is skipped."""
    monkeypatch.setattr("legato_ingest.chunking.worker._MINUTES_AT_ONCE", 4_000)
    services = [f"s{number:02}" for number in range(7)]
    for number, service in enumerate(services):
        minutes(store, 11 + number % 3, service=service, after=0.4 if number % 2 else 0.1)
    minutes(store, 1, service="s03a")
    store.command(
        "INSERT INTO stream_minutes SELECT * REPLACE (9000000000000000000 AS tokens, rolled_at + 1 AS rolled_at) FROM stream_minutes"
        " WHERE service_name = 's03a' LIMIT 1"
    )
    judge = worker(store)
    judge.step()
    assert [row[0] for row in changes(store)] == services[1::2]
    assert judge._metrics.errors.labels("chunking", "ValueError")._value.get() == 1
