"""What the store knows of some streams and their engines, as arrays for the judgement.

One idea: one query a kind of evidence for a whole slice of time, columns as Arrow; Python touches streams, never chunks or steps. It reads
and does not judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.attribution.clocks import shift_of
from legato_ingest.attribution.pairs import Vantage
from legato_ingest.attribution.steps import Charges, Steps, charge
from legato_ingest.store import Store

__all__ = ["Engine", "Received", "Stream", "between", "engines_of", "streams_in"]

_ARRAYS = "dt_us, chunk_kind, chunk_bytes, chunk_hold_64us"
_STREAMS = """
SELECT tenant, toUnixTimestamp64Nano(start_time) AS start_ns, trace_id, span_id, vantage, response_id, engine_id, duration_ns, {arrays}
FROM stream_revs FINAL
WHERE start_time BETWEEN fromUnixTimestamp64Nano({low}, 'UTC') AND fromUnixTimestamp64Nano({high}, 'UTC') AND {which}
ORDER BY start_time, span_id
SETTINGS do_not_merge_across_partitions_select_final = 1, max_threads = 1"""
# The server's clock may be this far from the client's and its vantage still be found.
_CLOCKS_APART_NS = 7_200_000_000_000
_STEPS = """
SELECT toUnixTimestamp64Nano(s.recorded_at) AS recorded_ns, s.step AS number, {columns}
FROM engine_steps AS s FINAL
WHERE tenant = {tenant} AND engine_id = {engine}
  AND recorded_at BETWEEN fromUnixTimestamp64Nano({low}, 'UTC') AND fromUnixTimestamp64Nano({high}, 'UTC')
ORDER BY engine_epoch, number
SETTINGS max_threads = 1"""
_COLUMNS = (
    "interval_us", "elapsed_us", "running", "waiting",
    "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens", "draft_tokens",
)  # fmt: skip
_REQUESTS = """
SELECT response_id, step FROM engine_requests FINAL
WHERE tenant = {tenant} AND engine_id = {engine}
  AND recorded_at BETWEEN fromUnixTimestamp64Nano({low}, 'UTC') AND fromUnixTimestamp64Nano({high}, 'UTC')
SETTINGS max_threads = 1"""


Received = tuple[int, int]


def between(received: Received) -> str:
    """The condition that a row was received after the first and up to the second of these, in ms since the epoch."""
    return "received_at > fromUnixTimestamp64Milli({}, 'UTC') AND received_at <= fromUnixTimestamp64Milli({}, 'UTC')".format(*received)


@dataclass(frozen=True, slots=True)
class Stream:
    """A client's stream with a gap worth judging, and the same stream at its server where that was recorded."""

    tenant: str
    start_ns: int
    trace_id: bytes
    span_id: bytes
    client: Vantage
    server: Vantage | None
    engine_id: str
    response_id: str


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine's steps, charged, and how far its records' clock is from its server's; ``None`` where nothing tells."""

    charges: Charges
    shift_ns: int | None


def streams_in(store: Store, low_ns: int, high_ns: int, gap_us_min: int, received: Received | None = None) -> list[Stream]:
    """Client streams that started in this time and had such a gap, each with its server's vantage (the same trace and response).

    ``received``: only those of which a vantage was received in this time.
    """
    which = f"vantage = 'client' AND ended AND (gap_max_us >= {gap_us_min})"
    if received is not None:
        which += f" AND trace_id IN (SELECT trace_id FROM stream_revs WHERE {between(received)})"
    clients = store.select_arrow(_STREAMS.format(arrays=_ARRAYS, low=low_ns, high=high_ns, which=which))
    if not clients.num_rows:
        return []
    traces = ",".join(f"unhex('{trace.hex()}')" for trace in sorted(set(clients["trace_id"].to_pylist())))
    servers = store.select_arrow(
        _STREAMS.format(
            arrays=_ARRAYS,
            low=low_ns - _CLOCKS_APART_NS,
            high=high_ns + _CLOCKS_APART_NS,
            which=f"vantage = 'server' AND ended AND trace_id IN ({traces})",
        )
    )
    by_key = {_key(row): row for row in _rows(servers)}
    out = []
    for row in _rows(clients):
        server = by_key.get(_key(row))
        out.append(
            Stream(
                tenant=row["tenant"],
                start_ns=row["start_ns"],
                trace_id=row["trace_id"],
                span_id=row["span_id"],
                client=_vantage(row),
                server=_vantage(server) if server else None,
                engine_id=(server or row)["engine_id"],
                response_id=row["response_id"],
            )
        )
    return out


def engines_of(store: Store, streams: list[Stream]) -> dict[tuple[str, str], Engine]:
    """The engines of these streams, by tenant and id, each over the time of its own streams at their servers."""
    out = {}
    for tenant, engine_id in sorted({(stream.tenant, stream.engine_id) for stream in streams if stream.server and stream.engine_id}):
        own = [stream for stream in streams if stream.server and (stream.tenant, stream.engine_id) == (tenant, engine_id)]
        engine = _engine(store, tenant, engine_id, own)
        if engine is not None:
            out[tenant, engine_id] = engine
    return out


def _engine(store: Store, tenant: str, engine_id: str, streams: list[Stream]) -> Engine | None:
    """Read by the server's clock, widened until the engine's own clock is known: records may be from another clock."""
    servers = [stream.server for stream in streams if stream.server is not None and len(stream.server.times_ns)]
    if not servers:
        return None
    names = {"tenant": _quoted(tenant), "engine": _quoted(engine_id)}
    span = {"low": min(int(s.times_ns[0]) for s in servers), "high": max(int(s.times_ns[-1]) for s in servers)}
    wide = {"low": span["low"] - _CLOCKS_APART_NS, "high": span["high"] + _CLOCKS_APART_NS}
    requests = store.select_arrow(_REQUESTS.format(**names, **wide))
    table = store.select_arrow(_STEPS.format(columns=", ".join(f"s.{name} AS {name}" for name in _COLUMNS), **names, **wide))
    if not table.num_rows:
        return None
    steps, finished = _steps(table, requests)
    recorded = dict(zip(steps.number.tolist(), steps.recorded_ns.tolist(), strict=True))
    last = {stream.response_id: int(stream.server.times_ns[-1]) for stream in streams if stream.server and len(stream.server.times_ns)}
    pairs = [(last[response], recorded[step]) for response, step in finished if response in last and step in recorded]
    samples = np.array(pairs, np.int64).reshape(-1, 2)
    return Engine(charge(steps), shift_of(samples[:, 0], samples[:, 1]))


def _steps(table: pa.Table, requests: pa.Table) -> tuple[Steps, list[tuple[str, int]]]:
    finished = [
        (_text(response), int(step)) for response, step in zip(*(requests[n].to_pylist() for n in ("response_id", "step")), strict=True)
    ]
    numbers = _ints(table, "number")
    ended = np.zeros(len(numbers), np.float64)
    at = np.searchsorted(numbers, [step for _, step in finished])
    for place, (_, step) in zip(at.tolist(), finished, strict=True):
        if place < len(numbers) and numbers[place] == step:
            ended[place] += 1
    values = {name: _floats(table, name) for name in _COLUMNS}
    steps = Steps(
        number=numbers,
        recorded_ns=_ints(table, "recorded_ns"),
        interval_ns=1000 * values.pop("interval_us"),
        elapsed_ns=1000 * values.pop("elapsed_us"),
        finished=ended,
        **values,
    )
    return steps, finished


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Each row with its arrays as numpy's."""
    names = [name for name in table.column_names if name not in _ARRAYS.split(", ")]
    plain = [table[name].to_pylist() for name in names]
    lists = {name: table[name].combine_chunks() for name in _ARRAYS.split(", ")}
    for i, values in enumerate(zip(*plain, strict=True)):
        row = {name: value if name in ("trace_id", "span_id") else _text(value) for name, value in zip(names, values, strict=True)}
        row.update({name: column[i].values.to_numpy(zero_copy_only=False).astype(np.int64) for name, column in lists.items()})
        yield row


def _key(row: dict[str, Any]) -> tuple[str, bytes, str]:
    return row["tenant"], row["trace_id"], row["response_id"]


def _vantage(row: dict[str, Any]) -> Vantage:
    return Vantage.of(row["start_ns"], row["dt_us"], row["chunk_kind"], row["chunk_bytes"], row["chunk_hold_64us"])


def _ints(table: pa.Table, name: str) -> NDArray[np.int64]:
    return np.asarray(table[name].combine_chunks().to_numpy(zero_copy_only=False)).astype(np.int64)


def _floats(table: pa.Table, name: str) -> NDArray[np.float64]:
    """Unknown values as NaN."""
    return np.asarray(table[name].combine_chunks().cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _quoted(text: str) -> str:
    return f"unhex('{text.encode().hex()}')"
