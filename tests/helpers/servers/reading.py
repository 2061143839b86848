"""An embedded store with the schema, streams that are converted from OTLP, and the read endpoint on a free port."""

from __future__ import annotations

import contextlib
import pathlib
import random
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI

from helpers.builders.batches import received_spans
from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.servers.serving import served
from helpers.servers.stores import copy_migrated
from legato._timeline import pack
from legato_ingest.errors import StoreError
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.query import sql_text
from legato_ingest.query.app import create_app
from legato_ingest.query.key_ranges import with_key
from legato_ingest.query.reads import QueryStore, Reads
from legato_ingest.query.sql_guard import Guard
from legato_ingest.quoting import literal
from legato_ingest.settings import Settings
from legato_ingest.storage import EmbeddedStore, Store
from legato_ingest.storage.tenant_views import KEYED_VIEW

__all__ = ["LIMITS", "by_key", "guard_of", "open_store", "read_app", "reading", "result_or_fails", "stream", "streams_in", "tables_of"]

LIMITS: dict[str, int | str] = {
    "max_execution_time": 10,
    "max_memory_usage": 1 << 30,
    "max_result_rows": 100_000,
    "result_overflow_mode": "throw",
}


@contextlib.contextmanager
def open_store(path: pathlib.Path) -> Iterator[Store]:
    """A new store with the whole schema. The engine opens one path a process: close the store before the next is opened."""
    copy_migrated(path)
    store = EmbeddedStore(path, LIMITS)
    try:
        yield store
    finally:
        store.close()


def guard_of(store: Store) -> Guard:
    """A guard that parses statements in the engine of a store, as that of the read endpoint does."""
    return Guard(lambda sql, parameters, tenant: store.query_bytes(sql, parameters, "TabSeparatedRaw", tenant))


def by_key(store: Store, sql: str) -> tuple[str, str]:
    """Return the text of a statement of a tenant's reader without and with the conditions for the primary key. Not checked by the guard."""
    line = store.query_bytes(f"SELECT formatQuerySingleLine({literal(sql)})", fmt="TabSeparatedRaw").decode().removesuffix("\n")
    statement = sql_text.read(line, of_one_tenant=True)
    return statement.sql, with_key(statement.sql, *guard_of(store)._read_columns(), statement.subqueries)


def result_or_fails(store: Store, sql: str) -> str:
    """Return the result of a statement of the tenant "shop", or that it fails. Not checked by the guard."""
    try:
        return store.query_bytes(sql, tenant="shop").decode()
    except StoreError:
        return "fails"


def tables_of(sql: str, views: Collection[str]) -> set[str]:
    """Return those of the views of a tenant's reader that a statement reads. The name of one that is read by its key ends with `_keyed`."""
    named = re.findall(r"(?:FROM|JOIN) `?(\w+)`?", sql)
    return {name for name in named if name.removesuffix(KEYED_VIEW) in views}


def read_app(settings: Settings, store: QueryStore, metrics: Metrics) -> FastAPI:
    """The app of the read endpoint over a store."""
    return create_app(settings, Reads(settings, store, metrics), metrics)


@contextlib.contextmanager
def reading(store: Store, **settings: Any) -> Iterator[str]:
    """Run the read endpoint over a store and yield its URL."""
    with served(read_app(Settings(**settings), store, Metrics())) as url:
        yield url


def stream(
    gaps_ms: Sequence[float] = (20.0,) * 19,
    first_ms: float = 400.0,
    attributes: Mapping[str, Any] | None = None,
    *,
    end_ms: float = 5.0,
    kinds: Sequence[int] | None = None,
    holds_ms: Sequence[float] | None = None,
    age_s: float = 60.0,
    **more: Any,
) -> dict[str, Any]:
    """A stream for `streams_in`: text chunks with these gaps, and the end ``end_ms`` after the last chunk."""
    times = [first_ms]
    for gap in gaps_ms:
        times.append(times[-1] + gap)
    times_us = [round(t * 1000) for t in times]
    codes = list(kinds or [1] * len(times))
    holds = None if holds_ms is None else [round(h * 1000) for h in holds_ms]
    packed = pack(times_us, [6 if kind in (1, 2, 3) else 0 for kind in codes], None, codes, holds)
    return {
        "attributes": {"legato.stream.timeline": packed, "legato.stream.chunks": len(times), **(attributes or {})},
        "duration_ns": times_us[-1] * 1000 + round(end_ms * 1e6),
        "age_s": age_s,
        **more,
    }


def streams_in(store: Store, streams: Sequence[Mapping[str, Any]], service: str = "shop", clock: str = "", seed: int = 7) -> None:
    """Convert these streams of one service (and one clock) as the OTLP endpoint does, and store them."""
    scope = {"legato.emitter": "legato-python/0.1.0", **({"legato.stream.clock": clock} if clock else {})}
    body, rng, now = request({"service.name": service}, scope), random.Random(seed), time.time_ns()
    for made in streams:
        options = {key: value for key, value in made.items() if key not in ("attributes", "age_s")}
        options.setdefault("start_ns", now - round(made["age_s"] * SECOND_NS))
        native_span(body, made["attributes"], rng=rng, **options)
    batch = received_spans(body, tenant="", now_ns=now, limits=Limits())
    assert batch.rejected.num_rows == 0, batch.rejected.to_pylist()
    store.insert("stream_revs", batch.revs)
