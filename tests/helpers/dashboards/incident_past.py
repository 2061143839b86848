"""A store with the past of the demo and a KV-cache incident until now, judged and rolled up. It is built once and copied."""

from __future__ import annotations

import pathlib
import pickle
import time
from collections.abc import Sequence

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from demo.past import Placement, bodies, placements
from helpers.builders.batches import received_spans
from helpers.builders.spans import SECOND_NS
from helpers.servers.stores import copy_migrated, copy_of
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import EmbeddedStore, Store

__all__ = ["copy_incident", "send"]

_AGE_S_MAX = 3_600
# The longest window of a rule over streams is three days; older streams cannot change what a rule returns.
_RULES_SEE_NS = (3 * 86_400 + 3_600) * SECOND_NS


def copy_incident(folder: pathlib.Path) -> tuple[pathlib.Path, int, int]:
    """Copy it into ``folder``, which must not exist. Return the store's folder, and its end and the incident's begin (unix s)."""
    copy_of("incident", _build, folder, _AGE_S_MAX)
    now_s, begin_s = pickle.loads((folder / "times").read_bytes())
    return folder / "store", now_s, begin_s


def send(store: Store, made: Sequence[Placement], now_ns: int) -> None:
    """Store a past as the ingest does, with one insert for each table."""
    requests = (ExportTraceServiceRequest.FromString(body) for body, _ in bodies(made))
    batch = Batch.joined([received_spans(each, tenant="", now_ns=now_ns, limits=Limits()) for each in requests])
    assert not batch.rejected.num_rows
    for table, rows in (("stream_revs", batch.revs), ("engine_steps", batch.steps), ("engine_requests", batch.requests)):
        store.insert(table, rows)


def _build(folder: pathlib.Path) -> None:
    """Write the folder `store`, and the file `times`."""
    now_ns = time.time_ns()
    made = [each for each in placements(now_ns, "kv") if now_ns - each.begin_ns < _RULES_SEE_NS]
    copy_migrated(folder / "store")
    store = EmbeddedStore(folder / "store")
    try:
        send(store, made, now_ns)
        AttributionWorker(store, load(attribute_grace_s=0), Metrics()).again(0)
        RollupWorker(store, load(), Metrics()).step()
    finally:
        store.close()
    begin_ns = min(each.begin_ns for each in made if each.name == "kv")
    (folder / "times").write_bytes(pickle.dumps((now_ns // SECOND_NS, begin_ns // SECOND_NS)))
