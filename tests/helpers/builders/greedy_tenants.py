"""Tenants with much to judge: their streams, a worker that judges them in turns, and stores that refuse statements about one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helpers.builders.judging import RECEIVED_NS
from helpers.builders.spans import native_span, request
from helpers.builders.world import MS
from helpers.builders.world_spans import put
from helpers.servers.committing import StoreDouble
from legato._timeline import pack
from legato_ingest.attribution import turns, worker
from legato_ingest.attribution.load.streams import Most
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.judged import ALL_SHARDS

__all__ = ["GREEDY", "SLICES", "Verified", "bound", "finish", "judge_of", "judged", "put_stalled", "refuse"]

GREEDY, SLICES = 12, 4


def put_stalled(store: Store, tenant: str, count: int, received_ns: int, first: int = 0, apart_s: int = 1) -> None:
    """Store streams with one stall each, a second apart."""
    body = request()
    timeline = {
        "legato.stream.vantage": "client",
        "legato.stream.timeline": pack([*range(20_000, 400_000, 20_000), 1_200_000], None, None, [1] * 20),
    }
    for number in range(first, first + count):
        start_ns = RECEIVED_NS + number * apart_s * 1_000 * MS
        trace_id, span_id = f"{tenant:>8}{number:08}".encode(), f"{number:08}".encode()
        native_span(body, timeline, trace_id=trace_id, span_id=span_id, start_ns=start_ns, duration_ns=2 * 10**9)
    put(store, body, received_ns, tenant)


def judged(store: Store) -> dict[str, int]:
    """Return the number of streams with a verdict by tenant."""
    return {str(tenant): int(count) for tenant, count in store.select("SELECT tenant, uniqExact(trace_id) FROM verdicts GROUP BY tenant")}


def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slice be three streams, and each run take one step of a turn: it looks for what is due, or divides it, or judges a slice."""
    most = Most(streams=GREEDY // SLICES, bytes=2**26)
    monkeypatch.setattr(turns, "TURN", most)
    monkeypatch.setattr(worker, "TURN", most)
    monkeypatch.setattr(worker, "_TURNS_S", 0.0)


def judge_of(store: Store, metrics: Metrics | None = None, shards: int = ALL_SHARDS) -> tuple[AttributionWorker, Callable[[int], None]]:
    """Return a worker, and a function that sets the time (ns) until which everything is received."""
    at = [RECEIVED_NS]
    settings = load(attribute_grace_s=0)
    made = AttributionWorker(store, settings, metrics or Metrics(), received_ms=lambda: at[0] // MS, shards=lambda: shards)
    return made, lambda ns: at.__setitem__(0, ns)


def finish(judge: AttributionWorker) -> int:
    """Run until no tenant is aside, and return the number of runs."""
    runs = 0
    while judge._turns and runs < 50:
        judge.step()
        runs += 1
    return runs


class Verified(StoreDouble):
    """A store that calls ``verified`` to verify its parts."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.verified: Callable[[], None] = store.verify

    def verify(self) -> None:
        """Call ``verified``."""
        self.verified()


def refuse(store: Store, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception, is_refusing: list[bool]) -> list[int]:
    """While ``is_refusing[0]``, have a function of the worker refuse what the tenant "hostile" is in. Return a list of the refusals."""
    real, refusals = getattr(worker, name), list[int]()

    def refusing(*args: Any) -> Any:
        keys = " AND ".join(f"({each if isinstance(each, str) else getattr(each, 'inside', '1')})" for each in args[1:])
        ((has_hostile,),) = store.select(f"SELECT count() FROM stream_revs WHERE tenant = 'hostile' AND {keys}")
        if int(has_hostile) and is_refusing[0]:
            refusals.append(1)
            raise error
        return real(*args)

    monkeypatch.setattr(worker, name, refusing)
    return refusals
