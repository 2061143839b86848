"""One run over the store: load, judge, write. A stream that cannot be judged costs no other stream."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from helpers.builders.judging import put_all
from legato_ingest.attribution.load import evidence
from legato_ingest.attribution.model.judge import Evidence
from legato_ingest.attribution.model.vantage import Stream
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.errors import StoreRefused, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.client_errors import translated


def test_streams_that_cannot_be_judged_are_left_out_and_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that always fails must not keep later streams from being judged."""
    put_all(store)
    metrics = Metrics()
    judge = AttributionWorker(store, load(attribute_grace_s=0), metrics)
    with monkeypatch.context() as broken:
        broken.setattr("legato_ingest.attribution.judging.judge", lambda *_: 1 / 0)
        judge.step()
    assert metrics.errors.labels("attribute", "ZeroDivisionError")._value.get() == 1
    assert judge.step().streams == 0, "the next run continues after them"
    assert judge.again(0)["verdicts"] == 1


def test_what_fails_for_one_tenant_costs_no_other_its_verdicts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of several tenants are judged together. Where that fails, each tenant's are judged apart."""
    for tenant in ("a", "hostile", "z"):
        put_all(store, tenant=tenant)

    def load_evidence(store: Store, streams: Sequence[Stream]) -> list[Evidence]:
        if any(each.tenant == "hostile" for each in streams):
            raise StoreRefused("too long", 62)
        return evidence.load_evidence(store, streams)

    monkeypatch.setattr("legato_ingest.attribution.run.load_evidence", load_evidence)
    metrics = Metrics()
    AttributionWorker(store, load(attribute_grace_s=0), metrics).step()
    assert store.select("SELECT DISTINCT tenant FROM verdicts ORDER BY tenant") == [("a",), ("z",)]
    assert metrics.errors.labels("attribute", "StoreRefused")._value.get() == 1


def test_streams_of_a_cancelled_statement_are_judged_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, or the repair of a table, has cancelled it. The run fails and records no progress."""
    put_all(store)

    def load_evidence(store: Store, streams: Sequence[Stream]) -> list[Evidence]:
        with translated():
            raise DatabaseError("Code: 394. DB::Exception: Query was cancelled. (QUERY_WAS_CANCELLED)")

    judge = AttributionWorker(store, load(attribute_grace_s=0), Metrics())
    with monkeypatch.context() as cancelled:
        cancelled.setattr("legato_ingest.attribution.run.load_evidence", load_evidence)
        with pytest.raises(StoreUnavailable):
            judge.step()
    assert store.select("SELECT count() FROM attribution_runs") == [(0,)]
    assert judge.step().verdicts == 1
