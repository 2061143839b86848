"""The shards of streams: each stream that is due belongs to one of the instances, and all streams of an engine to the same one."""

from __future__ import annotations

import random

import pytest

from helpers.builders.batches import received_spans
from helpers.builders.spans import native_span, request
from legato_ingest.attribution.load import due
from legato_ingest.attribution.load.due import due_by_receipt
from legato_ingest.attribution.load.shards import CELL_NS
from legato_ingest.jobs.shard_lease import shards_of
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store
from legato_ingest.storage.judged import ALL_SHARDS

BEGIN_NS, RECEIVED_MS = 1_790_000_000_000_000_000, 1_790_000_900_000
ENGINES, TRACES = 12, 120


def put(store: Store, rng: random.Random, apart_ns: int) -> None:
    """Store traces of a client with a server, of a client alone, and of a server alone. They start within this time of each other."""
    for number in range(TRACES):
        trace, start_ns = rng.randbytes(16), BEGIN_NS + rng.randrange(apart_ns)
        body = request()
        for vantage in (("client", "server"), ("client",), ("server",))[number % 3]:
            engine = {"legato.engine.id": f"engine-{number % ENGINES}"} if vantage == "server" else {}
            attributes = {"legato.stream.vantage": vantage, "gen_ai.response.id": f"r-{number}", **engine}
            native_span(body, attributes, trace_id=trace, start_ns=start_ns + rng.randrange(10**9), duration_ns=10**9, rng=rng)
        batch = received_spans(body, tenant="", now_ns=RECEIVED_MS * 1_000_000, limits=Limits(retention_days=0))
        store.insert("stream_revs", batch.revs)


def found(store: Store, shards: int) -> list[tuple[str, str]]:
    """Return the trace and the vantage of each due stream of these shards."""
    rows: list[tuple[str, str]] = []
    for each in due_by_receipt(store, RECEIVED_MS - 1, RECEIVED_MS, shards):
        sql = f"SELECT hex(trace_id), vantage FROM stream_revs FINAL WHERE {each.inside} AND {each.which}"
        rows += [(str(trace), str(vantage)) for trace, vantage in store.select(sql)]
    return rows


@pytest.mark.parametrize(
    ("spans_max", "apart_ns"), [pytest.param(16_000, 5 * CELL_NS, marks=pytest.mark.long), (40, 5 * CELL_NS), (16_000, 10**9)]
)
def test_each_stream_has_one_instance(store: Store, monkeypatch: pytest.MonkeyPatch, spans_max: int, apart_ns: int) -> None:
    """With its trace, and with the other streams of its engine; also where there are too many streams for a list."""
    monkeypatch.setattr(due, "_SPANS_MAX", spans_max)
    store.command("TRUNCATE TABLE stream_revs")
    put(store, random.Random(spans_max + apart_ns), apart_ns)
    members = ["one", "two", "three"]
    parts = [found(store, shards_of(each, members)) for each in members]
    assert sorted(sum(parts, [])) == sorted(found(store, ALL_SHARDS))
    assert all(parts) and len(found(store, ALL_SHARDS)) == TRACES // 3 * 4
    owners: dict[str, set[int]] = {}
    for owner, rows in enumerate(parts):
        for trace, _ in rows:
            owners.setdefault(trace, set()).add(owner)
    assert all(len(each) == 1 for each in owners.values())
    by_engine: dict[str, set[int]] = {}
    for trace, engine in store.select("SELECT hex(trace_id), engine_id FROM stream_revs WHERE engine_id != ''"):
        by_engine.setdefault(str(engine), set()).update(owners[str(trace)])
    assert len(by_engine) == ENGINES * 2 // 3 and all(len(each) == 1 for each in by_engine.values())


def test_streams_of_too_many_times_belong_to_all(store: Store) -> None:
    """Clocks that are wrong by hours make no instance leave a stream out."""
    store.command("TRUNCATE TABLE stream_revs")
    put(store, random.Random(5), 20 * CELL_NS)
    assert sorted(found(store, 1)) == sorted(found(store, ALL_SHARDS))
